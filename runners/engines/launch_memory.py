"""The memory that an interpreted kernel may touch: loads and stores outside of what its launch was given are findings,
also where it was given a view and touches what lies beside it; and so are two programs that store different values to
one address, row starts of more or fewer rows than there are programs, and KV slots in too few bits.

On a GPU the first read or overwrite foreign memory, or end the process, and of the last the winner is undefined.
Here such lanes are masked off: they would land in the heap of the interpreter, whose own crash says nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from triton.runtime import interpreter as triton_interpreter

from repro.traces.trace import Array
from runners.engines import touched
from runners.engines.guards import band_bytes
from runners.engines.triton.pointers import ANYWHERE, argument_of

LOAD, STORE, RACE = "load outside", "store outside", "two values stored to"
BESIDE = {LOAD: "load outside the view of", STORE: "store outside the view of"}
STARTS = "another number of row starts than programs:"
NARROW = "KV slots of less than 64 bits:"
HOST = "memory of the host:"
# In front of a finding's name: which row starts of the launch were wrong themselves, as NAME COLUMN GOT WANT in UTF-8.
BECAUSE = "starts of "
# Views of these are as long as the batch that a graph was captured with needs, and its replays need more.
_GROWING = "kv_indices"
# Starts of segments of tokens, of which fixed buffers have more than a launch has programs.
_OF_SEGMENTS = "seg_indptr"
# How many launches were watched, among what was seen.
LAUNCHES = "launches"


@dataclass(frozen=True, slots=True)
class Span:
    """The memory behind an argument of a launch: addresses from `first` up to `end`. band: how many bytes at both ends
    are guard bands: what is stored there shows as such, and a read there is a finding. start, stop: where the
    argument itself begins and ends, which may be a view of a part; size: of an element, in bytes."""

    name: str
    first: int
    end: int
    band: int
    start: int
    stop: int
    size: int

    def within(self, kind: str) -> tuple[int, int]:
        """The addresses that a load, or a store, may touch."""
        return (self.first + self.band, self.end - self.band) if kind == LOAD else (self.first, self.end)


def spans(arguments: Mapping[str, object]) -> tuple[Span, ...]:
    """The spans of all tensors among the arguments of a launch."""
    return tuple(
        _span(name, leaf)
        for name, value in arguments.items()
        for leaf in ([value] if isinstance(value, torch.Tensor) else _tensors(value))
        if leaf.numel()
    )


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, list | tuple | dict):
        yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _span(name: str, tensor: torch.Tensor) -> Span:
    storage = tensor.untyped_storage()
    first = storage.data_ptr()
    end = first + storage.nbytes()
    start, size = tensor.data_ptr(), tensor.element_size()
    band = band_bytes(storage)
    reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return Span(name, first, end, band, start, end - band if _GROWING in name else start + reach * size, size)


def check(kernel: str, arguments: Mapping[str, object], programs: int) -> None:
    """Row starts are as many as programs in the first dimension, and the end of the last. KV slots that a kernel finds
    rows of the cache by have 64 bits: times the length of a row they do not fit 32, where a cache is large. And all of
    it is the device's memory."""
    finds_rows = "K_Buffer" in arguments
    for name, value in arguments.items():
        if not isinstance(value, torch.Tensor):
            continue
        is_starts = name.endswith("indptr") and name != _OF_SEGMENTS
        if is_starts and value.dim() == 1 and len(value) != programs + 1:
            report(f"{STARTS} {name} in {kernel}", len(value), programs + 1)
        if _on_host and value.untyped_storage().data_ptr() in _on_host:
            report(f"{HOST} {name} in {kernel}", 0, value.numel())
        if finds_rows and name.endswith("kv_indices") and value.dtype != torch.int64:
            report(f"{NARROW} {name} in {kernel}", 0, len(value))


def reaches(argument: str | None, span: Span, memory: Sequence[Span]) -> bool:
    """True if a pointer made from this argument may touch this memory: its own, or another argument's in the same
    storage. If its origin is unknown, it may touch all of it."""
    return argument in (None, span.name) or any(s.name == argument and s.first == span.first for s in memory)


# By what is wrong, the kernel and its argument: index and length, in elements of that argument, of the first place.
_seen: dict[str, Array] = {}
_launches = 0
# Where buffers begin that a GPU's kernels cannot reach.
_on_host: set[int] = set()
# Where everybody may write: the rows that padding is sent to.
_dumps: list[tuple[int, int]] = []


def taken() -> dict[str, Array]:
    """The findings since the last call, by name, and under LAUNCHES the number of launches that were watched."""
    global _launches
    # Sorted: which argument is met first depends on whether programs run at once or one by one.
    recorded = {**dict(sorted(_seen.items())), LAUNCHES: np.asarray(_launches)}
    _seen.clear()
    _launches = 0
    return recorded


def report(name: str, *numbers: int, starts: str = "") -> None:
    """Keep a finding; of a name the first one. starts: what is wrong with the row starts that it follows from."""
    if name not in _seen:
        _seen[name] = np.array(numbers, dtype=np.int64)
        if starts:
            _seen[BECAUSE + name] = np.frombuffer(starts.encode(), dtype=np.uint8)


def watched() -> None:
    """Count another watched launch, of a kernel that is not Triton's."""
    global _launches
    _launches += 1


def set_host(buffers: Iterable[torch.Tensor]) -> None:
    """Say which buffers lie on the host where there is a GPU, though all of them do here."""
    _on_host.clear()
    _on_host.update(buffer.untyped_storage().data_ptr() for buffer in buffers)


def set_dumps(rows: Iterable[torch.Tensor]) -> None:
    """Say which rows padding writes to, whatever it writes: their contents belong to no request."""
    _dumps[:] = [(row.data_ptr(), row.data_ptr() + row.numel() * row.element_size()) for row in rows]


@dataclass(slots=True)
class _Launch:
    """Mutable: stores gather."""

    kernel: str
    spans: Sequence[Span]
    arguments: Mapping[str, object]
    # Per store: addresses, values as bits, the program.
    stores: list[tuple[Any, Any, tuple[int, ...]]] = field(default_factory=list)

    def allowed(self, ptrs: Any, mask: Any, size: int, kind: str) -> Any:
        """The mask without the lanes that lie outside of all memory; those are a finding."""
        addresses, argument = ptrs.data, argument_of(ptrs)
        if argument == ANYWHERE:
            return mask
        views, storages = (self._bounds(argument, kind, views=views) for views in (True, False))
        if not addresses.size or _within_one(addresses, size, views):
            return mask
        lanes = np.broadcast_to(mask.data, addresses.shape).astype(np.bool_)
        used = addresses[lanes]
        if not used.size or _within_one(used, size, views):
            return mask
        if _within_one(used, size, storages):
            # Maybe not within what its argument is a view of, nor any other argument.
            beside = ~_inside(used, size, views)
            if beside.any():
                self._report(BESIDE[kind], int(used[beside].reshape(-1)[0]), argument)
            return mask
        outside = lanes & ~_inside(addresses, size, storages)
        if not outside.any():
            return mask
        self._report(kind, int(addresses[outside].reshape(-1)[0]), argument)
        return triton_interpreter.TensorHandle(lanes & ~outside, mask.dtype)

    def kept(self, ptrs: Any, size: int) -> Any:
        return _inside(ptrs.data, size, self._bounds(argument_of(ptrs), STORE, views=False))

    def _bounds(self, argument: str | None, kind: str, *, views: bool) -> list[tuple[int, int]]:
        """The bounds of the memory that a pointer made from this argument may touch."""
        reached = [span for span in self.spans if reaches(argument, span, self.spans)]
        return [(span.start, span.stop) if views else span.within(kind) for span in reached]

    def _report(self, kind: str, address: int, argument: str | None = None) -> None:
        """Note a finding at an address, of the argument that it was made from; if that is not known, of the nearest
        one."""
        views = kind in BESIDE.values()

        def distance(span: Span) -> tuple[bool, int]:
            first, end = (span.start, span.stop) if views else (span.first, span.end)
            return span.name != argument, max(first - address, address - end, 0)

        nearest = min(self.spans, key=distance, default=None)
        if argument is not None and (nearest is None or nearest.name != argument):
            report(f"{kind} {argument} in {self.kernel}", 0, 0)  # which is empty
            return
        if nearest is None:
            report(f"{kind} everything in {self.kernel}", address)
            return
        length = ((nearest.stop if views else nearest.end - nearest.band) - nearest.start) // nearest.size
        index = (address - nearest.start) // nearest.size
        report(f"{kind} {nearest.name} in {self.kernel}", index, length, starts=_wrong_starts(self.arguments))

    def keep(self, ptrs: Any, value: Any, mask: Any) -> None:
        """Remember a store."""
        lanes = np.broadcast_to(mask.data, ptrs.data.shape).astype(np.bool_)
        values = np.broadcast_to(value.data, ptrs.data.shape)[lanes]
        bits = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").astype(np.uint64)
        self.stores.append((ptrs.data[lanes], bits, tuple(triton_interpreter.interpreter_builder.grid_idx)))

    def end(self) -> None:
        """Compare what was stored."""
        stores, self.stores = self.stores, []
        if not stores:
            return
        addresses, bits = (np.concatenate([store[part] for store in stores]) for part in (0, 1))
        order = np.argsort(addresses, kind="stable")
        addresses, bits = addresses[order], bits[order]
        twice = addresses[1:][(addresses[1:] == addresses[:-1]) & (bits[1:] != bits[:-1])]
        for first, end in _dumps if twice.size else ():
            twice = twice[(twice < np.uint64(first)) | (twice >= np.uint64(end))]
        for address in np.unique(twice).tolist():
            if _contradict(address, stores):
                self._report(RACE, address)
                return


def _wrong_starts(arguments: Mapping[str, object]) -> str:
    """The first impossible place of the row starts of a launch that leaves its memory, as BECAUSE has it; empty if
    all could. Rows start at 0, none ends before it starts, and those of queries end where the queries do."""
    for name, value in arguments.items():
        if not (name.endswith("indptr") and isinstance(value, torch.Tensor) and value.dim() == 1 and len(value)):
            continue
        with torch._C.DisableTorchFunction():  # during a capture no one else may read device memory
            starts = value.tolist()
        if starts[0] != 0:
            return f"{name} 0 {starts[0]} 0"
        for column, (before, start) in enumerate(itertools.pairwise(starts), start=1):
            if start < before:
                return f"{name} {column} {start} {before}"
        queries = next((queries_of for other, queries_of in arguments.items() if other[:1] == "Q"), None)
        if name == "qo_indptr" and isinstance(queries, torch.Tensor) and starts[-1] > len(queries):
            return f"{name} {len(starts) - 1} {starts[-1]} {len(queries)}"
    return ""


def _contradict(address: int, stores: Sequence[tuple[Any, Any, tuple[int, ...]]]) -> bool:
    """True if two programs, or two lanes of one store, write different values to this address. A program's later store
    replaces what it stored before."""
    last: dict[tuple[int, ...], set[int]] = {}
    for addresses, bits, program in stores:
        stored = bits[addresses == np.uint64(address)]
        if stored.size:
            last[program] = set(stored.tolist())
    return len(set().union(*last.values())) > 1


def _within_one(addresses: Any, size: int, bounds: Sequence[tuple[int, int]]) -> bool:
    first, last = int(addresses.min()), int(addresses.max()) + size
    return any(low <= first and last <= high for low, high in bounds)


def _inside(addresses: Any, size: int, bounds: Sequence[tuple[int, int]]) -> Any:
    inside = np.zeros(addresses.shape, dtype=np.bool_)
    for low, high in bounds:
        if high - low >= size:
            inside |= (addresses >= np.uint64(low)) & (addresses <= np.uint64(high - size))
    return inside


_under_way: _Launch | None = None


def begin(kernel: str, memory: Sequence[Span], arguments: Mapping[str, object]) -> None:
    """A launch with this memory begins."""
    global _under_way, _launches
    _under_way = _Launch(kernel, memory, arguments)
    _launches += 1


def end() -> None:
    """It has ended, well or badly."""
    global _under_way
    if _under_way is not None:
        _under_way.end()
    _under_way = None


def kept(ptrs: Any, size: int) -> Any:
    """The stores of this many bytes that land in the launch's memory; None if that is not known."""
    return None if _under_way is None else _under_way.kept(ptrs, size)


def _watched_load(load: Any) -> Any:
    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        if _under_way is not None:
            mask = _under_way.allowed(ptrs, mask, _bytes(ptrs), LOAD)
        if touched.noting is not None:
            touched.noting.addressed(ptrs.data, mask.data, writes=False)
        return load(self, ptrs, mask, *rest)

    return create_masked_load


def _watched_store(store: Any) -> Any:
    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        if _under_way is not None:
            mask = _under_way.allowed(ptrs, mask, value.data.itemsize, STORE)
            # Programs that run at once do not meet: where they would, they are run one by one.
            if type(self) is triton_interpreter.InterpreterBuilder and argument_of(ptrs) != ANYWHERE:
                _under_way.keep(ptrs, value, mask)
        if touched.noting is not None:
            touched.noting.addressed(ptrs.data, mask.data, writes=True)
        return store(self, ptrs, value, mask, *rest)

    return create_masked_store


def _bytes(ptrs: Any) -> int:
    """The size of an element that a pointer points to."""
    return max(1, ptrs.get_element_ty().primitive_bitwidth // 8)


def install() -> None:
    builder = triton_interpreter.InterpreterBuilder
    builder.create_masked_load = _watched_load(builder.create_masked_load)
    builder.create_masked_store = _watched_store(builder.create_masked_store)
