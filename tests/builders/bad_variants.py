"""Recorded runs with one thing changed, each of which the oracle that is there for it must fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from repro.cases.case import Case
from repro.traces.finding import Status
from repro.traces.trace import Array, RecordedArray, Trace

Change = Callable[[Case, Trace, RecordedArray], Array | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """oracle: the one that must see it. path, names: the arrays of which the first that can be changed is. change: what
    becomes of it; None where there is nothing in it to change. wanted: what the oracle must say then."""

    oracle: str
    path: str
    names: tuple[str, ...]
    change: Change
    statuses: frozenset[Status] = frozenset({Status.FAIL})

    def of(self, case: Case, trace: Trace) -> Trace | None:
        """The trace with one array changed; None if it has none such."""
        for number, seen in enumerate(trace.seen):
            if seen.path == self.path and (not self.names or seen.name in self.names) and seen.step >= 0:
                array = self.change(case, trace, seen)
                if array is not None:
                    changed = replace(seen, array=array)
                    return replace(trace, seen=(*trace.seen[:number], changed, *trace.seen[number + 1 :]))
        return None

    def __str__(self) -> str:
        return f"{self.oracle}:{self.path}.{'|'.join(self.names) or 'any'}"


def real_rows(case: Case, seen: RecordedArray) -> int:
    return len(case.steps[seen.step].requests)


def padded_row(case: Case, trace: Trace, seen: RecordedArray) -> Array | None:
    """The first padded row names the slot of another request."""
    bs, raw_bs = (int(trace.path(seen.step, "launch")[name]) for name in ("bs", "raw_bs"))
    if bs == raw_bs:
        return None
    array = seen.array.copy()
    array[raw_bs] = 2
    return array


def real_row(case: Case, trace: Trace, seen: RecordedArray) -> Array:
    """The last real row is one more."""
    array = seen.array.copy()
    array[real_rows(case, seen) - 1] += 1
    return array


def output(case: Case, trace: Trace, seen: RecordedArray) -> Array | None:
    """An output's first value is another by far."""
    if seen.name.startswith("kv_") or not seen.array.size:
        return None
    array = seen.array.copy()
    array.reshape(-1)[0] += 100
    return array


def foreign_slot(case: Case, trace: Trace, seen: RecordedArray) -> Array | None:
    """A slot of a request that is not in the batch was written."""
    slots = {request.slot for request in case.steps[seen.step].requests}
    table = trace.path(-1, "input")["req_to_token"]
    foreign = next((slot for slot in range(1, len(table)) if slot not in slots), None)
    return None if foreign is None else np.append(seen.array, table[foreign, 0]).astype(seen.array.dtype)


def first_entry(case: Case, trace: Trace, seen: RecordedArray) -> Array:
    """The first entry is one more."""
    array = seen.array.copy()
    array.reshape(-1)[0] += 1
    return array


def none(case: Case, trace: Trace, seen: RecordedArray) -> Array:
    """Nothing but zeros."""
    return np.zeros_like(seen.array)


def larger_bucket(case: Case, trace: Trace, seen: RecordedArray) -> Array | None:
    """The largest bucket, where a smaller one would do."""
    return None if int(seen.array) == case.setup.max_bs else np.asarray(case.setup.max_bs)


def flipped(case: Case, trace: Trace, seen: RecordedArray) -> Array:
    """The first query does not see the first key."""
    array = seen.array.copy()
    array[0] = not array[0]
    return array


def foreign_target(case: Case, trace: Trace, seen: RecordedArray) -> Array | None:
    """The first target is the first token of a prefix, which is nobody's to write."""
    if not seen.array.size:
        return None
    array = seen.array.copy()
    array[0] = trace.path(-1, "input")["req_to_token"][case.steps[seen.step].requests[0].slot, 0]
    return array


def _of(oracle: str, change: Change, path: str, *names: str) -> Variant:
    return Variant(oracle=oracle, path=path, names=names, change=change)


def _variants() -> Iterator[Variant]:
    yield _of("slot0_padding", padded_row, "launch", "req_pool_indices")
    yield _of("staged", real_row, "launch", "seq_lens")
    yield _of("staged", real_row, "launch", "req_pool_indices")
    # What a session records more where the two differ, by which rounding noise is told from a bug, is not there.
    yield replace(_of("graph_equals_eager", output, "graph"), statuses=frozenset({Status.FAIL, Status.UNKNOWN}))
    yield _of("kv_writes", foreign_slot, "graph", "kv_slots")
    yield _of("kv_indices", first_entry, "metadata", "kv_indices")
    yield _of("kv_indices", first_entry, "metadata", "window_kv_indices")
    yield _of("metadata_shape", first_entry, "metadata", "kv_indptr")
    yield _of("metadata_shape", first_entry, "metadata", "window_kv_indptr")
    yield _of("bucket", larger_bucket, "launch", "bs")
    yield _of("callers_batch", real_row, "after_graph", "seq_lens")
    yield _of("tree_mask", flipped, "metadata", "custom_mask")
    yield _of("kv_moves", foreign_target, "verify", "targets")
    # How far its logit lies behind the best one is not there, by which a tie is told from a bug.
    yield replace(_of("text", first_entry, "served", "tokens"), statuses=frozenset({Status.FAIL, Status.UNKNOWN}))
    yield _of("progress", none, "served", "ended")
    yield _of("metadata_once", first_entry, "padding", "requests")
    yield _of("metadata_once", first_entry, "attention", "planned_tokens")


VARIANTS = tuple(_variants())
