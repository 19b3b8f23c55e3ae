"""Page tables in the picture of a case: of each row of the batch the pages that its tokens lie on, the last one as full
as it is, and of a row that is too long the page that it has no room for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case
from repro.traces.finding import Cell

BUFFER = "page table"
PAGES_DRAWN_MAX = 8  # of a longer row the first ones and the last are drawn
ROWS_DRAWN_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a row. filled: how much of it holds tokens, from 0 to 1. kind: real, padded or wrong, as elsewhere in
    the picture."""

    filled: float
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """name: what stands before it."""

    name: str
    pages: tuple[Page, ...]
    text: str


def has_pages(case: Case) -> bool:
    """True if attention reads page tables in this case, with more than a token a page."""
    return BACKEND_FACTS[case.setup.backend].reads_pages and case.setup.page_size > 1


def table_rows(case: Case, number: int, bucket: int, cell: Cell | None) -> tuple[TableRow, ...]:
    """The rows of a step: its requests, one row for all padding, and the row that a wrong cell names. Padding's tokens
    lie on page 0."""
    return tuple(_rows(case, number, bucket, cell))


def _rows(case: Case, number: int, bucket: int, cell: Cell | None) -> Iterator[TableRow]:
    size, requests = case.setup.page_size, case.steps[number].requests
    for row, request in enumerate(requests[:ROWS_DRAWN_MAX]):
        pages = _pages(request.seq_len, size, "real")
        yield TableRow(name=str(row), pages=_folded(pages), text=f"{_counted(len(pages))}, {request.seq_len} tokens")
    if len(requests) < bucket:
        yield TableRow(name="pad", pages=_pages(1, size, "padded"), text="page 0")
    if cell is not None and cell.buffer.startswith(BUFFER):
        room = _folded(_pages(cell.column, size, "real"))
        wrong = Page(filled=1.0, kind="wrong")
        yield TableRow(name=str(cell.row), pages=(*room, wrong), text=f"{cell.got} tokens in room for {cell.want}")


def _pages(tokens: int, size: int, kind: str) -> tuple[Page, ...]:
    starts = range(0, max(1, tokens), size)
    return tuple(Page(filled=min(1.0, (tokens - start) / size), kind=kind) for start in starts)


def _folded(pages: tuple[Page, ...]) -> tuple[Page, ...]:
    return pages if len(pages) <= PAGES_DRAWN_MAX else (*pages[: PAGES_DRAWN_MAX - 1], pages[-1])


def _counted(pages: int) -> str:
    return "1 page" if pages == 1 else f"{pages} pages"
