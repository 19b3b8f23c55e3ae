"""The kv_indptr that attention is given delimits as many rows as the query has, each as long as its sequence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oracles.record import Record, Wrong, conclude
from repro.case import Case
from repro.finding import Cell, Verdict
from repro.trace import Array, Trace

ORACLE = "metadata_shape"
SHORT = "kv_indptr has fewer rows than the query"
START = "kv_indptr does not start at 0"
REAL = "length of a real row"
PADDED = "length of a padded row"
PAST = "last entry past the end of a kv_indices row"
Ints = npt.NDArray[np.int64]


def judge(case: Case, trace: Trace) -> Verdict:
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step in range(len(case.steps)):
        metadata, bs = record.path(step, "metadata"), record.scalar(step, "launch", "bs")
        indptr, indices = metadata.get("kv_indptr"), metadata.get("kv_indices")
        if indptr is None or bs is None:
            continue
        compared += 1
        for i in range(case.setup.num_steps - 1):
            wrong = _judge_row(case, record, step, i, bs, indptr[i].astype(np.int64))
            if wrong is None and indices is not None:
                wrong = _judge_end(case, step, i, bs, indptr[i], indices.shape[1])
            if wrong:
                wrongs.append(wrong)
    return conclude(ORACLE, wrongs, compared, nothing="no kv_indptr recorded", order=(SHORT, START, REAL, PADDED, PAST))


def _judge_row(case: Case, record: Record, step: int, i: int, bs: int, indptr: Ints) -> Wrong | None:
    """One draft step. A length is positive, so equal lengths mean a rising kv_indptr whose last used entry is
    the number of entries used."""
    topk, raw_bs = case.setup.topk, len(case.steps[step].requests)
    queries = bs * topk
    if indptr.size < queries + 1:
        cell = Cell(step=step, buffer="kv_indptr", row=i, column=-1, got=str(indptr.size), want=str(queries + 1))
        detail = f"Draft step {i} of step {step} has {queries} query rows, kv_indptr {indptr.size} entries."
        return Wrong(where=SHORT, detail=detail, cell=cell)
    if indptr[0] != 0:
        cell = Cell(step=step, buffer="kv_indptr", row=i, column=0, got=str(indptr[0]), want="0")
        detail = f"The kv_indptr of draft step {i} of step {step} starts at {indptr[0]}."
        return Wrong(where=START, detail=detail, cell=cell)
    got = np.diff(indptr[: queries + 1])
    real = np.repeat([request.seq_len for request in case.steps[step].requests], topk) + i + 1
    allowed = _padded_lengths(record, step, i)
    right = np.concatenate([got[: real.size] == real, np.isin(got[real.size :], allowed) | (not allowed)])
    if right.all():
        return None
    query = int(np.argmin(right))
    row, branch = divmod(query, topk)
    want = int(real[query]) if query < real.size else allowed[0]
    # The cell shows the entry that ends the row; what belonged there follows from where the row starts.
    end = int(indptr[query]) + want
    cell = Cell(step=step, buffer="kv_indptr", row=i, column=query + 1, got=str(indptr[query + 1]), want=str(end))
    kind = "padded" if row >= raw_bs else "real"
    detail = (
        f"Row {row} branch {branch} ({kind}) of draft step {i} of step {step} is {got[query]} entries long, not {want}."
    )
    return Wrong(where=PADDED if row >= raw_bs else REAL, detail=detail, cell=cell)


def _padded_lengths(record: Record, step: int, i: int) -> list[int]:
    """Lengths that a padded row may have. sglang lays out the indices by seq_lens and writes the row starts from
    positions; for a padded row their neutral values differ (1 and 0), and both delimit nothing but slot 0."""
    neutral = (record.scalar(step, "neutral", name) for name in ("seq_lens", "positions"))
    return [length + i + 1 for length in neutral if length is not None]


def _judge_end(case: Case, step: int, i: int, bs: int, indptr: Array, width: int) -> Wrong | None:
    last = bs * case.setup.topk
    used = int(indptr[last])
    if used <= width:
        return None
    cell = Cell(step=step, buffer="kv_indptr", row=i, column=last, got=str(used), want=f"at most {width}")
    detail = f"The kv_indptr of draft step {i} of step {step} ends at {used}, in a kv_indices row of {width} entries."
    return Wrong(where=PAST, detail=detail, cell=cell)
