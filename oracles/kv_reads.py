"""Kernels of a launch read the KV slots that the batch's requests must read, whole, and no others: a plain model over
the request table, without a look at what sglang planned. Recorded by the emulated engine alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.case import Case, Request
from repro.cases.layout import Ints
from repro.cases.reads import Reads
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import Cell, Verdict
from repro.traces.trace import Array, Trace

ORACLE = "kv_reads"
PATH = "reads"
PARTLY = ".partly"


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """UNKNOWN where reads were not noted, and where nothing had to be read."""
    record = Record(trace)
    table = record.path(-1, "input").get("req_to_token")
    wrongs: list[Wrong] = []
    compared = 0
    for step, asked in enumerate(case.steps):
        found = record.path(step, PATH)
        if not found or table is None:
            continue
        kinds = RUNNER_FACTS[case.setup.runner].reads
        wanted = {reads: _slots(case, reads, asked.requests, table) for reads in kinds}
        compared += max((want.size for want in wanted.values()), default=0)
        wrongs += _wrongs(case, step, found, wanted, table)
    return conclude_each(ORACLE, wrongs, compared, nothing="no reads noted")


def recorded(trace: Trace) -> bool:
    return any(seen.path == PATH for seen in trace.seen)


def _slots(case: Case, reads: Reads, requests: tuple[Request, ...], table: Array) -> Ints:
    """What all attention calls of one kind read for a batch."""
    rows = [
        table[request.slot][reads.positions(case.setup, request, call).reshape(-1)]
        for request in requests
        for call in range(reads.calls(case.setup))
    ]
    slots = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *rows]))
    return slots[slots >= case.setup.page_size]


def _wrongs(
    case: Case, step: int, found: Mapping[str, Array], wanted: Mapping[Reads, Ints], table: Array
) -> Iterator[Wrong]:
    """A layer, of keys and values that are recorded by turns, reads as one of the kinds of attention calls does."""
    for name, whole in found.items():
        if name.endswith(PARTLY):
            if whole.size:
                yield _wrong(step, int(whole[0]), "read in part", "read whole or not at all", table)
            continue
        kinds = [want for reads, want in wanted.items() if reads.layer in (None, int(name) // 2)]
        if any(np.array_equal(whole, want) for want in kinds):
            continue
        want = kinds[0]
        missing, more = np.setdiff1d(want, whole), np.setdiff1d(whole, want)
        if missing.size:
            yield _wrong(step, int(missing[0]), "not read", "read", table)
        if more.size:
            yield _wrong(step, int(more[0]), "read", "not read", table)


def _wrong(step: int, slot: int, got: str, want: str, table: Array) -> Wrong:
    places = np.argwhere(table == slot)
    owner = "position {1} of request slot {0}".format(*places[0]) if len(places) else "nobody's"
    cell = Cell(step=step, buffer="kv", row=slot, column=0, got=got, want=want)
    detail = f"In step {step} KV slot {slot}, {owner}, is {got} and must be {want}."
    return Wrong(where=f"a slot is {got}", detail=detail, cell=cell)
