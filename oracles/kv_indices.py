"""The kv_indices of every attention call and row are those of req_to_token, and the guard bands around the runner's
buffers are unchanged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from oracles.row_width import ROWS
from oracles.trace_index import Bools, Record, Wrong, conclude, equal, first_difference, text
from repro.cases.case import Case, Request, Setup
from repro.cases.layout import pool_tokens
from repro.cases.reads import Reads
from repro.cases.rows.serving import FREED
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "kv_indices"
NARROW = "kv_indices row too narrow"
REAL = "segment of a real row"
PADDED = "segment of a padded row"
GUARD = "guard band of"
INTACT = "intact"  # how many bytes of guard bands were compared where they lie, and found as they were filled
WANT = ".want"  # the suffix under which a guard band's filling is recorded


def judge(case: Case, trace: Trace) -> Verdict:
    """An overflowing row also corrupts its neighbours and the guard band, so rows that are too narrow are reported
    first, then guard bands, then single entries. A used entry outside the pool is a wrong entry."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step in range(len(case.steps)):
        compared += bool(record.scalar(step, Recorded.GUARD, INTACT))
        table = record.table(step)
        for name, band in record.path(step, Recorded.GUARD).items():
            filling = record.path(step, Recorded.GUARD).get(name + WANT)
            if filling is None:
                continue
            compared += 1
            if not equal(band, filling):
                wrongs.append(_guard_wrong(step, name, band, filling))
        rows = _rows(case, record, step)
        for each in RUNNER_FACTS[case.setup.runner].reads:
            name = f"{each.prefix}kv_indices"
            metadata = record.path(step, Recorded.METADATA)
            got, indptr = metadata.get(name), metadata.get(f"{each.prefix}kv_indptr")
            if got is None or table is None or not rows:
                continue
            compared += 1
            lengths = None if indptr is None else np.diff(indptr)
            freed = record.path(step, Recorded.INPUT).get(FREED) if each.whose else None
            read = _Read(name=name, got=got, lengths=lengths, paged=ROWS in metadata, reads=each, freed=freed)
            wrongs += _judge_step(case.setup, step, read, table, rows, len(case.steps[step].requests))
    guards = sorted({wrong.where for wrong in wrongs if wrong.where.startswith(GUARD)})
    nothing = "neither kv_indices nor guard bands recorded"
    order = (NARROW, f"{NARROW}, window", *guards, REAL, PADDED)
    return conclude(ORACLE, wrongs, compared, nothing=nothing, order=order)


def _rows(case: Case, record: Record, step: int) -> list[Request]:
    """Every row of the launched bucket; a padded row is slot 0 with the neutral length. Only the real rows if no graph
    was launched or the neutral length is unknown."""
    bs, neutral = record.scalar(step, Recorded.LAUNCH, "bs"), record.scalar(step, Recorded.NEUTRAL, "seq_lens")
    real = list(case.steps[step].requests)
    if bs is None:
        return real
    return real + [Request(slot=0, seq_len=neutral, data=0)] * (bs - len(real)) if neutral is not None else real


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The indices of one kind of attention calls, and those expected. lengths: of its sequences, by call; None where
    that is not recorded. paged: whether it comes from page tables. freed: requests without slots in sliding layers."""

    name: str
    got: Array
    lengths: Array | None
    paged: bool
    reads: Reads
    freed: Array | None = None

    def positions(self, setup: Setup, row: Request, number: int, call: int) -> Array:
        """[sequences of the request, length]. If the row may have more entries than needed, as many as it has."""
        positions = self.reads.positions(setup, row, call)
        length = positions.shape[1]
        least = self.reads.least(setup, row, length)
        if least == length or self.lengths is None:
            return positions
        return positions[:, length - min(length, max(least, int(self.lengths[call, number]))) :]


def _judge_step(setup: Setup, step: int, read: _Read, table: Array, rows: list[Request], real: int) -> list[Wrong]:
    wrongs = []
    name, got, width = read.name, read.got, read.got.shape[1]
    for call in range(read.reads.calls(setup)):
        blocks = [table[row.slot][read.positions(setup, row, number, call)] for number, row in enumerate(rows)]
        want = np.concatenate([block.reshape(-1) for block in blocks])
        if want.size > width:
            cell = Cell(step=step, buffer=name, row=call, column=width, got="no room", want=text(want[width]))
            detail = f"Attention call {call} of step {step} needs {want.size} entries of a {name} row that has {width}."
            wrongs.append(Wrong(where=NARROW + read.reads.whose, detail=detail, cell=cell))
        room = min(want.size, width)
        wrong_ones = got[call, :room] != want[:room]
        if read.paged:
            wrong_ones &= ~_reserved(setup, blocks, real, got[call, :room])
        if read.freed is not None:
            sizes = [block.size for block in blocks[: len(read.freed)]]
            of_freed = np.repeat(read.freed.astype(np.bool_), sizes)[:room]
            wrong_ones[: of_freed.size] &= ~of_freed
        differs = np.flatnonzero(wrong_ones)
        if differs.size:
            column = int(differs[0])
            wrong = _entry_wrong(setup, step, name, call, column, int(got[call, column]), blocks, real)
            wrongs.append(replace(wrong, where=wrong.where + read.reads.whose))
    return wrongs


def _reserved(setup: Setup, blocks: list[Array], real: int, actual: Array) -> Bools:
    """Entries of padded rows that are right whatever they are: kernels that read whole pages may read any slots of page
    0."""
    got = actual.astype(np.int64)
    padded = np.arange(got.size) >= sum(block.size for block in blocks[:real])
    return np.asarray(padded & (got >= 0) & (got < setup.page_size), dtype=np.bool_)


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
    return Wrong(where=f"{GUARD} {name}", detail=detail, cell=cell)
