"""At launch, every padded row of every input buffer holds its neutral value, so that kernels read and write reserved KV
slot 0 for it. Some buffers that no kernel uses as an address keep old values in a release (repro/cases/exemptions.py);
their padded rows must lie in the range of real rows."""

from __future__ import annotations

import numpy as np

from oracles.trace_index import Record, Wrong, conclude_each, equal, first_difference, passing, text
from repro.cases.case import Case
from repro.cases.exemptions import exempted
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "slot0_padding"
NO_LAUNCH = "no graph launched"
NO_PADDING = "no padding exercised"
NO_NEUTRAL = "neutral value not recorded"
# Lengths on the host, in a batch that has none.
UNPUBLISHED = "seq_lens_cpu of a batch without"


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """UNKNOWN also if graphs were launched but no batch was padded (catalogue.overall does not count that against a
    run), and if the neutral value of a padded buffer is unknown."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    unjudged: set[str] = set()
    stale: set[str] = set()
    rows = exempted(ORACLE, case.setup, record.release)
    launched = compared = 0
    for step in range(len(case.steps)):
        bs, raw_bs = record.scalar(step, Recorded.LAUNCH, "bs"), record.scalar(step, Recorded.LAUNCH, "raw_bs")
        if bs is None or raw_bs is None:
            continue
        launched += 1
        neutrals = record.path(step, Recorded.NEUTRAL)
        for name, buffer in record.buffers(step).items() if bs > raw_bs else ():
            if name not in neutrals:
                unjudged.add(name)
                continue
            padded = buffer[raw_bs:bs]
            neutral = np.broadcast_to(neutrals[name].reshape(-1)[0], padded.shape)
            is_unpublished = name == "seq_lens_cpu" and name not in record.path(step, Recorded.BEFORE)
            row = rows.get(UNPUBLISHED if is_unpublished else name)
            if row is None:
                cell = first_difference(step, name, padded, neutral, first_row=raw_bs)
            else:
                limits = row.within(case.setup) if row.within else (-np.inf, np.inf)
                cell = _first_outside(step, name, padded, limits, first_row=raw_bs, nan=bool(case.setup.nan_logits))
                if row.stale and not equal(padded, neutral):
                    stale.add(name)
            compared += 1
            if cell:
                wrongs.append(_wrong(cell, raw_bs, bs))
    if unjudged and not wrongs:
        detail = f"The neutral value of {', '.join(sorted(unjudged))} was not recorded."
        return (Verdict(oracle=ORACLE, status=Status.UNKNOWN, where=NO_NEUTRAL, detail=detail),)
    nothing = NO_PADDING if launched else NO_LAUNCH
    return passing(conclude_each(ORACLE, wrongs, compared, label="padded rows of", nothing=nothing), stale)


def _wrong(cell: Cell, raw_bs: int, bs: int) -> Wrong:
    detail = (
        f"Row {cell.row} of {cell.buffer} is padding in step {cell.step} "
        f"({raw_bs} request{'s' * (raw_bs > 1)} in a bucket of {bs}) "
        f"and holds {cell.got} instead of {cell.want}."
    )
    return Wrong(where=cell.buffer, detail=detail, cell=cell)


def _first_outside(
    step: int, buffer: str, got: Array, limits: tuple[float, float], *, first_row: int, nan: bool
) -> Cell | None:
    """The first cell outside [low, high); None if all are inside. nan: whether a NaN is inside, as real rows have
    some."""
    low, high = np.asarray(limits).tolist()
    outside = ~(((got >= low) & (got < high)) | (nan & (got != got))).reshape(-1)
    if not outside.any():
        return None
    flat = int(np.argmax(outside))
    row, column = divmod(flat, got.size // got.shape[0])
    want = f"{low}..{high - 1}"
    return Cell(
        step=step, buffer=buffer, row=first_row + row, column=column, got=text(got.reshape(-1)[flat]), want=want
    )
