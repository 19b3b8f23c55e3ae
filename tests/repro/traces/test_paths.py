"""The rows of repro/traces/paths.py: the page that they print, their oracles, and what the toy records."""

from __future__ import annotations

import numpy as np
import pytest

from oracles.catalogue import ALL, OF_SOME_ENGINES, asked, name_of
from repro.cases.runner_facts import TOY
from repro.traces.paths import PATHS, PathRow, Recorded, recorded_by, row_of
from repro.traces.paths_page import page
from repro.traces.trace import End, RecordedArray, Termination, Trace
from tests.builders.cases import case_of, setup_of
from tests.builders.project import PROJECT
from tests.builders.toy_traces import toy_trace


def test_the_page_is_what_the_command_prints() -> None:
    assert (PROJECT / "docs/traces.md").read_text() == page(), "python -m repro paths > docs/traces.md"
    of_rounds = (PROJECT / "docs/traces-of-rounds.md").read_text()
    assert of_rounds == page(rounds=True), "python -m repro paths --rounds > docs/traces-of-rounds.md"


def test_each_path_has_one_row() -> None:
    assert [name.lower() for name in Recorded.__members__] == [row.name for row in PATHS]


def test_a_row_names_an_oracle_that_there_is() -> None:
    assert {row.oracle for row in PATHS if row.oracle} <= OF_SOME_ENGINES <= {name_of(judge) for judge in ALL}


@pytest.mark.parametrize(
    ("path", "name"),
    [("planned", "planned"), ("planned.2", "planned"), ("launch.1", ""), ("planned.x", ""), ("launches", "")],
)
def test_only_paths_of_calls_that_plan_are_numbered(path: str, name: str) -> None:
    row = row_of(path)
    assert (row.name if row else "") == name


@pytest.mark.parametrize("row", [row for row in PATHS if row.oracle], ids=lambda row: row.name)
def test_an_oracle_is_asked_where_its_path_is_recorded(row: PathRow) -> None:
    case = case_of(setup_of("draft"))
    array = RecordedArray(step=0, path=row.name, name="compared", array=np.asarray(1))
    traces = (Trace(ended=End(how=Termination.DONE), seen=seen) for seen in ((array,), ()))
    recorded, absent = ({name_of(judge) for judge in asked(case, trace)} for trace in traces)
    assert recorded - absent == {row.oracle}


def test_the_toy_records_what_its_rows_say() -> None:
    case = case_of(setup_of(TOY))
    recorded, rows = {seen.path for seen in toy_trace(case).seen}, list(recorded_by(case.setup, TOY))
    assert {row.name for row in rows} >= recorded >= {row.name for row in rows if not row.where}
