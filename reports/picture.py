"""The picture of a case: per step the rows of the runner's buffers as real, padded and guard, and the first wrong cell.

Only positions and texts are worked out here; the page's template writes them as SVG.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from reports.page_table import TableRow, has_pages, table_rows
from repro.cases.case import Case, Request, Setup, Step
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import Cell

_PADDED = frozenset(name for facts in RUNNER_FACTS.values() if facts.graph for name in facts.row_buffers)
OUTPUTS = ("parents", "scores_index", "tokens", "next_token_logits")  # what a graph leaves, one row per request as well
METADATA = ("kv_indptr", "kv_indices")  # one row per attention call

STEPS_DRAWN_MAX = 6  # a minimal case has two or three; more would bury the wrong one
ROWS_DRAWN_MAX = 12  # a larger bucket is folded around its edges and the wrong row
NOTE_CHARS_MAX = 52  # what fits beneath the grid; the caption has it whole

_ROW, _COLUMN, _GUTTER, _BAND = 22, 25, 30, 8  # heights and widths in SVG units, which are CSS pixels at full size
_CHAR, _SLANTED = 7.3, 4.8  # advance of a 12 px monospaced character, and of an 11 px one at 45 degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle. kind: its CSS class: real, padded, unused, guard or wrong."""

    x: float
    y: float
    width: float
    height: float
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A line of text at a baseline. kind: its CSS class: index, row, muted, column or wrong."""

    x: float
    y: float
    text: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One step, drawn. text: the same in words, for those who do not see the picture."""

    step: int
    title: str
    text: str
    width: float
    height: float
    boxes: tuple[Box, ...]
    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a step's picture: a row of the buffers, or several of one kind folded into one (index None)."""

    index: int | None
    kind: str
    text: str


def owner(oracle: str) -> str:
    """The owner of the buffers that an oracle looks at, where it is not the runner; see draw()."""
    return "caller's" if oracle == "callers_batch" else ""


def draw(case: Case, cell: Cell | None, whose: str = "") -> tuple[Panel, ...]:
    """The steps of a case, at most STEPS_DRAWN_MAX of them, up to and including the one that went wrong.

    whose: said before the wrong buffer's name where it is not the runner's own ("caller's"); it then gets a column
    of its own, for the runner's buffer of that name may be right.
    """
    if cell is not None and whose:
        cell = replace(cell, buffer=f"{whose} {cell.buffer}")
    last = len(case.steps) - 1
    if cell is not None and 0 <= cell.step <= last:
        last = max(cell.step, min(last, STEPS_DRAWN_MAX - 1))
    first = max(0, last + 1 - STEPS_DRAWN_MAX)
    return tuple(_panel(case, number, cell) for number in range(first, last + 1))


def rows(case: Case, number: int, wrong: int | None) -> tuple[Row, ...]:
    """The buffer rows of a step, 0 .. max_bs - 1, folded where there are many. wrong: a row that stays visible."""
    raw_bs = len(case.steps[number].requests)
    bucket, most = _bucket(case, number), _rows_max(case, number)
    shown = set(range(bucket))
    if bucket > ROWS_DRAWN_MAX:
        shown = {0, 1, 2, raw_bs - 1, raw_bs, raw_bs + 1, bucket - 1}
    if wrong is not None:
        shown |= {wrong - 1, wrong} if wrong < bucket else {wrong}
    drawn = sorted(index for index in shown if 0 <= index < most)
    lines: list[Row] = []
    for before, index in itertools.pairwise([-1, *drawn, most]):
        for low, high in _split(before + 1, index, (raw_bs, bucket)):
            lines.append(_fold(low, high, _kind(low, raw_bs, bucket)))
        if index < most:
            kind = _kind(index, raw_bs, bucket)
            lines.append(Row(index=index, kind=kind, text=_row_text(case.steps, number, index, kind)))
    return tuple(lines)


def _captures(setup: Setup) -> bool:
    return RUNNER_FACTS[setup.runner].graph


def _bucket(case: Case, number: int) -> int:
    """Rows of the graph that a step uses; without graphs, those of the batch."""
    step = case.steps[number]
    is_replayed = _captures(case.setup) and case.setup.replays(step.busiest)
    return case.setup.bucket(step.busiest) if is_replayed else len(step.requests)


def _rows_max(case: Case, number: int) -> int:
    return case.setup.max_bs if _captures(case.setup) else len(case.steps[number].requests)


def last_held(steps: tuple[Step, ...], number: int, row: int) -> tuple[int, Request] | None:
    """The last step before `number` that put a request into this row, and the request: a row not reset still holds
    it."""
    for earlier in range(number - 1, -1, -1):
        if row < len(steps[earlier].requests):
            return earlier, steps[earlier].requests[row]
    return None


def _kind(row: int, raw_bs: int, bucket: int) -> str:
    if row < raw_bs:
        return "real"
    return "padded" if row < bucket else "unused"


def _split(low: int, high: int, cuts: tuple[int, ...]) -> list[tuple[int, int]]:
    """low..high cut into half-open ranges at `cuts`."""
    edges = [low, *(cut for cut in sorted(cuts) if low < cut < high), high]
    return [(a, b) for a, b in itertools.pairwise(edges) if a < b]


def _fold(low: int, high: int, kind: str) -> Row:
    what = {"real": "real", "padded": "padding", "unused": "not in this graph"}[kind]
    span = f"row {low}" if high - low == 1 else f"rows {low}-{high - 1}"
    return Row(index=None, kind=kind, text=f"{span} {what}")


def _row_text(steps: tuple[Step, ...], number: int, row: int, kind: str) -> str:
    if kind == "real":
        request = steps[number].requests[row]
        return f"slot {request.slot}, length {request.seq_len}"
    what = "padding" if kind == "padded" else "not in this graph"
    latest = last_held(steps, number, row)
    return f"{what}; was slot {latest[1].slot}, step {latest[0]}" if latest else what


class _Drawing:
    """A picture under way: what is drawn so far, and how far down it reaches."""

    def __init__(self) -> None:
        self.boxes: list[Box] = []
        self.labels: list[Label] = []
        self.y = 0.0

    def box(self, x: float, width: float, kind: str, *, top: float, height: float) -> None:
        """A box `top` below the current line. The gap of 2 keeps neighbours apart."""
        self.boxes.append(Box(x=x, y=self.y + top, width=width - 2, height=height, kind=kind))

    def label(self, x: float, text: str, kind: str, *, base: float) -> None:
        """A text with its baseline `base` below the current line."""
        self.labels.append(Label(x=x, y=self.y + base, text=text, kind=kind))


def _panel(case: Case, number: int, cell: Cell | None) -> Panel:
    mine = cell if cell is not None and cell.step == number else None
    in_grid = mine if mine is not None and _has_request_rows(mine, case.setup) else None
    lines = rows(case, number, in_grid.row if in_grid else None)
    columns = list(RUNNER_FACTS[case.setup.runner].row_buffers)
    if in_grid and in_grid.buffer not in columns:
        columns.append(in_grid.buffer)
    drawing = _Drawing()
    _draw_grid(drawing, columns, lines, in_grid)
    if mine and (mine.buffer in METADATA or "guard" in mine.buffer):
        _draw_strip(drawing, case.setup, mine, len(columns) * _COLUMN)
    if mine and has_pages(case):
        _draw_pages(drawing, table_rows(case, number, _bucket(case, number), mine))
    if mine:
        place = f"[{mine.row},{mine.column}]" if mine.row >= 0 else ""
        drawing.label(_GUTTER, _short(f"{mine.buffer}{place}: {mine.got}, not {mine.want}"), "wrong", base=15)
        drawing.y += 18
    title, text = _words(case, number, lines, mine)
    return Panel(
        step=number,
        title=title,
        text=text,
        width=round(max(map(_text_end, drawing.labels)) + 4),
        height=round(drawing.y + 6),
        boxes=tuple(drawing.boxes),
        labels=tuple(drawing.labels),
    )


def _has_request_rows(cell: Cell, setup: Setup) -> bool:
    """True if the wrong buffer has a row for each request, so that it can stand in the grid."""
    name = cell.buffer.rpartition(" ")[2]
    return name in (*RUNNER_FACTS[setup.runner].row_buffers, *OUTPUTS) and 0 <= cell.row < setup.max_bs


def _draw_grid(drawing: _Drawing, columns: list[str], lines: tuple[Row, ...], wrong: Cell | None) -> None:
    """The buffers side by side, a column each, between their guard bands."""
    width = len(columns) * _COLUMN
    drawing.y = 12.0 + max(map(len, columns)) * _SLANTED
    for place, name in enumerate(columns):
        drawing.label(_GUTTER + (place + 0.5) * _COLUMN, name, "column", base=-4)
    drawing.label(_GUTTER - 6, "row", "index", base=_BAND)
    drawing.box(_GUTTER, width, "guard", top=0, height=_BAND)
    drawing.y += _BAND + 3
    for line in lines:
        _draw_row(drawing, columns, line, wrong.buffer if wrong and line.index == wrong.row else "")
        drawing.y += _ROW
    drawing.box(_GUTTER, width, "guard", top=1, height=_BAND)
    drawing.label(_GUTTER + width + 6, "guard", "muted", base=9)
    drawing.y += _BAND + 4


def _draw_row(drawing: _Drawing, columns: list[str], line: Row, wrong: str) -> None:
    width = len(columns) * _COLUMN
    if line.index is None:
        drawing.box(_GUTTER, width, line.kind, top=6, height=_ROW - 12)
    else:
        drawing.label(_GUTTER - 6, str(line.index), "index", base=15)
        for place, name in enumerate(columns):
            # Outputs and the caller's own arrays end with the batch: they have no padding to show.
            if name in _PADDED or line.kind == "real" or name == wrong:
                kind = "wrong" if name == wrong else line.kind
                drawing.box(_GUTTER + place * _COLUMN, _COLUMN, kind, top=1, height=_ROW - 2)
    kind = "row" if line.kind == "real" and line.index is not None else "muted"
    drawing.label(_GUTTER + width + 6, line.text, kind, base=15)


def _draw_strip(drawing: _Drawing, setup: Setup, cell: Cell, width: float) -> None:
    """The wrong buffer by itself, where its rows are not requests: metadata has one for each attention call."""
    guarded = "guard" in cell.buffer
    drawing.y += 20
    drawing.label(_GUTTER, _short(cell.buffer if guarded else f"{cell.buffer}, by attention call"), "row", base=0)
    drawing.y += 6
    if guarded:
        drawing.box(_GUTTER, width, "real", top=1, height=_ROW - 2)
        drawing.label(_GUTTER + width + 6, "the buffer", "muted", base=15)
        drawing.y += _ROW
        drawing.box(_GUTTER, width, "guard", top=1, height=_ROW - 2)
        drawing.box(_GUTTER + width / 2, _COLUMN, "wrong", top=1, height=_ROW - 2)
        drawing.label(_GUTTER + width + 6, f"guard, entry {cell.column}", "row", base=15)
        drawing.y += _ROW + 4
        return
    calls = max((reads.calls(setup) for reads in RUNNER_FACTS[setup.runner].reads), default=1)
    for row in sorted({*range(calls), cell.row}):
        drawing.label(_GUTTER - 6, str(row), "index", base=15)
        drawing.box(_GUTTER, width, "real", top=1, height=_ROW - 2)
        if row == cell.row:
            drawing.box(_GUTTER + width / 2, _COLUMN, "wrong", top=1, height=_ROW - 2)
            drawing.label(_GUTTER + width + 6, f"column {cell.column}", "row", base=15)
        drawing.y += _ROW
    drawing.y += 4


def _draw_pages(drawing: _Drawing, lines: tuple[TableRow, ...]) -> None:
    """Page by page what each row's page table names; the last page as wide as it is full."""
    drawing.y += 20
    drawing.label(_GUTTER, "page table: pages of each row", "row", base=0)
    drawing.y += 6
    most = max(len(line.pages) for line in lines)
    for line in lines:
        drawing.label(_GUTTER - 6, line.name, "index", base=15)
        for place, page in enumerate(line.pages):
            width = max(4.0, _COLUMN * page.filled)
            drawing.box(_GUTTER + place * _COLUMN, width, page.kind, top=1, height=_ROW - 2)
        drawing.label(_GUTTER + most * _COLUMN + 6, line.text, "muted", base=15)
        drawing.y += _ROW
    drawing.y += 4


def _words(case: Case, number: int, lines: tuple[Row, ...], cell: Cell | None) -> tuple[str, str]:
    raw_bs = len(case.steps[number].requests)
    title = f"Step {number}: batch of {raw_bs}"
    if _captures(case.setup):
        title += f" in bucket {_bucket(case, number)}"
    texts = [line.text if line.index is None else f"row {line.index}: {line.text}" for line in lines]
    if cell:
        texts.append(f"first wrong cell: {cell}")
    return title, ". ".join(text[0].upper() + text[1:] for text in texts) + "."


def _short(text: str) -> str:
    return text if len(text) <= NOTE_CHARS_MAX else text[: NOTE_CHARS_MAX - 3] + "..."


def _text_end(label: Label) -> float:
    if label.kind == "column":
        return label.x + len(label.text) * _SLANTED + 6
    return label.x + len(label.text) * _CHAR
