"""State that outlives a call, found by looking: every tensor that a graph runner and its attention backends hold."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

DEPTH = 5  # from a runner over a backend of several steps to the registry of one
# Attributes that are not looked at: what each replay writes before it reads it, and the caller's.
_SCRATCH = frozenset(
    {
        "_outputs",  # what captured graphs gave
        "output_buffers",
        "next_token_logits_buffer",
        "req_to_token",  # the request table
    }
)
_SCRATCH_PARTS = ("workspace_buffer", "lean_", "attn_logits", "attn_lse")  # room for intermediate results
# Made anew by each call, of tensors that are found under other names.
_METADATA = frozenset({"forward_metadata", "forward_metadata_spec_decode"})
# Objects of others, by the end of their class's name: what they hold is theirs.
_OF_OTHERS = ("Pool", "Allocator", "ModelRunner", "Worker", "WorkerV2", "Config", "Args", "Batch", "Coordinator")


def is_scratch(name: object) -> bool:
    """True if nothing under an attribute of this name outlives a call."""
    return isinstance(name, str) and (name in _SCRATCH or any(part in name for part in _SCRATCH_PARTS))


def standing(roots: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors by the path of attributes that leads there, without the root's own name; of those in one place the
    largest."""
    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, root in roots.items():
        for path, tensor in _held(root, name, DEPTH, seen):
            tensors.setdefault(path, tensor)
    return without_views(tensors)


def _held(owner: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(owner, torch.Tensor):
        if owner.numel() and owner.layout is torch.strided and not owner.is_meta:
            yield path, owner
        return
    if id(owner) in seen or not depth:
        return
    seen.add(id(owner))
    for name, value in _parts(owner):
        if name not in _METADATA and not is_scratch(name):
            yield from _held(value, f"{path}.{name}".removeprefix("."), depth - 1, seen)


def _parts(owner: Any) -> list[tuple[str, Any]]:
    if isinstance(owner, list | tuple):
        return [(str(number), value) for number, value in enumerate(owner)]
    if isinstance(owner, dict):
        return [(str(name), value) for name, value in owner.items()]
    kind = type(owner)
    is_looked_into = kind is SimpleNamespace or kind.__module__.startswith("sglang.srt.")
    if not is_looked_into or isinstance(owner, torch.nn.Module) or kind.__name__.endswith(_OF_OTHERS):
        return []
    return list(getattr(owner, "__dict__", {}).items())


def without_views(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors that share no memory with a larger one, in their order."""
    kept: dict[str, torch.Tensor] = {}
    taken: list[tuple[int, int]] = []
    for name, tensor in sorted(tensors.items(), key=lambda item: -_end(item[1]) + item[1].data_ptr()):
        first, end = tensor.data_ptr(), _end(tensor)
        if not any(first < other_end and other < end for other, other_end in taken):
            taken.append((first, end))
            kept[name] = tensor
    return {name: kept[name] for name in tensors if name in kept}


def _end(tensor: torch.Tensor) -> int:
    reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + reach * tensor.element_size()
