"""The kv_indptr of attention has a row for each query sequence, each as long as its sequence; qo_indptr, if there is
one, gives each row its queries."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from oracles.trace_index import Record, Wrong, conclude
from repro.cases.case import Case, Request, Setup
from repro.cases.reads import Reads
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "metadata_shape"
SHORT = "kv_indptr has fewer rows than the query"
START = "kv_indptr does not start at 0"
QUERIES = "queries of a row"
REAL = "length of a real row"
PADDED = "length of a padded row"
_ANYBODY = Request(slot=0, seq_len=1, data=0)
PAST = "last entry past the end of a kv_indices row"
Ints = npt.NDArray[np.int64]


def judge(case: Case, trace: Trace) -> Verdict:
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step, reads in itertools.product(range(len(case.steps)), RUNNER_FACTS[case.setup.runner].reads):
        prefix = reads.prefix
        metadata, bs = record.path(step, Recorded.METADATA), record.scalar(step, Recorded.LAUNCH, "bs")
        indptr, indices = metadata.get(f"{prefix}kv_indptr"), metadata.get(f"{prefix}kv_indices")
        bs = len(case.steps[step].requests) if bs is None else bs  # of an eager pass that no graph stands beside
        if indptr is None:
            continue
        compared += 1
        for call in range(reads.calls(case.setup)):
            real = [_Length.of(reads, case.setup, request, call) for request in case.steps[step].requests]
            padded = _padded_lengths(case, record, step, call, reads)
            branches = reads.positions(case.setup, _ANYBODY, call).shape[0]
            wrong = _judge_row(branches, real, padded, step, call, bs, indptr[call].astype(np.int64))
            if reads.queries and "qo_indptr" in metadata:
                wrong = _judge_queries(metadata["qo_indptr"][call], reads.queries(case.setup), step, call, bs) or wrong
            if wrong is None and indices is not None:
                wrong = _judge_end(bs * branches, step, call, indptr[call], indices.shape[1])
            if wrong:
                # Layers with a window have row starts of their own; those of queries are everybody's.
                buffer = wrong.cell.buffer if wrong.where == QUERIES else prefix + wrong.cell.buffer
                cell = replace(wrong.cell, buffer=buffer)
                wrongs.append(replace(wrong, where=wrong.where + reads.whose, cell=cell))
    order = (SHORT, START, QUERIES, REAL, PADDED, PAST)
    return conclude(ORACLE, wrongs, compared, nothing="no kv_indptr recorded", order=order)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Length:
    """The range of lengths that a request's sequence may have."""

    least: int
    most: int

    @classmethod
    def of(cls, reads: Reads, setup: Setup, request: Request, call: int) -> _Length:
        length = reads.positions(setup, request, call).shape[1]
        return cls(least=reads.least(setup, request, length), most=length)


def _judge_row(
    branches: int, real: list[_Length], padded: list[_Length], step: int, call: int, bs: int, indptr: Ints
) -> Wrong | None:
    """One attention call. A length is positive, so equal lengths mean a rising kv_indptr whose last used entry is
    the number of entries used. branches: sequences of a request. padded: lengths that padding may have, any if none is
    known."""
    queries = bs * branches
    if indptr.size < queries + 1:
        cell = Cell(step=step, buffer="kv_indptr", row=call, column=-1, got=str(indptr.size), want=str(queries + 1))
        detail = f"Attention call {call} of step {step} has {queries} query rows, kv_indptr {indptr.size} entries."
        return Wrong(where=SHORT, detail=detail, cell=cell)
    if indptr[0] != 0:
        cell = Cell(step=step, buffer="kv_indptr", row=call, column=0, got=str(indptr[0]), want="0")
        detail = f"The kv_indptr of attention call {call} of step {step} starts at {indptr[0]}."
        return Wrong(where=START, detail=detail, cell=cell)
    got = np.diff(indptr[: queries + 1])
    rows = np.arange(queries) // branches
    allowed = [[length] for length in real] + [padded] * (bs - len(real))
    right = [
        not allowed[row] or any(length.least <= size <= length.most for length in allowed[row])
        for row, size in zip(rows, got, strict=True)
    ]
    if all(right):
        return None
    query = right.index(False)
    row, branch = divmod(query, branches)
    want = allowed[row][0].most if got[query] > allowed[row][0].most else allowed[row][0].least
    # The cell shows the entry that ends the row; what belonged there follows from where the row starts.
    end = int(indptr[query]) + want
    cell = Cell(step=step, buffer="kv_indptr", row=call, column=query + 1, got=str(indptr[query + 1]), want=str(end))
    kind = "padded" if row >= len(real) else "real"
    detail = (
        f"Row {row} branch {branch} ({kind}) of attention call {call} of step {step} is {got[query]} entries long, "
        f"not {want}."
    )
    return Wrong(where=PADDED if row >= len(real) else REAL, detail=detail, cell=cell)


def _judge_queries(indptr: Ints, each: int, step: int, call: int, bs: int) -> Wrong | None:
    """Every row of the bucket, padded ones included, has as many queries as the graph was captured with."""
    want = np.arange(bs + 1) * each
    common = min(len(indptr), len(want))
    differs = np.flatnonzero(indptr[:common] != want[:common])
    if not differs.size and common == len(want):
        return None
    column = int(differs[0]) if differs.size else common
    got = str(indptr[column]) if column < common else "no room"
    cell = Cell(step=step, buffer="qo_indptr", row=call, column=column, got=got, want=str(want[column]))
    detail = (
        f"The qo_indptr of attention call {call} of step {step} has {got} at {column}; rows have {each} queries each."
    )
    return Wrong(where=QUERIES, detail=detail, cell=cell)


def _padded_lengths(case: Case, record: Record, step: int, call: int, reads: Reads) -> list[_Length]:
    """Lengths that a padded row may have. For drafts, sglang lays out the indices by seq_lens and writes the row
    starts from positions; for a padded row their neutral values differ (1 and 0), and both delimit nothing but
    slot 0."""
    neutral = (record.scalar(step, Recorded.NEUTRAL, name) for name in ("seq_lens", "positions"))
    rows = [Request(slot=0, seq_len=length, data=0) for length in neutral if length is not None]
    return [_Length.of(reads, case.setup, row, call) for row in rows]


def _judge_end(last: int, step: int, call: int, indptr: Array, width: int) -> Wrong | None:
    used = int(indptr[last])
    if used <= width:
        return None
    cell = Cell(step=step, buffer="kv_indptr", row=call, column=last, got=str(used), want=f"at most {width}")
    detail = (
        f"The kv_indptr of attention call {call} of step {step} ends at {used}, in a kv_indices row of {width} entries."
    )
    return Wrong(where=PAST, detail=detail, cell=cell)
