"""Subjects of the report: where a finding is and is not, which release fixes it, what changed since a run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from reports import changes
from reports.pages import columns, pages
from reports.records import history_of
from reports.subjects import Subject, range_of, subjects, targets
from repro.cases.case import Target
from repro.ledger.known import Issue
from repro.ledger.read import History
from repro.ledger.rows import CheckRow, FindingRow, FixRow
from repro.traces.campaign import Campaign, Replay
from repro.traces.finding import Status, fingerprint
from tests.builders import sample_ledger
from tests.builders.sample_ledger import RUNS
from tests.builders.sample_record import BUGGY, FIXED, campaign, large_case, stale_found, stale_replays

STALE = stale_found()
SEED = "seed:pr23037-stale-padding.json"


def found(campaigns: Sequence[Campaign], replays: Sequence[Replay]) -> tuple[Subject, ...]:
    return subjects(history_of(campaigns, replays))


def check(run: int, target: str, status: str, **parts: Any) -> CheckRow:
    """3 runs of the stored seed of #23037 on a target."""
    failed = 3 if status == "FAIL" else 0
    whole = CheckRow(
        run=RUNS[run].id,
        target=target,
        subject=SEED,
        runner="draft",
        status=status,
        failed=failed,
        tried=3,
        fingerprint="a2dfbbbe8eea" if failed else "",
        oracle="slot0_padding" if failed else "",
        at=f"{RUNS[run].started}{target}",
    )
    return replace(whole, **parts)


def history(*rows: CheckRow | FindingRow | FixRow) -> History:
    return History(
        path=Path(),
        runs=RUNS,
        checks=tuple(row for row in rows if isinstance(row, CheckRow)),
        findings=tuple(row for row in rows if isinstance(row, FindingRow)),
        fixes=tuple(row for row in rows if isinstance(row, FixRow)),
    )


def states(subject: Subject) -> dict[str, str]:
    return {target: square.state for target, square in subject.squares.items()}


def test_where_a_finding_is_and_where_not() -> None:
    replays = stale_replays(STALE)
    other = replace(replays[0], target="0.5.12/emulated", status=Status.FAIL, failed=0, line="FAIL ended: raised")
    campaigns = [campaign(BUGGY, (STALE,)), campaign(Target("0.5.9", "emulated"))]
    [subject] = found(campaigns, [*replays, other])
    assert [(target, square.state, square.runs) for target, square in subject.squares.items()] == [
        ("0.5.10.post1/emulated", "new", "5/5"),
        ("0.5.11/emulated", "passing", "0/5"),
        ("0.5.12/emulated", "unknown", "0/5"),
        ("0.5.13/emulated", "passing", "0/5"),
        ("0.5.15.post1/emulated", "unknown", "0/5"),
    ]
    assert subject.squares["0.5.12/emulated"].why == "FAIL ended: raised"
    assert "0.5.9/emulated" in targets(history_of(campaigns, replays))
    assert range_of(subject, "emulated") == "fails on 0.5.10.post1, fixed in 0.5.11"


def test_one_subject_for_each_fingerprint_told_by_its_smallest_confirmed_case() -> None:
    large = replace(STALE, target=str(FIXED), case=large_case((4, 3), (4,)))
    never = replace(STALE, target=str(FIXED), case=large_case((1,), (4,)), failed=0)
    for order in itertools.permutations((large, never, STALE)):
        [subject] = found([campaign(BUGGY, order)], [])
        assert subject.founds[0] == STALE and subject.minimal.case == STALE.case
    [unsure] = found([campaign(FIXED, (never,))], [])
    assert [(square.state, square.runs) for square in unsure.squares.values()] == [("unconfirmed", "0/5")]
    assert not unsure.fails
    # It was seen to fail, and nobody has tried again: a campaign that is killed must not lose it.
    [kept] = found([campaign(FIXED, (replace(never, tried=0),))], [])
    assert kept.fails


def test_a_case_that_another_campaign_found_is_a_stored_seed_here() -> None:
    stranger = replace(stale_replays(STALE)[0], fingerprint="other", seed="repro/seeds/other.json", status=Status.FAIL)
    kinds = [(subject.kind, subject.name) for subject in found([campaign(BUGGY, (STALE,))], [stranger])]
    assert kinds == [("seed", "other.json"), ("finding", f"draft/triton slot0_padding: {STALE.where}")]


def test_stored_seeds_are_drawn_from_their_files() -> None:
    [subject] = subjects(history(check(0, "0.5.13/emulated", "PASS")))
    assert (subject.kind, subject.anchor) == ("seed", "seed-pr23037-stale-padding.json")
    assert subject.minimal.case and subject.minimal.path == "repro/seeds/pr23037-stale-padding.json"
    assert str(subject.minimal.cell) == "step 1 req_pool_indices[1,0] is 2, expected 0"
    assert subject.about.startswith("sglang #23037")
    [absent] = subjects(history(check(0, "0.5.13/emulated", "PASS", subject="seed:absent.json")))
    assert absent.minimal.case is None and absent.minimal.path == "absent.json"


def test_a_fix_gathers_its_proof_and_the_checks_of_its_seed() -> None:
    rows = [row for row in sample_ledger.fixes() if row.number == 23037 and row.engine == "emulated"]
    [subject] = subjects(history(*rows, check(0, "0.5.12.post1/cuda", "PASS")))
    assert (subject.kind, subject.name) == ("fix", "#23037 draft, triton")
    # The release without the fix is no release of sglang, so it is on the page and in no square.
    assert states(subject) == {
        "0.5.10.post1/emulated": "known",
        "0.5.11/emulated": "passing",
        "0.5.12.post1/cuda": "passing",
        "0.5.15.post1/emulated": "passing",
    }
    assert [stop.role for stop in subject.stops] == ["buggy", "fixed", "without", "newest"]
    assert changes.holding([subject]) == (1, 1)
    broken = [replace(row, problem="it passes") if row.role == "without" else row for row in rows]
    assert changes.holding(subjects(history(*broken))) == (0, 1)
    unrun = [replace(rows[0], role="", target="", status="UNSUPPORTED", problem="")]
    assert changes.holding(subjects(history(*unrun))) == (0, 0)


def test_a_proof_is_that_of_the_last_run() -> None:
    rows = [row for row in sample_ledger.fixes() if row.number == 23037]
    unrun = replace(rows[0], run=RUNS[0].id, role="", target="", detail="not covered yet")
    [subject] = subjects(history(unrun, *rows))
    assert [stop.role for stop in subject.stops] == ["buggy", "fixed", "without", "newest"] * 2
    [subject] = subjects(history(*rows, replace(unrun, run=RUNS[3].id)))
    assert [(stop.engine, stop.role) for stop in subject.stops if not stop.role] == [("emulated", "")]
    assert len(subject.stops) == 5


def test_the_first_release_that_passes_is_marked_as_the_fix() -> None:
    rows = [
        check(0, f"{release}/emulated", "FAIL" if release in ("0.5.10.post1", "0.5.11", "0.5.14") else "PASS")
        for release in sample_ledger.RELEASES
    ]
    whole = history(*rows)
    [subject] = subjects(whole)
    releases = columns(targets(whole))
    [page] = pages([subject], list(releases), releases)
    shown = {release: square.state for release, square in page.grid["emulated"].items()}
    assert [release for release, state in shown.items() if state == "fixed"] == ["0.5.12.post1", "0.5.15.post1"]
    assert page.ranges["emulated"] == (
        "fails on 0.5.10.post1 to 0.5.11, fixed in 0.5.12.post1, fails on 0.5.14, fixed in 0.5.15.post1"
    )
    assert page.command.endswith("--target 0.5.14/emulated")


def test_releases_are_in_their_order_and_checkouts_after_them() -> None:
    ordered = columns(
        ["/src/sglang@emulated", "0.5.9/cuda", "0.5.10/emulated", "0.5.9/emulated", "0.5.10.post1/emulated"]
    )
    assert ordered == {"emulated": ["0.5.9", "0.5.10", "0.5.10.post1", "/src/sglang"], "cuda": ["0.5.9"]}


def test_what_changed_is_what_became_so_in_the_last_run() -> None:
    whole = history(
        *(check(run, "0.5.13/cuda", "FAIL" if run == 1 else "PASS") for run in (0, 1)),
        *(check(run, "0.5.14/cuda", "PASS" if run == 1 else "FAIL") for run in (0, 1)),
        check(1, "0.5.11/cuda", "FAIL"),
        check(0, "0.5.12/cuda", "FAIL"),
        check(1, "0.5.12/cuda", "FAIL"),
        check(1, "0.5.10/cuda", "FAIL", failed=1),
    )
    run = changes.latest(whole)
    assert run == RUNS[1]
    targets_by_word = {
        word: [subject.targets for subject in ones] for word, ones in changes.changes(subjects(whole), run).items()
    }
    assert targets_by_word == {
        "new": [("0.5.11/cuda",)],
        "regressed": [("0.5.13/cuda",)],
        "fixed": [("0.5.14/cuda",)],
        "flaky": [("0.5.10/cuda",)],
    }
    assert changes.headline(whole, subjects(whole))[:3] == [
        "Regressed on 0.5.13/cuda.",
        "One new failure, on 0.5.11/cuda.",
        "Fails now and then on 0.5.10/cuda.",
    ]


def test_a_target_passes_only_if_nothing_failed_there() -> None:
    stranger = replace(
        stale_replays(STALE)[0], fingerprint="other", seed="repro/seeds/other.json", status=Status.FAIL, failed=5
    )
    whole_history = history_of([campaign(BUGGY, (STALE,))], [*stale_replays(STALE), stranger])
    headline = changes.headline(whole_history, subjects(whole_history))
    assert "2 new failures, on 0.5.10.post1/emulated and 0.5.13/emulated." in headline
    assert "All measurements on 0.5.11/emulated pass." in headline


def test_cases_of_a_killed_campaign_count() -> None:
    rows = sample_ledger.case_rows(400)
    whole = replace(sample_ledger.history(0, rows), campaigns=())
    judged = sum(row[7] in ("PASS", "FAIL") for row in rows)
    assert changes.case_counts(whole) == (400, judged)
    assert changes.case_counts(history_of([campaign(BUGGY)], [])) == (164, 164)


def test_odd_names_make_no_odd_anchors() -> None:
    odd = replace(STALE, fingerprint='" onclick="x')
    [subject] = found([campaign(BUGGY, (odd,))], [])
    assert subject.anchor == "finding--1"


def test_subjects_of_one_fingerprint_name_each_other() -> None:
    twin = replace(STALE, fingerprint="a2dfbbbe8eea")
    whole_history = history_of([campaign(BUGGY, (twin,))], [])
    both = replace(whole_history, checks=(check(0, "0.5.10.post1/emulated", "FAIL"),))
    assert [subject.same for subject in subjects(both)] == [
        (("finding-a2dfbbbe8eea", f"draft/triton slot0_padding: {STALE.where}"),),
        (("seed-pr23037-stale-padding.json", "pr23037-stale-padding.json"),),
    ]


def test_a_finding_that_a_known_issue_explains_is_not_new() -> None:
    issue = Issue(
        title="stale rows",
        link="https://example.org/1",
        probes=(),
        targets=("<=0.5.10.post1",),
        explains=("draft/triton slot0_padding",),
        expires=date(2027, 6, 1),
    )
    later = replace(STALE, target=str(FIXED))
    whole = history_of([campaign(BUGGY, (STALE,)), campaign(FIXED, (later,))], [])
    [subject] = subjects(whole, [issue])
    assert states(subject) == {"0.5.10.post1/emulated": "known", "0.5.13/emulated": "new"}
    releases = columns(targets(whole))
    [page] = pages([subject], list(releases), releases)
    why = "explained by a known issue: stale rows (https://example.org/1, until 2027-06-01)"
    assert page.notes == (("known", "0.5.10.post1/emulated", why),)
    assert changes.headline(whole, [subject])[0] == "One new failure, on 0.5.13/emulated."


def test_what_several_runners_show_is_several_findings_each_explained_by_itself() -> None:
    def issue(runner: str, release: str) -> Issue:
        return Issue(
            title=f"stale rows of {runner}",
            link="https://example.org/1",
            probes=(),
            targets=(release,),
            explains=(f"{runner}/triton slot0_padding",),
            expires=date(2027, 6, 1),
        )

    setup = replace(STALE.case.setup, runner="multi_layer", topk=1, num_draft_tokens=STALE.case.setup.num_steps + 1)
    name = fingerprint(setup.runner, setup.backend, STALE.oracle, STALE.where)
    other = replace(STALE, target=str(FIXED), fingerprint=name, case=replace(STALE.case, setup=setup))
    whole = history_of([campaign(BUGGY, (STALE,)), campaign(FIXED, (other,))], [])
    issues = [issue("draft", "<=0.5.10.post1"), issue("multi_layer", ">=0.5.13")]
    for known, later in ((issues, "known"), (issues[:1], "new")):
        states_by_runner = {subject.name.partition("/")[0]: states(subject) for subject in subjects(whole, known)}
        assert states_by_runner == {
            "draft": {"0.5.10.post1/emulated": "known"},
            "multi_layer": {"0.5.13/emulated": later},
        }
