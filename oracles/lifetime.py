"""No output of a replay is read after a later replay has overwritten its memory. Recorded only by the emulated
engine."""

from __future__ import annotations

import re

from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Trace

ORACLE = "lifetime"
REPLAYS = "replays"


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """A verdict for each graph and reader."""
    seen = Record(trace).path(-1, Recorded.LIFETIME)
    wrongs = []
    for name, words in seen.items():
        if name == REPLAYS:
            continue
        reader, _, between = words.tobytes().decode().partition(", behind ")
        graph = name.partition(" ")[0]
        cell = Cell(step=-1, buffer=f"output of {graph}", row=-1, column=-1, got=between, want="no replay between")
        detail = f"An output of {graph} is read at {reader}, when {between} had been replayed over its memory."
        # Lines move from release to release.
        where = re.sub(r":\d+$", "", reader)
        wrongs.append(Wrong(where=f"{graph} read by {where}", detail=detail, cell=cell))
    replays = int(seen[REPLAYS]) if seen else 0
    return conclude_each(ORACLE, wrongs, replays, nothing="no replay was watched")
