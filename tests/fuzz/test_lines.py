"""fuzz run --lines: the lines of sglang that cases run, from a traced session to the report by date."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuzz.lines import executable, lines_of, of_functions
from reports.html import render
from reports.lines import by_date, by_file, lines_run
from repro.ledger.read import History
from repro.ledger.rows import CampaignRow, Run
from repro.traces.campaign import Campaign
from repro.traces.line_ranges import line_numbers, line_ranges
from repro.traces.trace import End, RecordedArray, Termination, Trace
from repro.traces.typed import BadRecord
from tests.builders.sample_record import campaign

FILE = "sglang/srt/speculative/a.py"
SOURCE = '''import os

class A:
    size = 3

    def f(self, x):
        """Text."""
        if x:
            return [
                y for y in x
            ]
        return None
'''


def test_line_numbers_are_read_as_they_are_written() -> None:
    assert line_ranges([3, 1, 2, 9, 7, 9]) == "1-3, 7, 9" and line_ranges([]) == ""
    assert line_numbers("1-3, 7, 9") == {1, 2, 3, 7, 9} and line_numbers("") == frozenset()


@pytest.mark.parametrize("text", ["x", "1-", "1-2-3", "1-99999999999", "5,6"])
def test_a_record_with_other_texts_is_refused(text: str) -> None:
    with pytest.raises(BadRecord, match="campaign: ValueError"):
        Campaign.from_json(replace(campaign(), lines={FILE: text}).to_json())


def test_only_lines_of_functions_count(tmp_path: Path) -> None:
    assert executable(SOURCE) == {6, 8, 9, 10, 12}
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text(SOURCE)
    (tmp_path / FILE).with_name("b.py").write_text("X = 1\n")
    ran = replace(campaign(), lines={FILE: "1, 3-4, 6, 8, 12", FILE.replace("a.py", "b.py"): "1"})
    done = of_functions(ran, tmp_path)
    assert (done.lines, done.lines_missing) == ({FILE: "6, 8, 12"}, {FILE: "9-10"})
    assert Campaign.from_json(done.to_json()) == done


def test_lines_of_both_phases_are_joined() -> None:
    seen = [RecordedArray(step=-1, path=path, name=FILE, array=np.array(n)) for path, n in PHASES_SEEN]
    assert lines_of([Trace(ended=End(how=Termination.DONE), seen=tuple(seen))]) == {FILE: {6, 8, 12}}


PHASES_SEEN = (("built_lines", [6, 8]), ("lines", [8, 12]), ("places", [99]))


def test_the_report_has_lines_by_date_and_by_file() -> None:
    days = [Run(id=str(number), kind="nightly", started=f"2026-11-{number:02d}T02:00:00+00:00") for number in (1, 2, 3)]
    noted = [
        replace(campaign(), cases=12, lines={FILE: "6, 8"}, lines_missing={FILE: "9-10, 12"}),
        replace(campaign(), cases=12, lines={FILE: "6, 12"}, lines_missing={FILE: "8-10"}),
        campaign(),
    ]
    rows = tuple(CampaignRow(run=run.id, campaign=done) for run, done in zip(days, noted, strict=True))
    history = History(path=Path("l.db"), runs=tuple(days), campaigns=rows)
    second, first = by_date(history)
    assert (first.day, first.ran, first.every, first.new, first.so_far) == ("2026-11-01", 2, 5, 2, 2)
    assert (second.day, second.ran, second.every, second.new, second.so_far) == ("2026-11-02", 2, 5, 1, 3)
    (row,) = by_file(history)
    assert (row.file, row.ran, row.every, row.missing) == (FILE, 3, 5, "9-10")
    assert lines_run(noted) == (3, 5)
    page = render(history)
    assert FILE in page and "40%" in page and "9-10" in page
