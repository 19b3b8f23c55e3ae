"""The figures of a report: coverage and what is missing, verdicts, time by stage, trends, the columns of all cases."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from reports import frames, packing, tables
from reports.records import history_of
from reports.trends import HEIGHT, WIDTH, trends
from repro.ledger.read import CASE_COLUMNS
from repro.traces.campaign import Covered, Transition
from tests.builders import sample_ledger
from tests.builders.sample_record import BUGGY, FIXED, campaign, stale_found


@pytest.mark.slow
def test_heat_map_tells_never_from_not_possible() -> None:
    def transition(before: int, after: int, padded: bool) -> Transition:
        return Transition(
            runner="draft", backend="triton", topk=2, num_steps=3, before=before, after=after, padded=padded
        )

    made = (
        Covered(transition=transition(0, 4, False), count=1),
        Covered(transition=transition(0, 4, True), count=9),
        Covered(transition=transition(4, 4, False), count=1000),
    )
    drawn_campaign = replace(
        campaign(), transitions=made, transitions_missing=(transition(4, 4, True), transition(4, 8, False))
    )
    two = replace(drawn_campaign, transitions=made[:1])
    [coverage] = tables.coverage([drawn_campaign, two])
    assert (coverage.replays, coverage.buckets.rows, coverage.buckets.columns) == (1011, (0, 4, 8), (4, 8))
    start, four, eight = coverage.buckets.cells
    assert start == (
        tables.Heat(count=11, padded=9, level=1, missing=""),
        tables.Heat(count=0, padded=0, level=0, missing=""),
    )
    assert four[0] == tables.Heat(count=1000, padded=0, level=tables.HEAT_LEVELS, missing="padded")
    assert (four[1].missing, four[1].level, eight[0].missing) == ("all", 0, "")
    assert coverage.buckets.missing == [(4, 4, "padded"), (4, 8, "all")]


def test_verdicts_and_stages_are_those_of_the_record() -> None:
    campaigns = [campaign(BUGGY, failing=31), replace(campaign(FIXED), stages={"graph": 2.0})]
    frame = tables.verdicts(campaigns).set_index(["campaign", "oracle"])
    assert frame.loc[(0, "slot0_padding")].to_dict() == {"PASS": 111, "UNKNOWN": 22, "FAIL": 31}
    assert frame.loc[(1, "staged")].to_dict() == {"PASS": 164, "UNKNOWN": 0, "FAIL": 0}
    stages = tables.stages(campaigns)
    assert list(stages.index) == list(campaigns[0].stages)
    assert stages.loc["graph"].tolist() == [9.1, 2.0]
    assert stages.loc["shrink"].tolist() == [2.5, 0.0]


def test_trends_are_of_campaigns_that_may_be_compared() -> None:
    history = sample_ledger.history(3, [])
    by_engine = {series.engine: series for series in trends(history)}
    assert {(trend.name, trend.runs) for trend in by_engine.values()} == {("draft, triton", 2)}
    rate, alarms, unjudged = by_engine["cuda"].trends
    # 164 cases in 30 and in 39 seconds on each target.
    assert [point.text for point in rate.points] == ["5.5", "4.2"]
    assert [point.x for point in rate.points] == [5, WIDTH - 5]
    assert rate.points[0].y == 5 and rate.points[1].y > 5  # the most is on top, and zero would be at the bottom
    assert [point.value for point in alarms.points] == [0, 0]
    assert all(point.y == HEIGHT - 5 for point in (*alarms.points, *unjudged.points))


def test_a_false_alarm_is_a_finding_that_never_came_back() -> None:
    never = replace(stale_found(), failed=0)
    [series] = trends(history_of([campaign(BUGGY, (stale_found(), never, replace(never, tried=0)))], []))
    assert series.trends[1].points[0].value == 1000 / 164


def test_columns_are_packed_and_come_back() -> None:
    rows = sample_ledger.case_rows(300)
    packed = packing.pack(packing.columns(frames.cases(rows), sample_ledger.RUNS))
    assert packed == packing.pack(packing.columns(frames.cases(rows), sample_ledger.RUNS))
    columns = {entry["name"]: entry for entry in json.loads(gzip.decompress(base64.b64decode(packed)))}
    for name, column in (("target", 1), ("runner", 2), ("backend", 3), ("result", 7)):
        values = [columns[name]["values"][code] for code in columns[name]["codes"]]
        assert values == [row[column] for row in rows]
    assert columns["seconds"]["codes"] == [row[9] for row in rows]
    assert columns["at"]["codes"][0] == datetime(2026, 11, 20, 2, tzinfo=UTC).timestamp()
    assert columns["result"]["values"] == ["UNSUPPORTED", "FAIL", "UNKNOWN", "PASS"]
    assert columns["run"]["values"][0].startswith("nightly ")


def test_of_too_many_cases_the_latest_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CASES_MAX", 100)
    rows = sample_ledger.case_rows(10) * 12
    columns = packing.columns(frames.cases(rows), sample_ledger.RUNS)
    assert {len(column["codes"]) for column in columns if column["kind"] != "digest"} == {packing.CASES_MAX}


def test_every_table_has_what_the_ledger_has() -> None:
    rows = sample_ledger.case_rows(50)
    history = sample_ledger.history(2, rows)
    tables = frames.tables(history, rows, ())
    assert list(tables["cases"].columns) == list(CASE_COLUMNS)
    assert len(tables["cases"]) == 50
    assert len(tables["checks"]) == len(history.checks)
    assert tables["campaigns"]["cases"].sum() == 164 * len(history.campaigns)
    assert set(tables["verdicts"]["status"]) == {"pass", "unknown", "fail"}
    assert tables["findings"]["cell"].str.contains("buffer: req_pool_indices").any()
