"""Metadata of calls that read page tables, under the names that the other backends' metadata has: made of the tables,
lengths and query starts of a graph's calls, as a kernel reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from repro.cases.layout import Ints
from repro.traces.trace import Array
from runners.engines.standins.dense import memory_from, seen_keys
from runners.releases.backends.paged_calls import Call
from runners.releases.options.sliding import as_full

# Of a slot that lies outside of the page table's memory.
FOREIGN = -1
# Of each query, in the kernel's order: a slot, and the key's place where queries share a row of the page table, else
# SINGLE.
Slots = list[list[tuple[int, int]]]
SINGLE = -1
# Places of one call; those of the call that is merged with it come behind.
_PLACES = 1 << 32


def static(backends: Iterable[Any]) -> Mapping[str, torch.Tensor]:
    """The tensors that outlive a call, by backend: those of its dictionaries, and the schedule's buffer."""
    buffers: dict[str, object] = {}
    for number, backend in enumerate(backends):
        for name, value in vars(backend).items():
            parts = value.items() if isinstance(value, dict) and "metadata" in name else ()
            buffers |= {f"{name}.{part}.{number}": tensor for part, tensor in parts if isinstance(part, str)}
        buffers[f"schedule.{number}"] = getattr(backend, "_sched_meta_buf", None)
    return {name: tensor for name, tensor in buffers.items() if isinstance(tensor, torch.Tensor)}


def metadata(
    calls: Sequence[Call], *, queries: int, each: int, used: int, pool: Any = None
) -> Mapping[str, torch.Tensor]:
    """The metadata of a graph's calls. queries: of the whole batch; each: queries of a sequence; used: at least so many
    entries in kv_indices. Two calls whose results are merged count as one.

    kv_indptr, qo_indptr: [calls, sequences + 1]; kv_indices: [calls, used]; custom_mask: of the first call, whether
    each query reads each key of its sequence, flat; mask_indptr: [sequences + 1]; page_rows: [rows of all page tables,
    4], the number of the table, the row, its length and how many tokens it has room for. Of calls with a window all but
    page_rows begin with "window_", and where their layers have KV slots of their own, those are the full layers' slots
    of the same tokens: their pool is given then."""
    arrays: dict[str, Array] = {"page_rows": _page_rows(calls)}
    for is_windowed, prefix in ((True, "window_"), (False, "")):
        of_kind = [parts for parts in _merged(calls) if (max(parts[0].window) >= 0) is is_windowed]
        if of_kind:
            arrays |= {f"{prefix}{name}": array for name, array in _of_kind(of_kind, queries, each, used).items()}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if pool is not None and "window_kv_indices" in tensors:  # in a round a draft's calls may have no window
        # Those of the reserved page are the same in both, and FOREIGN has no owner.
        slots = tensors["window_kv_indices"]
        tensors["window_kv_indices"] = torch.where(slots < pool.page_size, slots, as_full(slots, pool))
    return tensors


def _of_kind(merged: Sequence[tuple[Call, ...]], queries: int, each: int, used: int) -> dict[str, Array]:
    sequences = [
        [_of_sequence(slots[n : n + each]) for n in range(0, queries, each)] for slots in map(_of(queries), merged)
    ]
    width = max(used, *(sum(len(keys) for keys, _ in call) for call in sequences))
    masks = [mask.reshape(-1) for _, mask in sequences[0]]
    return {
        "kv_indptr": np.stack([_starts(len(keys) for keys, _ in call) for call in sequences]),
        "kv_indices": np.stack([_row(chain.from_iterable(keys for keys, _ in call), width) for call in sequences]),
        "qo_indptr": np.stack([_query_starts(parts[0], queries // each) for parts in merged]),
        "custom_mask": np.concatenate(masks),
        "mask_indptr": _starts(mask.size for mask in masks),
    }


def _merged(calls: Sequence[Call]) -> Iterator[tuple[Call, ...]]:
    """Parts come in twos."""
    rest = iter(calls)
    for call in rest:
        yield (call, next(rest)) if call.is_part else (call,)


def _page_rows(calls: Sequence[Call]) -> Ints:
    rows = [
        (number, row, length, call.page_table.shape[1] * call.page_size)
        for number, call in enumerate(calls)
        for row, length in enumerate(call.lengths.tolist())
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def _of(queries: int) -> Any:
    def read(parts: tuple[Call, ...]) -> Slots:
        slots_of: Slots = [[] for _ in range(queries)]
        for number, call in enumerate(parts):
            for query, slots, places in _read(call):
                if 0 <= query < queries:
                    slots_of[query] += zip(
                        slots, (p if p == SINGLE else p + number * _PLACES for p in places), strict=True
                    )
        return slots_of

    return read


def _read(call: Call) -> Iterator[tuple[int, list[int], list[int]]]:
    """Query by query its slots and their places."""
    memory, size = memory_from(call.page_table).cpu().long(), call.page_size
    starts = call.query_starts.tolist()
    for sequence, length in enumerate(call.lengths.tolist()):
        first = sequence * call.page_table.stride(0)
        # A length that was never written may be any number: one page behind the memory marks it as too long.
        count = min(-(-max(0, length) // size), max(0, memory.numel() - first) + 1)
        pages = memory[first : first + count]
        pages = torch.cat((pages, pages.new_full((count - pages.numel(),), FOREIGN)))
        slots = torch.where(pages < 0, FOREIGN, pages * size)[:, None] + torch.arange(size) * (pages >= 0)[:, None]
        slots = slots.reshape(-1)[: max(0, length)]
        begin, end = starts[sequence : sequence + 2]
        places = torch.arange(slots.numel()) if end - begin > 1 else torch.full((slots.numel(),), SINGLE)
        left, right = call.window
        seen = seen_keys(end - begin, slots.numel(), causal=call.causal, left=left, right=right)
        for query in range(begin, end):
            visible = ... if seen is None else seen[query - begin]
            yield query, slots[visible].tolist(), places[visible].tolist()


def _of_sequence(queries: Slots) -> tuple[list[int], Ints]:
    """The keys that a sequence's queries read together, in the order in which they first appear, and which of them each
    query reads. A slot that one query reads twice is two keys."""
    keys: dict[tuple[int, int], int] = {}
    read = []
    for slots in queries:
        twice: Counter[int] = Counter()
        columns = []
        for slot, place in slots:
            if place == SINGLE:
                twice[slot] += 1
                place = -twice[slot]
            columns.append(keys.setdefault((slot, place), len(keys)))
        read.append(columns)
    mask = np.zeros((len(queries), len(keys)), dtype=np.int64)
    for row, columns in zip(mask, read, strict=True):
        row[columns] = 1
    return [slot for slot, _ in keys], mask


def _starts(sizes: Iterable[int]) -> Ints:
    return np.cumsum([0, *sizes], dtype=np.int64)


def _row(slots: Iterable[int], width: int) -> Ints:
    row = np.fromiter(slots, dtype=np.int64)
    return np.concatenate((row, np.full(width - row.size, FOREIGN)))


def _query_starts(call: Call, sequences: int) -> Ints:
    """The query starts of whole sequences, of a call that has a row for each query."""
    starts = np.array(call.query_starts.tolist(), dtype=np.int64)
    return starts[:: max(1, (starts.size - 1) // sequences)]
