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
    """Padded rows are not judged: what they attend to belongs to no request."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step in range(len(case.steps)):
        batch, metadata = record.path(step, "input"), record.path(step, "metadata")
        # Where a window is no part of the mask, the mask is over the whole prefix.
        prefix, window = ("window_", case.setup.window) if "window_custom_mask" in metadata else ("", 0)
        mask, starts = metadata.get(f"{prefix}custom_mask"), metadata.get(f"{prefix}mask_indptr")
        positions = record.path(step, "launch").get("positions")
        if mask is None or starts is None or positions is None or "scores_index" not in batch:
            continue
        compared += 1
        lengths = batch["seq_lens"].astype(np.int64)
        keys = np.minimum(lengths, window or lengths)
        bits = case.setup.num_draft_tokens * (keys + case.setup.num_draft_tokens)
        ends = np.cumsum(bits)
        cell = first_difference(step, "mask_indptr", starts[: len(bits) + 1], np.append(0, ends))
        if cell:
            detail = f"In step {step} the mask of row {cell.row} begins at {cell.got}, not at {cell.want}."
            wrongs.append(Wrong(where=STARTS, detail=detail, cell=cell))
            continue
        for row, (length, end) in enumerate(zip(lengths.tolist(), ends.tolist(), strict=True)):
            visible = mask[end - bits[row] : end].reshape(case.setup.num_draft_tokens, -1).astype(np.int64)
            tree = ancestors(case.setup, batch["scores_index"][row], batch["parents"][row])
            wrongs += _judge_row(step, row, length, visible, positions[row], tree, window)
    return conclude(ORACLE, wrongs, compared, nothing="no tree verified", order=(STARTS, TREE, PREFIX, POSITIONS))


def _judge_row(step: int, row: int, length: int, mask: Array, positions: Array, tree: Ints, window: int) -> list[Wrong]:
    """window: tokens before its own that each token attends to at most; 0: all."""
    wrongs = []
    depth = tree.sum(axis=1) - 1
    held = mask.shape[1] - len(tree)
    prefix = np.ones((len(tree), held), dtype=np.int64)
    if window:
        first = depth[:, None] - window  # of what a token attends to, counted from the root
        prefix = (np.arange(-held, 0) >= first).astype(np.int64)
        tree = tree * (depth >= first)
    for where, name, got, want in (
        (PREFIX, "custom_mask", mask[:, :held], prefix),
        (TREE, "custom_mask", mask[:, held:], tree),
        (POSITIONS, "positions", positions[:, None], (length + depth)[:, None]),
    ):
        cell = first_difference(step, name, got, want)
        if cell:
            place = f"at token {cell.row}, column {cell.column}"
            detail = f"In step {step} row {row}, the {where} is {cell.got} {place}, not {cell.want}."
            wrongs.append(Wrong(where=where, detail=detail, cell=cell))
    return wrongs
