"""The picture of a case says exactly what the case says, and marks the wrong cell where it is."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from reports import picture
from repro.cases.case import RUNNERS, Case
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import Cell
from tests.builders.sample_record import (
    large_case,
    many_findings,
    stale_case,
    stale_found,
)

STALE = stale_found()


def test_picture_of_stale_padding() -> None:
    first, second = picture.draw(stale_case(), STALE.cell)
    assert (first.title, second.title) == ("Step 0: batch of 2 in bucket 2", "Step 1: batch of 1 in bucket 2")
    assert Counter(box.kind for box in first.boxes) == {"real": 14, "unused": 1, "guard": 2}
    assert Counter(box.kind for box in second.boxes) == {"real": 7, "padded": 6, "wrong": 1, "unused": 1, "guard": 2}
    [wrong] = [box for box in second.boxes if box.kind == "wrong"]
    [column] = [label for label in second.labels if label.text == "req_pool_indices"]
    [row] = [label for label in second.labels if label.text == "1"]
    assert wrong.x < column.x < wrong.x + wrong.width
    assert wrong.y < row.y < wrong.y + wrong.height
    assert "Row 1: padding; was slot 2, step 0" in second.text
    assert "First wrong cell: step 1 req_pool_indices[1,0] is 2, expected 0" in second.text


def test_row_shows_the_last_request_it_held() -> None:
    case = large_case((4, 2, 3, 1), (4,))
    assert [picture.last_held(case.steps, 3, row) for row in range(4)] == [
        (2, case.steps[2].requests[0]),
        (2, case.steps[2].requests[1]),
        (2, case.steps[2].requests[2]),
        (0, case.steps[0].requests[3]),
    ]
    assert picture.last_held(case.steps, 0, 0) is None


@pytest.mark.parametrize("buckets", [(1,), (4,), (2, 12), (13,), (1, 16, 64)])
def test_every_row_is_drawn_or_folded_once(buckets: tuple[int, ...]) -> None:
    for batch in range(1, buckets[-1] + 1):
        case = large_case((buckets[-1], batch), buckets)
        bucket = case.setup.bucket(batch)
        want = ["real"] * batch + ["padded"] * (bucket - batch) + ["unused"] * (buckets[-1] - bucket)
        for wrong in (None, 0, batch - 1, bucket - 1, buckets[-1] // 2, buckets[-1] - 1):
            lines = picture.rows(case, 1, wrong)
            got: list[str] = []
            for line in lines:
                span = re.match(r"rows? (\d+)(?:-(\d+))? ", line.text) if line.index is None else None
                low, high = (int(span[1]), int(span[2] or span[1])) if span else (line.index, line.index)
                assert low == len(got) and high is not None
                got += [line.kind] * (high - len(got) + 1)
            assert got == want
            assert wrong is None or wrong in [line.index for line in lines]
            assert len(lines) <= picture.ROWS_DRAWN_MAX + 3


@pytest.mark.parametrize(
    ("cell", "marks", "label_text"),
    [
        (Cell(step=1, buffer="kv_indices", row=1, column=37, got="9", want="1"), 1, "column 37"),
        (Cell(step=1, buffer="kv_indices guard", row=0, column=37, got="9", want="1"), 1, "guard, entry 37"),
        (Cell(step=1, buffer="tokens", row=0, column=2, got="7", want="8"), 1, "tokens"),
        (
            Cell(step=1, buffer="kv", row=99, column=0, got="written", want="untouched"),
            0,
            "kv[99,0]: written, not untouched",
        ),
        (Cell(step=1, buffer="seq_lens", row=-1, column=-1, got="gone", want="(1,)"), 0, "seq_lens: gone, not (1,)"),
        (None, 0, "slot 1, length 1"),
    ],
)
def test_wrong_cell_is_marked_where_there_is_a_place_for_it(cell: Cell | None, marks: int, label_text: str) -> None:
    before, panel = picture.draw(stale_case(), cell)
    assert sum(box.kind == "wrong" for box in panel.boxes) == marks
    assert label_text in [label.text for label in panel.labels]
    assert not [box for box in before.boxes if box.kind == "wrong"]


def test_the_callers_buffer_is_not_taken_for_the_runners() -> None:
    cell = Cell(step=1, buffer="seq_lens", row=0, column=0, got="2", want="1")
    _, panel = picture.draw(stale_case(), cell, "caller's")
    [wrong] = [box for box in panel.boxes if box.kind == "wrong"]
    [column] = [label for label in panel.labels if label.text == "caller's seq_lens"]
    assert wrong.x < column.x < wrong.x + wrong.width


def test_long_case_is_drawn_up_to_the_wrong_step() -> None:
    case = large_case([2] * 20, (2,))

    def steps(cell: Cell | None) -> list[int]:
        return [panel.step for panel in picture.draw(case, cell)]

    assert STALE.cell
    assert steps(replace(STALE.cell, step=12)) == [7, 8, 9, 10, 11, 12]
    assert steps(replace(STALE.cell, step=1)) == [0, 1, 2, 3, 4, 5]
    assert steps(None) == [14, 15, 16, 17, 18, 19]


def test_nothing_is_drawn_outside_a_picture() -> None:
    for finding in many_findings():
        for panel in picture.draw(finding.case, finding.cell):
            assert all(box.x >= 0 and box.x + box.width <= panel.width for box in panel.boxes)
            assert all(box.y >= 0 and box.y + box.height <= panel.height for box in panel.boxes)
            assert all(0 <= label.y <= panel.height and label.x <= panel.width for label in panel.labels)


def of_runner(runner: str) -> Case:
    case = stale_case()
    return replace(case, setup=replace(case.setup, runner=runner))


def columns_of(panel: picture.Panel) -> list[str]:
    return [label.text for label in panel.labels if label.kind == "column"]


def test_every_runner_has_buffers_of_its_own() -> None:
    for runner in RUNNERS:
        for panel in picture.draw(of_runner(runner), None):
            assert columns_of(panel) == list(RUNNER_FACTS[runner].row_buffers)


def test_what_captures_nothing_has_neither_bucket_nor_padding() -> None:
    first, two = picture.draw(of_runner("kv_move"), None)
    assert (first.title, two.title) == ("Step 0: batch of 2", "Step 1: batch of 1")
    assert {box.kind for panel in (first, two) for box in panel.boxes} == {"real", "guard"}
    assert [panel.title for panel in picture.draw(of_runner("decode"), None)][1] == "Step 1: batch of 1 in bucket 2"


def on_pages(cell: Cell | None, page_size: int = 4) -> picture.Panel:
    case = stale_case()
    setup = replace(case.setup, backend="fa3", page_size=page_size, head_dim=64, dtype="float16")
    return picture.draw(replace(case, setup=setup), cell)[1]


def test_a_page_table_shows_the_pages_of_each_row() -> None:
    request = stale_case().steps[1].requests[0]
    panel = on_pages(STALE.cell)
    pages = -(-request.seq_len // 4)
    grid = picture.draw(stale_case(), STALE.cell)[1]
    assert len(panel.boxes) == len(grid.boxes) + pages + 1, "one box a page, and one for padding"
    last = panel.boxes[-2]  # of the request; behind it lies padding's
    whole = picture._COLUMN
    assert last.width == pytest.approx(max(4.0, whole * ((request.seq_len - 1) % 4 + 1) / 4) - 2)
    texts = [label.text for label in panel.labels]
    assert f"{pages} pages, {request.seq_len} tokens" in texts or f"1 page, {request.seq_len} tokens" in texts
    assert "page 0" in texts


def test_a_row_that_is_too_long_has_a_page_without_room() -> None:
    cell = Cell(step=1, buffer="page table 0", row=5, column=8, got="9", want="8")
    panel = on_pages(cell)
    [wrong] = [box for box in panel.boxes if box.kind == "wrong"]
    [row] = [label for label in panel.labels if label.text == "5"]
    assert wrong.x == picture._GUTTER + 2 * picture._COLUMN and wrong.y < row.y < wrong.y + wrong.height
    assert "9 tokens in room for 8" in [label.text for label in panel.labels]


@pytest.mark.parametrize("page_size", [2, 4, 64])
def test_page_tables_lie_inside_the_picture(page_size: int) -> None:
    panel = on_pages(Cell(step=1, buffer="page table 0", row=5, column=640, got="641", want="640"), page_size)
    assert all(box.x + box.width <= panel.width and box.y + box.height <= panel.height for box in panel.boxes)
    assert all(label.y <= panel.height for label in panel.labels)


def test_without_pages_there_is_no_page_table() -> None:
    assert not any("page table" in label.text for label in on_pages(STALE.cell, page_size=1).labels)
