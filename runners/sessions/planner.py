"""The batch that attention's metadata is made of: as the backend gets it, after padding and before it plans."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from repro.cases.buffer_facts import TOKENS_SECOND
from runners.releases.backends.full_layers import of_full_layers

# What makes the metadata of a call. A multi-step backend calls those of its steps in turn; the outermost counts.
PLANNED_BY = ("init_forward_metadata", "init_forward_metadata_out_graph", "init_forward_metadata_replay_cuda_graph")
# What a batch says of itself, and what its spec_info adds.
FIELDS = (
    "batch_size",
    "seq_lens",
    "seq_lens_cpu",
    "seq_lens_sum",
    "req_pool_indices",
    "out_cache_loc",
    "positions",
    "input_ids",
    "mrope_positions",
    "extend_seq_lens_cpu",
)
SPEC_FIELDS = {
    "num_accept_tokens": ("num_accept_tokens", "num_accepted_tokens", "accept_length"),
    "num_correct_drafts": ("num_correct_drafts", "num_accepted_drafts"),
    "extend_seq_lens": ("extend_seq_lens_tensor",),
    "spec_extend_seq_lens_cpu": ("extend_seq_lens_cpu",),
    "spec_positions": ("positions",),
}
# Releases before 0.5.13 hand them over one by one.
RENAMED = {"bs": "batch_size"}
Told = Callable[[int, Mapping[str, object], Mapping[str, Any]], None]


class Planner:
    """Listens to the attention backends of a live sglang. Mutable: `told` is set while there is a listener, `first` is
    the backend that planned first since."""

    def __init__(self, roots: list[Any]) -> None:
        self.told: Told | None = None
        self.first: Any = None
        self.calls = self._depth = 0
        backends = attention_backends(roots)
        self.kinds = sorted({type(of_full_layers(each)).__name__ for each in backends})
        self._numbers = {id(backend): number for number, backend in enumerate(backends)}
        # As sglang decides it for a deployment: as soon as one of them does. Before 0.5.13 all did.
        self.needs_host_lengths = any(getattr(backend, "needs_cpu_seq_lens", True) for backend in backends)
        for backend in backends:
            for name in PLANNED_BY:
                if callable(getattr(backend, name, None)):
                    setattr(backend, name, self._listening(backend, getattr(backend, name)))

    @contextmanager
    def listened(self, listener: Told) -> Iterator[None]:
        """While entered, `listener` is given the number of each call that plans, what the call is given under today's
        names, with the place of its backend among all, and all of it as it is."""
        self.told, self.calls, self.first = listener, 0, None
        try:
            yield
        finally:
            self.told = None

    def _listening(self, backend: Any, plan: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(plan)

        @functools.wraps(plan)
        def listening(*args: Any, **kwargs: Any) -> Any:
            if self.told is None:
                return plan(*args, **kwargs)
            if not self._depth:
                arguments = signature.bind(*args, **kwargs).arguments
                seen = {**view(arguments), "backend": self._numbers[id(backend)]}
                self.told(self.calls, seen, arguments | getattr(batch_of(arguments), "__dict__", {}))
                self.calls += 1
                self.first = self.first or backend
            self._depth += 1
            try:
                return plan(*args, **kwargs)
            finally:
                self._depth -= 1

        return listening


def view(arguments: Mapping[str, Any]) -> dict[str, object]:
    """The part of a planning call's arguments that a batch says, under today's names; absent ones and None are left
    out."""
    batch = batch_of(arguments)
    fields: dict[str, Any] = {name: getattr(batch, name, None) for name in FIELDS}
    renamed = {RENAMED.get(name, name): value for name, value in arguments.items()}
    fields |= {name: renamed[name] for name in FIELDS if renamed.get(name) is not None}
    spec = renamed.get("spec_info", getattr(batch, "spec_info", None))
    for name, names in SPEC_FIELDS.items():
        fields[name] = next((getattr(spec, old) for old in names if getattr(spec, old, None) is not None), None)
    for name in TOKENS_SECOND:
        if (by_axis := fields.get(name)) is not None:
            fields[name] = by_axis.T
    return {name: value for name, value in fields.items() if _recordable(value)}


def batch_of(arguments: Mapping[str, Any]) -> Any:
    """None where a batch's fields are handed over one by one."""
    return arguments.get("forward_batch")


def _recordable(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(entry, int) for entry in value)
    return isinstance(value, torch.Tensor | int)


def attention_backends(roots: list[Any]) -> list[Any]:
    """The attention backends of these workers and of the model runners that they hold, in lists as well."""
    backends: dict[int, Any] = {}
    for root in roots:
        for entry_of in [root, *(entry for entry in _held(root) if hasattr(entry, "attn_backend"))]:
            backends |= {id(entry): entry for entry in _held(entry_of) if hasattr(type(entry), "init_forward_metadata")}
    return list(backends.values())


def _held(owner: Any) -> Iterator[Any]:
    for value in list(getattr(owner, "__dict__", {}).values()):
        yield from value if isinstance(value, list) else (value,)
