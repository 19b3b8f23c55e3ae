"""The report by date: bugs by age, runs, and what is new over cases and time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from reports.cards import cards
from reports.growth import charts
from reports.html import render
from reports.nights import bugs, nights
from reports.records import history_of
from reports.subjects import subjects
from repro.ledger.known import load
from repro.ledger.read import History
from repro.ledger.rows import CampaignRow, Run
from repro.upstream.findings import load as published
from tests.builders import sample_ledger
from tests.builders.sample_record import BUGGY, campaign, stale_found
from tests.builders.sample_rows import check_row


def night(number: int, letters: str) -> tuple[Run, list[object]]:
    words = {"p": "PASS", "f": "FAIL", "x": "UNSUPPORTED"}
    run = Run(id=str(number), kind="nightly", started=f"2026-11-{number:02d}T02:00:00+00:00")
    at = f"2026-11-{number:02d}T03:00:00"
    return run, [check_row(run.id, words[w], f"seed:{n}.json", at=at) for n, w in enumerate(letters)]


def test_a_night_says_what_came_and_what_is_gone() -> None:
    every = [night(number, letters) for number, letters in ((1, "fpx"), (2, "pff"), (3, "pxf"))]
    rows = tuple(row for _, rows in every for row in rows)
    history = History(path=Path("l.db"), runs=tuple(run for run, _ in every), checks=rows)  # type: ignore[arg-type]  # of one kind
    days = [(entry.day, entry.came, entry.gone) for entry in nights(history)]
    assert days == [("2026-11-03", 0, 0), ("2026-11-02", 2, 1), ("2026-11-01", 1, 0)]


def test_a_night_counts_states_and_alarms() -> None:
    false = replace(stale_found(), failed=0, tried=5, at_seconds=75.0)
    done = replace(campaign(BUGGY, (false,)), judged=500, states={"a": 1, "b": 2})
    rows = [CampaignRow(run=str(number), campaign=done) for number in (1, 2)]
    history = History(path=Path("l.db"), runs=tuple(night(n, "")[0] for n in (1, 2)), campaigns=tuple(rows))
    later, first = nights(history)
    assert (first.states, later.states) == (2, 0) and first.alarms == "2" and first.first == "75 s"


def test_bugs_come_by_age_with_their_owner() -> None:
    history = sample_ledger.history(3, [])
    issues = tuple(replace(issue, owner="a team") for issue in load())
    known = subjects(history, issues)
    rows = bugs(cards(known, issues, published()), history)
    assert rows and [row.seen for row in rows] == sorted(row.seen for row in rows)
    assert rows[0].days == 3 and {row.card.owner for row in rows} == {"", "a team"}


def test_charts_rise_where_something_is_new() -> None:
    first = replace(campaign(BUGGY, (replace(stale_found(), at_case=25),)), cases=50, states={"a": 3}, seconds=60.0)
    second = replace(first, started="2026-11-21T00:00:00+00:00", states={"a": 1, "b": 1})
    findings, findings_in_time, states, _ = charts([second, first])
    assert findings.total == 1 and findings_in_time.total == 1 and states.total == 2
    (rise,) = findings.rises
    assert rise[0] == 8 + 0.25 * 404 and findings.last == "100 cases"
    assert [x for x, _, _ in states.rises] == [8 + 0.5 * 404, 8 + 404.0]
    assert findings.text.startswith("1 finding in 100 cases; the last new one after 25 % of it")
    assert charts([]) == () and charts([replace(first, started="yesterday")]) == ()
    page = render(history_of([first, second], []))
    assert page.count('<figure class="chart">') == 4 and "Runs by date" in page
