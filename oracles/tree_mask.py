"""A verify call attends by the drafted tree: each token to its request's prefix, to its ancestors and to itself, at the
position of its depth. The links by which tokens are then accepted are those of that tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from oracles.trace_index import Record, Wrong, conclude, first_difference
from repro.cases.case import Case, Setup
from repro.cases.layout import Ints
from repro.cases.reads import names_tree
from repro.cases.tree import ancestors, linked, parents_of, reached
from repro.traces.finding import Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "tree_mask"
STARTS = "start of a row's mask"
PREFIX = "mask over the prefix"
TREE = "mask over the tree"
POSITIONS = "positions of the tree"
LINKS = "links of the tree"
INDEX = "places of the tree's tokens"
ORDER = (STARTS, TREE, PREFIX, POSITIONS, LINKS, INDEX)


def judge(case: Case, trace: Trace) -> Verdict:
    """Padded rows are not judged, because their results belong to no request."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step in range(len(case.steps)):
        batch, metadata = record.path(step, Recorded.INPUT), record.path(step, Recorded.METADATA)
        wrongs += _wrong_links(step, case.setup, batch, record.path(step, Recorded.BEFORE))
        # Of a backend whose window shows in what its queries read, the mask is of sliding layers.
        prefix = "window_" if "window_custom_mask" in metadata else ""
        mask, starts = metadata.get(f"{prefix}custom_mask"), metadata.get(f"{prefix}mask_indptr")
        positions = record.path(step, Recorded.LAUNCH).get("positions")
        if mask is None or starts is None or positions is None or (trees := _trees(case.setup, batch)) is None:
            continue
        compared += 1
        lengths = batch["seq_lens"].astype(np.int64)
        columns = _columns(case.setup, lengths, metadata)
        bits = case.setup.num_draft_tokens * columns
        ends = np.cumsum(bits)
        cell = first_difference(step, "mask_indptr", starts[: len(bits) + 1], np.append(0, ends))
        if cell:
            detail = f"In step {step} the mask of row {cell.row} begins at {cell.got}, not at {cell.want}."
            wrongs.append(Wrong(where=STARTS, detail=detail, cell=cell))
            continue
        for row, (length, end) in enumerate(zip(lengths.tolist(), ends.tolist(), strict=True)):
            visible = mask[end - bits[row] : end].reshape(case.setup.num_draft_tokens, -1).astype(np.int64)
            tree = ancestors(trees[row])
            wrongs += _judge_row(
                step, row, length, visible, positions[row], tree, case.setup.window, hides=bool(prefix)
            )
    return conclude(ORACLE, wrongs, compared, nothing="no tree verified", order=ORDER)


def _trees(setup: Setup, batch: Mapping[str, Array]) -> list[list[int]] | None:
    """The parent of each token of each request's tree: of a table's as it says, of others by the drafts that were
    selected; None where nothing says it."""
    if "tree_parents" in batch:
        parents: list[list[int]] = batch["tree_parents"].tolist()
        return parents
    if "scores_index" not in batch:
        return None
    return [parents_of(setup, *row) for row in zip(batch["scores_index"], batch["parents"], strict=True)]


def _wrong_links(step: int, setup: Setup, batch: Mapping[str, Array], tree: Mapping[str, Array]) -> Iterator[Wrong]:
    """Wrong links between tokens, and from a token to a row of the batch."""
    if (trees := _trees(setup, batch)) is None or "next_token" not in tree:
        return
    for row, parents in enumerate(trees):
        links = linked(tree["next_token"][row], tree["next_sibling"][row])
        expected = reached(parents)
        first = row * setup.num_draft_tokens
        for where, name, got, want in (
            (LINKS, "parent by links", np.array(links), np.array(expected)),
            (INDEX, "index", tree["index"][row], np.arange(first, first + setup.num_draft_tokens)),
        ):
            cell = first_difference(step, name, got[None], want[None])
            if cell:
                detail = (
                    f"In step {step} row {row}, the {where} say {cell.got} of token {cell.column}, not {cell.want}."
                )
                yield Wrong(where=where, detail=detail, cell=cell)


def _columns(setup: Setup, lengths: Ints, metadata: Mapping[str, Array]) -> Ints:
    """The number of tokens that the mask of each request covers: the prefix and the tree; of sliding layers, where a
    backend names the tokens of the tree among those that it reads, as many as it reads."""
    indptr = metadata.get("window_kv_indptr")
    if indptr is None or not names_tree(setup):
        return lengths + setup.num_draft_tokens
    widths: Ints = np.diff(indptr[0][: len(lengths) + 1].astype(np.int64))
    return widths


def _judge_row(
    step: int, row: int, length: int, mask: Array, positions: Array, tree: Ints, window: int, *, hides: bool
) -> list[Wrong]:
    """length: of the prefix, of which the mask may be over the end alone. window: tokens before its own that each token
    attends to at most; 0: all. hides: whether the mask must hide the others; it may in any case."""
    wrongs = []
    depth = tree.sum(axis=1) - 1
    before = mask.shape[1] - len(tree)
    away = depth[:, None] - np.concatenate([np.arange(-before, 0), depth])
    seen = away <= window if window else np.ones_like(away, dtype=np.bool_)
    full = np.concatenate([np.ones((len(tree), before), dtype=np.int64), tree], axis=1)
    allowed = full * seen if hides else full
    shown = mask if hides else np.where(seen, mask, full)
    for where, name, got, want in (
        (PREFIX, "custom_mask", shown[:, :before], allowed[:, :before]),
        (TREE, "custom_mask", shown[:, before:], allowed[:, before:]),
        (POSITIONS, "positions", positions[:, None], (length + depth)[:, None]),
    ):
        cell = first_difference(step, name, got, want)
        if cell:
            place = f"at token {cell.row}, column {cell.column}"
            detail = f"In step {step} row {row}, the {where} is {cell.got} {place}, not {cell.want}."
            wrongs.append(Wrong(where=where, detail=detail, cell=cell))
    return wrongs
