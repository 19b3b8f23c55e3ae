"""A call does not depend on earlier calls: the same batch gives the same outputs and KV writes from the state that
another history left, and no kernel reads what that history changed. Recorded only by the emulated engine.

Stale values that no kernel reads are no failure; the trace's fact `stale, no reader known` names them. Input buffers
with a known neutral value are left to slot0_padding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set

from oracles.trace_index import Record, Wrong, conclude_each, passing, text
from repro.cases.case import Case
from repro.cases.exemptions import Exemption, exempted
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "history"
COMPARED, LAUNCHES, KV = "compared", "launches", "kv"
VALUES = ".values"
INDEXING = frozenset({"kv_indptr", "kv_indices", "window_kv_indptr", "window_kv_indices"})
# Buffers of FlashAttention 3, and under which name they are recorded.
AS = {"page_table": "kv_indices"}
LATER_LAYER = re.compile(r"_list\.[1-9]")  # of which no metadata is recorded
OUTPUT, BUFFERS = "output ", "buffers."


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """UNKNOWN if no call was run from another history."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    stale: set[str] = set()
    compared = 0
    rows = exempted(ORACLE, case.setup, record.release)
    for step in range(len(case.steps)):
        compared += record.scalar(step, Recorded.HISTORY, COMPARED) or 0
        passed = set(_passed(record, step, rows, len(case.steps[step].requests)))
        wrongs += _wrongs(record, step, passed)
        stale |= {_last(name) for name in passed}
    return passing(conclude_each(ORACLE, wrongs, compared, nothing="no call in another history"), stale)


def _passed(record: Record, step: int, rows: Mapping[str, Exemption], real: int) -> Iterator[str]:
    """The buffers that may differ in padded rows and differ only there."""
    for name, places in record.path(step, Recorded.HISTORY).items():
        if _last(name) in rows and not name.endswith(VALUES) and all(int(row) >= real for row in places[:, 0]):
            yield name


def _wrongs(record: Record, step: int, passed: Set[str]) -> Iterator[Wrong]:
    differences = record.path(step, Recorded.HISTORY)
    # Every row of these is held to what it should be by kv_indices and metadata_shape.
    indexing = INDEXING & record.path(step, Recorded.METADATA).keys()
    judged_elsewhere = record.path(step, Recorded.NEUTRAL).keys()
    for name, places in differences.items():
        if name in (COMPARED, LAUNCHES) or name.endswith(VALUES) or name in passed:
            continue
        # The buffers of later layers are named by where they are, and hold the same as the first one's.
        if (name.rpartition(BUFFERS)[2] if BUFFERS in name else name) in judged_elsewhere:
            continue
        if not LATER_LAYER.search(name) and _last(name) in indexing:
            continue
        if name == KV:
            slot = int(places[0])
            cell = Cell(step=step, buffer="kv", row=slot, column=0, got="other bits", want="the same")
            detail = f"In step {step} KV slot {slot} holds other bits after another history."
            yield Wrong(where="KV values", detail=detail, cell=cell)
        elif places.size:
            yield _wrong(step, name, places, differences.get(name + VALUES))
    if lacking := record.scalar(step, Recorded.HISTORY, LAUNCHES):
        cell = Cell(step=step, buffer="launches", row=0, column=0, got=str(lacking), want="0")
        detail = f"In step {step} {abs(lacking)} launches more or less took place after another history."
        yield Wrong(where="number of launches", detail=detail, cell=cell)


def _wrong(step: int, name: str, places: Array, values: Array | None) -> Wrong:
    row, column = (int(place) for place in places[0])
    now, then = ("other", "other") if values is None else (text(value) for value in values[0])
    cell = Cell(step=step, buffer=name, row=row, column=column, got=now, want=then)
    what = "is read and" if not name.startswith(OUTPUT) else ""
    detail = f"In step {step} {name}[{row},{column}] {what} is {now}; after another history it is {then}."
    return Wrong(where=_coarse(name), detail=" ".join(detail.split()), cell=cell)


def _last(name: str) -> str:
    """The recorded name of an attention backend's buffer."""
    last = _coarse(name).rpartition(".")[2].removeprefix("cuda_graph_")
    return AS.get(last, last)


def _coarse(name: str) -> str:
    """The name without the numbers of layers, steps and buckets."""
    return ".".join(part for part in name.split(".") if not part.isdigit())
