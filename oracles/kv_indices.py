"""The kv_indices that attention is given are those that req_to_token says, for every attention call and row, and the
guard bands around the runner's buffers are untouched."""

from __future__ import annotations

import numpy as np

from oracles.trace_index import Bools, Record, Wrong, conclude, equal, first_difference, text
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case, Request, Setup
from repro.cases.layout import pool_tokens
from repro.cases.reads import Reads
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import Cell, Verdict
from repro.traces.trace import Array, Trace

ORACLE = "kv_indices"
NARROW = "kv_indices row too narrow"
REAL = "segment of a real row"
PADDED = "segment of a padded row"
INTACT = "intact"  # how many bytes of guard bands were compared where they lie, and found as they were filled
WANT = ".want"  # the suffix under which a guard band's filling is recorded


def judge(case: Case, trace: Trace) -> Verdict:
    """An overflowing row corrupts its neighbours and the guard as well, so a row that is too narrow is reported
    first, then guard bands, then single entries. A used entry outside the pool is a wrong entry."""
    record = Record(trace)
    table = record.path(-1, "input").get("req_to_token")
    wrongs: list[Wrong] = []
    compared = 0
    for step in range(len(case.steps)):
        compared += bool(record.scalar(step, "guard", INTACT))
        for name, band in record.path(step, "guard").items():
            filling = record.path(step, "guard").get(name + WANT)
            if filling is None:
                continue
            compared += 1
            if not equal(band, filling):
                wrongs.append(_guard_wrong(step, name, band, filling))
        rows = _rows(case, record, step)
        for each in RUNNER_FACTS[case.setup.runner].reads:
            name = f"{each.prefix}kv_indices"
            got = record.path(step, "metadata").get(name)
            if got is None or table is None or not rows:
                continue
            compared += 1
            wrongs += _judge_step(case.setup, step, name, got, table, rows, len(case.steps[step].requests), each)
    guards = sorted({wrong.where for wrong in wrongs} - {NARROW, REAL, PADDED})
    nothing = "neither kv_indices nor guard bands recorded"
    return conclude(ORACLE, wrongs, compared, nothing=nothing, order=(NARROW, *guards, REAL, PADDED))


def _rows(case: Case, record: Record, step: int) -> list[Request]:
    """Every row of the launched bucket; a padded row is slot 0 with the neutral length.
    Empty if no graph was launched; only the real rows if the neutral length is not known."""
    bs, neutral = record.scalar(step, "launch", "bs"), record.scalar(step, "neutral", "seq_lens")
    if bs is None:
        return []
    real = list(case.steps[step].requests)
    return real + [Request(slot=0, seq_len=neutral, data=0)] * (bs - len(real)) if neutral is not None else real


def _judge_step(
    setup: Setup, step: int, name: str, got: Array, table: Array, rows: list[Request], real: int, reads: Reads
) -> list[Wrong]:
    wrongs = []
    width = got.shape[1]
    for call in range(reads.calls(setup)):
        blocks = [table[row.slot][reads.positions(setup, row, call)] for row in rows]
        want = np.concatenate([block.reshape(-1) for block in blocks])
        if want.size > width:
            cell = Cell(step=step, buffer=name, row=call, column=width, got="no room", want=text(want[width]))
            detail = f"Attention call {call} of step {step} needs {want.size} entries of a {name} row that has {width}."
            wrongs.append(Wrong(where=NARROW, detail=detail, cell=cell))
        held = min(want.size, width)
        differs = np.flatnonzero((got[call, :held] != want[:held]) & ~_reserved(setup, blocks, real, got[call, :held]))
        if differs.size:
            column = int(differs[0])
            wrongs.append(_entry_wrong(setup, step, name, call, column, int(got[call, column]), blocks, real))
    return wrongs


def _reserved(setup: Setup, blocks: list[Array], real: int, found: Array) -> Bools:
    """Entries of padded rows that are right whatever they are: what reads whole pages reads any slots of page 0."""
    got = found.astype(np.int64)
    padded = np.arange(got.size) >= sum(block.size for block in blocks[:real])
    reserved = padded & (got >= 0) & (got < setup.page_size)
    return np.asarray(reserved & BACKEND_FACTS[setup.backend].reads_pages, dtype=np.bool_)


def _entry_wrong(
    setup: Setup, step: int, name: str, call: int, column: int, entry: int, blocks: list[Array], real: int
) -> Wrong:
    """blocks: per row what it reads, [sequences, length]."""
    ends = np.cumsum([block.size for block in blocks])
    row = int(np.searchsorted(ends, column, side="right"))
    place = column - int(ends[row]) + blocks[row].size
    sequence, position = divmod(place, blocks[row].shape[1])
    outside = "" if 0 <= entry < pool_tokens(setup) + setup.page_size else " (outside the pool)"
    want = str(int(blocks[row].reshape(-1)[place]))
    cell = Cell(step=step, buffer=name, row=call, column=column, got=str(entry), want=want)
    detail = (
        f"In {name} of attention call {call} of step {step}, entry {position} of row {row} branch {sequence} "
        f"({'padded' if row >= real else 'real'}) points to KV slot {entry}{outside} instead of {want}."
    )
    return Wrong(where=PADDED if row >= real else REAL, detail=detail, cell=cell)


def _guard_wrong(step: int, name: str, band: Array, filling: Array) -> Wrong:
    cell = first_difference(step, f"{name} guard", band.reshape(1, -1), filling.reshape(1, -1))
    assert cell is not None  # the caller saw a difference
    detail = f"Entry {cell.column} of the guard band of {name} is {cell.got} after step {step}, not {cell.want}."
    return Wrong(where=f"guard band of {name}", detail=detail, cell=cell)
