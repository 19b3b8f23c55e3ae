"""States are set by measurement: each history, written as one letter a run, and what it comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.ledger.read import History
from repro.ledger.rows import CheckRow
from repro.ledger.states import STATES, WINDOW, State, measurements, state_of, states
from tests.builders.sample_rows import TARGET, check_row, finding_row

# p: passed 1 of 1. f: failed 1 of 1. h: failed 1 of 2. P: passed 5 of 5. F: failed 5 of 5. x: it could not be run.
# u: nobody knows.
LETTERS = {
    "p": ("PASS", 0, 1),
    "f": ("FAIL", 1, 1),
    "h": ("FAIL", 1, 2),
    "P": ("PASS", 0, 5),
    "F": ("FAIL", 5, 5),
    "x": ("UNSUPPORTED", 0, 0),
    "e": ("ERROR", 0, 0),
    "u": ("UNKNOWN", 0, 1),
}


def rows(letters: str, **other: Any) -> list[CheckRow]:
    """A check per letter, each in a run of its own, named by its number from 1 on."""
    checks = []
    for number, letter in enumerate(letters, start=1):
        status, failed, tried = LETTERS[letter]
        reason = "" if letter in "pfhPF" else f"because {number}"
        checks.append(check_row(str(number), status, failed=failed, tried=tried, reason=reason, **other))
    return checks


def state(letters: str, **other: Any) -> State:
    return state_of(rows(letters, **other))


@pytest.mark.parametrize(
    ("letters", "name"),
    [
        ("p", "passing"),
        ("ppp", "passing"),
        ("f", "new"),
        ("ff", "known"),
        ("fff", "known"),
        ("fp", "fixed"),
        ("ffpppp", "fixed"),
        ("fpf", "regressed"),
        ("fpff", "regressed"),
        ("pf", "regressed"),
        ("pff", "regressed"),
        ("fpfp", "flaky"),
        ("h", "flaky"),
        ("ffh", "flaky"),
        ("hp", "flaky"),
        ("hP", "fixed"),
        ("hPf", "regressed"),
        ("hf", "flaky"),
        ("h" + "f" * WINDOW, "known"),
        ("x", "cannot run"),
        ("u", "cannot run"),
        ("xu", "cannot run"),
        ("fx", "new"),
        ("fxf", "known"),
        ("fpx", "fixed"),
        ("xp", "passing"),
        ("fup", "fixed"),
        ("fu", "new"),
    ],
)
def test_a_history_comes_to_a_state(letters: str, name: str) -> None:
    assert name in STATES
    assert state(letters).state == name


def test_nothing_is_closed_by_age() -> None:
    assert state("f" + "x" * 1000).open
    assert state("f" + "u" * 1000).open
    assert state("f" * 1000).open


def test_runs_are_named() -> None:
    current = state("ppffxppf")
    assert (current.state, current.since, current.first_seen, current.last_seen) == ("flaky", "8", "3", "8")
    current = state("ffpx")
    assert (current.state, current.since, current.first_seen, current.last_seen) == ("fixed", "3", "1", "2")
    assert (current.measured, current.checked, current.why) == ("3", "4", "because 4")
    assert state("xxp").why == "" and state("xxp").since == "3"
    assert state("pp").first_seen == state("pp").last_seen == ""


def test_a_rate_is_of_the_last_runs() -> None:
    assert state("hh").rate == 0.5
    assert state("h" + "p" * 8).rate == 0.1
    assert state("ffff").rate == 1 and state("pp").rate == 0
    assert state("f" + "P" * WINDOW).rate == 0


def test_what_failed_once_in_ten_is_not_fixed_by_a_few_passes() -> None:
    seldom = [check_row("1", "FAIL", failed=1, tried=10)]
    passes = [check_row(str(number), "PASS", tried=10) for number in range(2, 9)]
    # 0.9 ** 20 is 0.12, 0.9 ** 30 is 0.04.
    assert [state_of([*seldom, *passes[:n]]).state for n in range(4)] == ["flaky", "flaky", "flaky", "fixed"]


def test_a_failure_that_the_seed_speaks_of_is_known_at_once() -> None:
    assert state("f", expected="FAIL").state == "known"
    assert state("f", expected="PASS").state == "new"


def test_seen_twice_in_one_run_is_still_new() -> None:
    twice = [check_row("1", "FAIL"), check_row("1", "FAIL")]
    assert state_of(twice).state == "new"
    assert state_of([*twice, check_row("2", "FAIL")]).state == "known"


def test_each_subject_and_target_has_a_state_of_its_own() -> None:
    by_pair = states([*rows("fp"), *rows("ff", target="0.5.14/cuda"), *rows("p", subject="finding:1234")])
    assert {pair: current.state for pair, current in by_pair.items()} == {
        ("seed:a.json", TARGET): "fixed",
        ("seed:a.json", "0.5.14/cuda"): "known",
        ("finding:1234", TARGET): "passing",
    }
    assert states([]) == {}


def test_what_a_campaign_saw_counts_as_measured() -> None:
    findings = (
        finding_row("1", "aaaa", failed=0, tried=0, at="1"),
        finding_row("1", "bbbb", failed=2, tried=5, at="2"),
        finding_row("1", "cccc", failed=0, tried=5, at="3"),
        finding_row("1", "dddd", failed=5, tried=5, at="4"),
    )
    later = check_row("2", "PASS", "finding:dddd", at="5")
    history = History(path=Path("l.db"), findings=findings, checks=(later,))
    by_subject = {subject: current.state for (subject, _), current in states(measurements(history)).items()}
    assert by_subject == {
        "finding:aaaa": "new",
        "finding:bbbb": "flaky",
        "finding:cccc": "cannot run",
        "finding:dddd": "fixed",
    }
