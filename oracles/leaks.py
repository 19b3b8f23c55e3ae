"""After the last request, KV slots, request slots and locks of the tree cache are as at the start, except for what that
cache can evict; after a flush they are equal. Nothing is freed twice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "leaks"
FREE, EVICTABLE = "free KV slots", "evictable KV slots"
PAGES = "different free pages"
STATES, EVICTABLE_STATES = "state slots", "evictable state slots"
SLIDING, LOCKED = " of sliding layers", "locked"
FREES = "frees"
ENDED, FLUSHED = 1, 2  # moments of what is recorded, behind the start
MOMENTS = {ENDED: "when all requests have ended", FLUSHED: "after a flush"}


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """A verdict for each quantity that differs from the start."""
    record = Record(trace)
    holdings = record.path(-1, Recorded.HOLDINGS)
    wrongs = [*_freed_twice(record.path(-1, Recorded.FREED))]
    wrongs += [wrong for moment in MOMENTS for wrong in _changed(holdings, moment, case.setup.page_size)]
    return conclude_each(ORACLE, wrongs, len(holdings), nothing="requests were still running")


def _freed_twice(freed: Mapping[str, Array]) -> Iterator[Wrong]:
    for name, words in freed.items():
        if name != FREES:
            what, _, again = name.partition(" at ")
            first = words.tobytes().decode()
            cell = Cell(step=-1, buffer=what, row=-1, column=-1, got=again, want="not free")
            detail = f"{what} are freed at {again}, which are free since {first}."
            # Lines move from release to release.
            yield Wrong(where=f"{what} freed twice at {re.sub(r':[0-9]+$', '', again)}", detail=detail, cell=cell)


def _changed(holdings: Mapping[str, Array], moment: int, page_size: int) -> Iterator[Wrong]:
    for name, counts in holdings.items():
        start, got = int(counts[0]), int(counts[moment])
        kind, of_sliding, _ = name.partition(SLIDING)
        if moment == ENDED:
            # What is cached is not free, and can be.
            if name.endswith(STATES):
                cached = int(holdings[EVICTABLE_STATES][moment])
                start += 0 if name.startswith(LOCKED) else cached if name == EVICTABLE_STATES else -cached
            else:
                cached = int(holdings[f"{EVICTABLE}{of_sliding}"][moment])
                start -= {FREE: cached, EVICTABLE: -cached, PAGES: cached // page_size}.get(kind, 0)
        if got != start:
            cell = Cell(step=-1, buffer=name, row=0, column=moment, got=str(got), want=str(start))
            detail = f"There are {got} {name} {MOMENTS[moment]}, and were {start}."
            yield Wrong(where=name, detail=detail, cell=cell)
