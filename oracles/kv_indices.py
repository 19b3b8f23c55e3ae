"""The kv_indices that attention is given are those that req_to_token says, for every draft step and row, and the
guard bands around the runner's buffers are untouched."""

from __future__ import annotations

import numpy as np

from oracles.record import Record, Wrong, conclude, equal, first_difference, text
from repro.case import Case, Setup
from repro.finding import Cell, Verdict
from repro.layout import Ints, draft_positions, pool_tokens
from repro.trace import Array, Trace

ORACLE = "kv_indices"
NARROW = "kv_indices row too narrow"
REAL = "segment of a real row"
PADDED = "segment of a padded row"
INTACT = "intact"  # how many bytes of guard bands were compared where they lie, and found as they were filled
WANT = ".want"  # the suffix under which a guard band's filling is recorded


def judge(case: Case, trace: Trace) -> Verdict:
    """An overflowing row corrupts its neighbours and the guard as well, so a row that is too narrow is told
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
        got = record.path(step, "metadata").get("kv_indices")
        rows = _rows(case, record, step)
        if got is None or table is None or not rows:
            continue
        compared += 1
        wrongs += _judge_step(case.setup, step, got, table, rows, len(case.steps[step].requests))
    guards = sorted({wrong.where for wrong in wrongs} - {NARROW, REAL, PADDED})
    nothing = "neither kv_indices nor guard bands recorded"
    return conclude(ORACLE, wrongs, compared, nothing=nothing, order=(NARROW, *guards, REAL, PADDED))


def _rows(case: Case, record: Record, step: int) -> list[tuple[int, int]]:
    """(request slot, seq_len) of every row of the launched bucket; a padded row is slot 0 with the neutral length.
    Empty if no graph was launched; only the real rows if the neutral length is not known."""
    bs, neutral = record.scalar(step, "launch", "bs"), record.scalar(step, "neutral", "seq_lens")
    if bs is None:
        return []
    real = [(request.slot, request.seq_len) for request in case.steps[step].requests]
    return real + [(0, neutral)] * (bs - len(real)) if neutral is not None else real


def _expected(setup: Setup, table: Array, rows: list[tuple[int, int]]) -> list[Ints]:
    """Per draft step, the indices of all rows, request by request and within it branch by branch."""
    blocks = []
    for slot, seq_len in rows:
        prefix = np.broadcast_to(table[slot, :seq_len], (setup.topk, seq_len))
        drafts = table[slot, draft_positions(setup, seq_len)[:, : setup.num_steps - 1]]
        blocks.append(np.concatenate([prefix, drafts], axis=1))
    return [
        np.concatenate(
            [block[:, : seq_len + i + 1].reshape(-1) for block, (_, seq_len) in zip(blocks, rows, strict=True)]
        )
        for i in range(setup.num_steps - 1)
    ]


def _judge_step(
    setup: Setup, step: int, got: Array, table: Array, rows: list[tuple[int, int]], real: int
) -> list[Wrong]:
    wrongs = []
    width = got.shape[1]
    for i, want in enumerate(_expected(setup, table, rows)):
        if want.size > width:
            cell = Cell(step=step, buffer="kv_indices", row=i, column=width, got="no room", want=text(want[width]))
            detail = f"Draft step {i} of step {step} needs {want.size} entries of a kv_indices row that has {width}."
            wrongs.append(Wrong(where=NARROW, detail=detail, cell=cell))
        held = min(want.size, width)
        differs = np.flatnonzero(got[i, :held] != want[:held])
        if differs.size:
            wrongs.append(_entry_wrong(setup, step, i, int(differs[0]), got, want, rows, real))
    return wrongs


def _entry_wrong(
    setup: Setup, step: int, i: int, column: int, got: Array, want: Ints, rows: list[tuple[int, int]], real: int
) -> Wrong:
    ends = np.cumsum([setup.topk * (seq_len + i + 1) for _, seq_len in rows])
    request = int(np.searchsorted(ends, column, side="right"))
    length = rows[request][1] + i + 1
    branch, position = divmod(column - int(ends[request]) + setup.topk * length, length)
    found = int(got[i, column])
    outside = "" if 0 <= found < pool_tokens(setup) + setup.page_size else " (outside the pool)"
    cell = Cell(step=step, buffer="kv_indices", row=i, column=column, got=str(found), want=str(int(want[column])))
    detail = (
        f"In draft step {i} of step {step}, entry {position} of row {request} branch {branch} "
        f"({'padded' if request >= real else 'real'}) points to KV slot {found}{outside} instead of {cell.want}."
    )
    return Wrong(where=PADDED if request >= real else REAL, detail=detail, cell=cell)


def _guard_wrong(step: int, name: str, band: Array, filling: Array) -> Wrong:
    cell = first_difference(step, f"{name} guard", band.reshape(1, -1), filling.reshape(1, -1))
    assert cell is not None  # the caller saw a difference
    detail = f"Entry {cell.column} of the guard band of {name} is {cell.got} after step {step}, not {cell.want}."
    return Wrong(where=f"guard band of {name}", detail=detail, cell=cell)
