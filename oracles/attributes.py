"""A call leaves the attributes of workers, model runners, graph runners and attention backends unchanged, except for
those about the last call. Backends keep the KV pools that they were built with, and every attribute that a method reads
is set somewhere.

An attribute that no published release has, such as a new cache's key, may change. It is restored together with memory,
so the other oracles see the consequences of a wrong key.
"""

from __future__ import annotations

import re

from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.attribute_names import LAST_CALL, PUBLISHED
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Trace

ORACLE = "attributes"
COMPARED = "compared"
# What some release reads and never makes, where no runner comes by.
NEVER_READ = {
    f"{kind}.tp_rank": "what 0.5.16 says of LoRA weights that were checked; it means `ps.tp_rank`"
    for kind in ("TpModelWorker", "FrozenKVMTPDraftWorker")
}


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """UNKNOWN if nothing was compared. An attribute is recorded by its path, with its old and new value as UTF-8."""
    record = Record(trace)
    wrongs = [_unmade(name) for name in sorted(record.path(-1, Recorded.UNMADE).keys() - NEVER_READ - {COMPARED})]
    compared = record.scalar(-1, Recorded.UNMADE, COMPARED) or 0
    for step in range(len(case.steps)):
        compared += record.scalar(step, Recorded.ATTRIBUTES, COMPARED) or 0
        for path, words in record.path(step, Recorded.ATTRIBUTES).items():
            names = re.sub(r"\[[^\]]*\]", "", path).split(".")
            about_last_call = LAST_CALL.keys() & {*names, ".".join(names[-2:])}
            # The first is a worker's role, or a backend's class.
            if path == COMPARED or about_last_call or not PUBLISHED.issuperset(names[1:]):
                continue
            before, _, after = words.tobytes().decode().partition(" -> ")
            cell = Cell(step=step, buffer=path, row=0, column=0, got=after, want=before)
            detail = f"The call of step {step} leaves {path} {after}; before it was {before}."
            wrongs.append(Wrong(where=names[-1], detail=detail, cell=cell))
    return conclude_each(ORACLE, wrongs, compared, nothing="no attributes compared")


def _unmade(name: str) -> Wrong:
    attribute = re.sub(r"[0-9]+", "", name.rpartition(".")[2])
    cell = Cell(step=-1, buffer=name, row=-1, column=-1, got="absent", want="an attribute")
    return Wrong(where=f"never made: {attribute}", detail=f"A method reads {name}, which nobody has made.", cell=cell)
