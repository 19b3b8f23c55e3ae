"""The outputs of emulated replays that are read when another replay has been to their memory.

Outputs carry the number of their replay, and so do views of them. Each ATen call and each launch outside of replays is
asked whether it reads one over whose memory a later replay has gone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from runners.engines.places import in_sglang
from runners.engines.triton import interpreter

_MARK = "_eagleeye_replay"


@dataclass(frozen=True, slots=True)
class LateRead:
    """A read of an output. graph: whose. reader: sglang's file, function and line. between: the graphs that have been
    to its memory since, in order."""

    graph: str
    reader: str
    between: tuple[str, ...]


@dataclass(slots=True)
class Lifetimes:
    """Mutable: the replays so far, each with its graph's name and the memory that it went over."""

    replays: list[tuple[str, tuple[tuple[int, int], ...]]] = field(default_factory=list)
    late: dict[LateRead, None] = field(default_factory=dict)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While entered, reads are looked at."""
        with _Reads(self), interpreter.launches_go_to(self._launch):
            yield

    def replayed(self, name: str, memory: Iterable[tuple[int, int]]) -> None:
        """A graph of this name is replayed, which goes over these stretches, (address, bytes)."""
        self.replays.append((name, tuple(memory)))

    def handed(self, returned: Any) -> Any:
        """The outputs of the last replay, as objects of their own: a runner returns the same ones each time."""
        if isinstance(returned, torch.Tensor):
            fresh = returned.view(returned.shape)
            setattr(fresh, _MARK, len(self.replays) - 1)
            return fresh
        if isinstance(returned, tuple | list):
            return type(returned)(map(self.handed, returned))
        if returned is None or not hasattr(returned, "__dict__"):
            return returned
        outputs = copy.copy(returned)
        for name, value in vars(returned).items():
            if isinstance(value, torch.Tensor):
                setattr(outputs, name, self.handed(value))
        return outputs

    def read(self, tensors: Any) -> None:
        """These are read."""
        for tensor in tensors:
            number = getattr(tensor, _MARK, None) if isinstance(tensor, torch.Tensor) else None
            if number is None or number == len(self.replays) - 1 or not tensor.numel():
                continue
            start = tensor.data_ptr()
            reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            end = start + tensor.element_size() * (1 + reach)
            between = tuple(
                name
                for name, memory in self.replays[number + 1 :]
                if any(first < end and start < first + size for first, size in memory)
            )
            if between:
                self.late.setdefault(LateRead(self.replays[number][0], in_sglang(), between[:4]))

    def _launch(self, kernel: interpreter.Launch) -> None:
        self.read(kernel.arguments.values())
        kernel.run()


class _Reads(TorchDispatchMode):
    """Sees every ATen call outside of replays."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        super().__init__()
        self._lifetimes = lifetimes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        marked = [leaf for leaf in tree_leaves((args, kwargs)) if hasattr(leaf, _MARK)]
        if not marked:
            return func(*args, **kwargs)
        if func.is_view:
            result = func(*args, **kwargs)
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    setattr(leaf, _MARK, getattr(marked[0], _MARK))
            return result
        written = _written(func, args, kwargs)
        self._lifetimes.read(tensor for tensor in marked if not any(tensor is each for each in written))
        return func(*args, **kwargs)


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that a call overwrites without a look."""
    if func._overloadname != "out" and not func._schema.name.endswith(("copy_", "fill_", "zero_")):
        return []
    return list(args[:1]) if "out" not in kwargs else [kwargs["out"]]
