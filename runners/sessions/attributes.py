"""State that Python keeps between calls: the attributes of workers, model runners, graph runners and attention
backends, as short texts that two moments can be compared by; and which KV pool an attention backend reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch

from repro.cases.attribute_names import LAST_CALL

DEPTH = 4
_ADDRESS = re.compile(r" @[0-9a-f]+")
# Objects whose contents are their own affair, by the end of their class's name.
_OF_OTHERS = ("Pool", "Allocator", "Config", "Args", "Batch", "Coordinator", "Registry", "Tokenizer")
_POOL = "Pool"
_KV_POOL = "token_to_kv_pool"  # what a backend calls the one that it reads
_PLAIN = (int, float, str, bytes, type(None), torch.dtype, torch.device, Enum)
_CONTAINERS = (list, tuple, dict, set)


def attributes(roots: Mapping[str, Any]) -> dict[str, str]:
    """The attributes by the path that leads there. An object of sglang's and a pool are named by class and identity,
    one of others by its class."""
    seen: set[int] = set()
    texts: dict[str, str] = {}
    for name, root in roots.items():
        _tell(texts, root, name, DEPTH, seen)
    return texts


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, bytes]:
    """The attributes that differ, and in words what they were and are, without addresses: these differ from run to
    run."""
    names = (name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    words = {
        name: [_ADDRESS.sub("", states.get(name, "absent")) for states in (before, after)] for name in sorted(names)
    }
    return {
        name: (f"{was} -> {now}" if was != now else f"another {now}").encode() for name, (was, now) in words.items()
    }


def pools(backends: Sequence[Any]) -> list[Any]:
    """The KV pool that each of these attention backends reads; None of one that names none."""
    return [getattr(backend, _KV_POOL, None) for backend in backends]


def moved(backends: Sequence[Any], before: Sequence[Any]) -> dict[str, bytes]:
    """The backends that read another pool than before, as `changed` has it: some are lent one for as long as a call
    takes."""
    pairs = zip(backends, before, pools(backends), strict=True)
    return {
        f"{type(backend).__name__}.{_KV_POOL}": f"{type(was).__name__} -> another {type(now).__name__}".encode()
        for backend, was, now in pairs
        if now is not was
    }


def _tell(texts: dict[str, str], value: Any, path: str, depth: int, seen: set[int]) -> None:
    kind = _kinds.get(type(value)) or _kind(value)
    if kind is _Kind.PLAIN:
        texts[path] = str(value)[:80]
    elif kind is _Kind.TENSOR:
        texts[path] = f"tensor {tuple(value.shape)} {value.dtype} @{value.data_ptr():x}"
    elif kind is _Kind.CONTAINER:
        texts[path] = f"{type(value).__name__} of {len(value)}"
        if depth and not isinstance(value, set) and id(value) not in seen:
            seen.add(id(value))
            for name, entry in value.items() if isinstance(value, dict) else enumerate(value):
                _tell(texts, entry, f"{path}[{str(name)[:40]}]", depth - 1, seen)
    elif kind is _Kind.LOOKED_INTO:
        texts[path] = f"{type(value).__name__} @{id(value):x}"
        if depth and id(value) not in seen:
            seen.add(id(value))
            for name, entry in sorted(vars(value).items()):
                # What outlives the last call has a path of its own, which what is about that call would take over.
                _tell(texts, entry, f"{path}.{name}", 0 if name in LAST_CALL else depth - 1, seen)
    else:
        name = type(value).__name__
        texts[path] = f"{name} @{id(value):x}" if name.endswith(_POOL) else name


class _Kind(Enum):
    PLAIN, TENSOR, CONTAINER, LOOKED_INTO, OTHER = range(5)


_kinds: dict[type, _Kind] = {}


def _kind(value: Any) -> _Kind:
    """Remembered for all of its type: attributes are many, and of few types."""
    known = ((_Kind.PLAIN, _PLAIN), (_Kind.TENSOR, (torch.Tensor,)), (_Kind.CONTAINER, _CONTAINERS))
    other = _Kind.LOOKED_INTO if looked_into(value) else _Kind.OTHER
    kind = _kinds[type(value)] = next((kind for kind, types in known if isinstance(value, types)), other)
    return kind


def looked_into(value: Any) -> bool:
    """True for an object of sglang's whose attributes are about what runners do."""
    kind = type(value)
    if isinstance(value, torch.nn.Module | type) or not hasattr(value, "__dict__"):
        return False
    is_sglangs = kind.__module__.startswith("sglang.srt.") or kind is SimpleNamespace
    return is_sglangs and not kind.__name__.endswith(_OF_OTHERS)
