"""A verify call attends by the tree that was drafted: each token to its request's prefix, to its ancestors and to
itself, at the position that its depth gives it."""

from __future__ import annotations

import numpy as np

from oracles.trace_index import Record, Wrong, conclude, first_difference
from repro.cases.case import Case
from repro.cases.layout import Ints
from repro.cases.tree import ancestors
from repro.traces.finding import Verdict
from repro.traces.trace import Array, Trace

ORACLE = "tree_mask"
STARTS = "start of a row's mask"
PREFIX = "mask over the prefix"
TREE = "mask over the tree"
POSITIONS = "positions of the tree"


def judge(case: Case, trace: Trace) -> Verdict:
    """The padded rows are not judged: what they attend to is nobody's."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step in range(len(case.steps)):
        given, metadata = record.path(step, "input"), record.path(step, "metadata")
        mask, starts = metadata.get("custom_mask"), metadata.get("mask_indptr")
        positions = record.path(step, "launch").get("positions")
        if mask is None or starts is None or positions is None or "scores_index" not in given:
            continue
        compared += 1
        lengths = given["seq_lens"].astype(np.int64)
        bits = case.setup.num_draft_tokens * (lengths + case.setup.num_draft_tokens)
        ends = np.cumsum(bits)
        cell = first_difference(step, "mask_indptr", starts[: len(bits) + 1], np.append(0, ends))
        if cell:
            detail = f"In step {step} the mask of row {cell.row} begins at {cell.got}, not at {cell.want}."
            wrongs.append(Wrong(where=STARTS, detail=detail, cell=cell))
            continue
        for row, (length, end) in enumerate(zip(lengths.tolist(), ends.tolist(), strict=True)):
            own = mask[end - bits[row] : end].reshape(case.setup.num_draft_tokens, -1).astype(np.int64)
            tree = ancestors(case.setup, given["scores_index"][row], given["parents"][row])
            wrongs += _judge_row(step, row, length, own, positions[row], tree)
    return conclude(ORACLE, wrongs, compared, nothing="no tree verified", order=(STARTS, TREE, PREFIX, POSITIONS))


def _judge_row(step: int, row: int, length: int, mask: Array, positions: Array, tree: Ints) -> list[Wrong]:
    wrongs = []
    depth = tree.sum(axis=1) - 1
    for where, name, got, want in (
        (PREFIX, "custom_mask", mask[:, :length], np.ones((len(tree), length), dtype=np.int64)),
        (TREE, "custom_mask", mask[:, length:], tree),
        (POSITIONS, "positions", positions[:, None], (length + depth)[:, None]),
    ):
        cell = first_difference(step, name, got, want)
        if cell:
            place = f"at token {cell.row}, column {cell.column}"
            detail = f"In step {step} row {row}, the {where} is {cell.got} {place}, not {cell.want}."
            wrongs.append(Wrong(where=where, detail=detail, cell=cell))
    return wrongs
