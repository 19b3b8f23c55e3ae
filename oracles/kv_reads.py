"""Kernels of a launch, or of an eager pass without a graph, read all KV slots of the batch's requests, completely, and
no others. The expectation is a plain model over the request table that ignores sglang's plan. Recorded only by the
emulated engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.case import Case, Request, Setup
from repro.cases.layout import Ints
from repro.cases.reads import Reads, names_tree
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "kv_reads"
PARTLY = ".partly"
RESERVED = ".reserved"
UNPADDED = "a reserved slot is read without padding"


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """UNKNOWN if reads were not recorded, and if nothing had to be read."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step, case_step in enumerate(case.steps):
        read, table = record.path(step, Recorded.READS), record.table(step)
        if not read or table is None:
            continue
        facts = RUNNER_FACTS[case.setup.runner]
        kinds = [reads for reads in facts.reads if not (reads.prefix and facts.windowed and not case.setup.window)]
        alone = record.scalar(step, Recorded.LAUNCH, "bs") is None
        expected = {reads: _slots(case, reads, case_step.requests, table, alone=alone) for reads in kinds}
        compared += max((want.most.size for want in expected.values()), default=0)
        slots = {name: array for name, array in read.items() if not name.endswith(RESERVED)}
        of_step = [*_wrongs(case, step, slots, expected, table), *_of_padding(record, step, len(case_step.requests))]
        wrongs += (
            (replace(wrong, where=f"{wrong.where}, window") for wrong in of_step) if case.setup.window else of_step
        )
    return conclude_each(ORACLE, wrongs, compared, nothing="no reads noted")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The slots that must be read, and those that may be: kernels mask the slots that a window hides."""

    least: Ints
    most: Ints

    def holds(self, slots: Array) -> bool:
        return bool(np.isin(self.least, slots).all() and np.isin(slots, self.most).all())


def _slots(case: Case, reads: Reads, requests: tuple[Request, ...], table: Array, *, alone: bool) -> _Wanted:
    """The slots that all attention calls of one kind read for a batch. alone: in an eager pass, in which attention may
    get a tree's own keys and values directly instead of reading them."""
    least, most = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    # Where inference is deterministic, one kernel reads a prefix and the tree behind it alike, from the cache.
    besides = case.setup.num_draft_tokens if _reads_trees(case.setup, reads) else 0
    beside = case.setup.num_draft_tokens if alone and reads.of_tree and (besides or names_tree(case.setup)) else 0
    for request in requests:
        for call in range(reads.calls(case.setup)):
            positions = reads.positions(case.setup, request, call)
            tree = np.arange(request.seq_len, request.seq_len + besides)
            positions = np.concatenate([positions, np.broadcast_to(tree, (len(positions), besides))], axis=1)
            slots = table[request.slot][positions]
            count = besides + reads.least(case.setup, request, slots.shape[1] - besides)
            least.append(slots[:, slots.shape[1] - count : slots.shape[1] - beside].reshape(-1))
            most.append(slots.reshape(-1))
    must, may = (np.unique(np.concatenate(parts)) for parts in (least, most))
    return _Wanted(least=must[must >= case.setup.page_size], most=may[may >= case.setup.page_size])


def _reads_trees(setup: Setup, reads: Reads) -> bool:
    return setup.deterministic and reads.of_tree and not names_tree(setup)


def _wrongs(
    case: Case, step: int, read: Mapping[str, Array], expected: Mapping[Reads, _Wanted], table: Array
) -> Iterator[Wrong]:
    """Each layer, whose keys and values are recorded alternately, reads like one of the kinds of attention calls."""
    for name, whole in read.items():
        if name.endswith(PARTLY):
            if whole.size:
                yield _wrong(step, int(whole[0]), "read in part", "read whole or not at all", table)
            continue
        kinds = [want for reads, want in expected.items() if reads.layer in (None, int(name) // 2)]
        if any(want.holds(whole) for want in kinds):
            continue
        missing, more = np.setdiff1d(kinds[0].least, whole), np.setdiff1d(whole, kinds[0].most)
        if missing.size:
            yield _wrong(step, int(missing[0]), "not read", "read", table)
        if more.size:
            yield _wrong(step, int(more[0]), "read", "not read", table)


def _of_padding(record: Record, step: int, requests: int) -> Iterator[Wrong]:
    """Reserved slots hold what padded rows wrote: without a padded row every read of them is wrong."""
    if requests != record.scalar(step, Recorded.LAUNCH, "bs"):
        return
    for name, slots in record.path(step, Recorded.READS).items():
        if name.endswith(RESERVED) and slots.size:
            cell = Cell(step=step, buffer="kv", row=int(slots[0]), column=0, got="read", want="not read")
            detail = f"In step {step} reserved KV slot {slots[0]} is read, though no row is padded."
            yield Wrong(where=UNPADDED, detail=detail, cell=cell)


def _wrong(step: int, slot: int, got: str, want: str, table: Array) -> Wrong:
    places = np.argwhere(table == slot)
    owner = "position {1} of request slot {0}".format(*places[0]) if len(places) else "nobody's"
    cell = Cell(step=step, buffer="kv", row=slot, column=0, got=got, want=want)
    detail = f"In step {step} KV slot {slot}, {owner}, is {got} and must be {want}."
    return Wrong(where=f"a slot is {got}", detail=detail, cell=cell)
