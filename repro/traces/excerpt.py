"""A few rows of what the graph path and the eager path left, side by side: what a person looks at first.

Taken from the trace of a failing run; nothing is judged here. A row that is equal on both sides is worth showing too:
it says that the failure was silent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from repro.traces.finding import Cell
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ROWS_MAX = 3  # of one output; the first of them is the most telling
COLUMNS_MAX = 12  # around the first difference
EXCERPTS_MAX = 16
# Recorded of both paths, but not by request.
_NOT_ROWS = frozenset({"kv_slots", "kv_rows", "kv_same"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Part of one row of one array. graph: what the graph path left, or read at launch; eager: what the eager path
    left, or what the row was to hold. column: that of the first value shown. width: how many the whole row has."""

    step: int
    name: str
    row: int
    column: int
    width: int
    graph: tuple[str, ...]
    eager: tuple[str, ...]


def excerpts(trace: Trace, cell: Cell | None) -> tuple[Excerpt, ...]:
    """The wrong buffer's row as it was launched, then the outputs of that step; of the last step that has both paths
    where no cell is known to be wrong."""
    arrays: dict[tuple[int, str], dict[str, Array]] = {}
    for seen in trace.seen:
        arrays.setdefault((seen.step, seen.path), {})[seen.name] = seen.array
    both = [step for step, path in arrays if path == Recorded.GRAPH and (step, Recorded.EAGER) in arrays]
    step = cell.step if cell is not None else max(both, default=-1)
    collected: list[Excerpt] = []
    if cell is not None:
        collected += _launched(arrays, cell)
    graph, eager = arrays.get((step, Recorded.GRAPH), {}), arrays.get((step, Recorded.EAGER), {})
    for name in graph:
        if name in eager and name not in _NOT_ROWS:
            collected += _rows(step, name, graph[name], eager[name], cell)
    return tuple(collected[:EXCERPTS_MAX])


def _launched(arrays: Mapping[tuple[int, str], Mapping[str, Array]], cell: Cell) -> Iterator[Excerpt]:
    """The row in which a buffer is wrong, beside what it was to hold: the caller's row, or the neutral value."""
    launched = _flat(arrays.get((cell.step, Recorded.LAUNCH), {}).get(cell.buffer))
    input_rows = _flat(arrays.get((cell.step, Recorded.INPUT), {}).get(cell.buffer))
    neutral = arrays.get((cell.step, Recorded.NEUTRAL), arrays.get((-1, Recorded.NEUTRAL), {})).get(cell.buffer)
    if launched is None or not 0 <= cell.row < len(launched):
        return
    row = launched[cell.row]
    if input_rows is not None and cell.row < len(input_rows):
        right = input_rows[cell.row]
    elif neutral is not None and neutral.size == 1:
        right = np.full_like(row, neutral.reshape(-1)[0])
    else:
        return
    if row.shape == right.shape:
        yield _excerpt(cell.step, cell.buffer, cell.row, row, right)


def _rows(step: int, name: str, graph: Array, eager: Array, cell: Cell | None) -> Iterator[Excerpt]:
    """The row that is wrong, if it is wrong here, then rows that differ, then the one that is wrong elsewhere, then the
    first. The wrong one around what is wrong: before it something may differ within what is allowed."""
    wrong = cell.row if cell is not None else 0
    marked = cell if cell is not None and cell.buffer == name else None
    left, right = _flat(graph), _flat(eager)
    if left is None or right is None or left.shape != right.shape or not len(left):
        return
    order = [marked.row] if marked and 0 <= marked.row < len(left) else []
    order += [row for row in range(len(left)) if not np.array_equal(left[row], right[row])]
    order += [row for row in (wrong, 0) if row < len(left) and row >= 0]
    for row in list(dict.fromkeys(order))[:ROWS_MAX]:
        column = marked.column if marked and marked.row == row else None
        yield _excerpt(step, name, row, left[row], right[row], column)


def _flat(array: Array | None) -> Array | None:
    """The array as [rows, values]; None if it has no rows."""
    if array is None or array.ndim == 0 or array.size == 0:
        return None
    return array.reshape(len(array), math.prod(array.shape[1:]))


def _excerpt(step: int, name: str, row: int, graph: Array, eager: Array, column: int | None = None) -> Excerpt:
    differs = np.flatnonzero(graph != eager)
    middle = column if column is not None else int(differs[0]) if len(differs) else 0
    start = max(0, middle - COLUMNS_MAX // 2) if len(graph) > COLUMNS_MAX else 0
    part = slice(start, start + COLUMNS_MAX)
    return Excerpt(
        step=step,
        name=name,
        row=row,
        column=start,
        width=len(graph),
        graph=tuple(map(_text, graph[part])),
        eager=tuple(map(_text, eager[part])),
    )


def _text(value: object) -> str:
    return f"{float(value):.6g}" if isinstance(value, float | np.floating) else str(value)
