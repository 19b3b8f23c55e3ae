"""A campaign's treatment of failures: by their cause, and where known issues explain them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from reports.campaign import summary
from repro.cases.case import Case
from repro.ledger.explain import Explained
from repro.ledger.known import Issue
from repro.traces.campaign import Campaign
from repro.traces.finding import Cell, Status, Verdict
from tests.builders.campaign_world import FAIL, OTHER, PLAN, World, padded_after_larger

LATER = replace(FAIL, oracle="later", cell=Cell(step=1, buffer="b", row=0, column=0, got="3", want="0"))


def test_of_failures_of_one_case_the_first_wrong_value_is_the_finding() -> None:
    """Whatever the order of the verdicts: by its step. The others hang on it."""
    world = World(fails=lambda case: [OTHER, LATER, FAIL] if padded_after_larger(case) else [])
    (failure,) = world.go().findings
    assert (failure.oracle, failure.failed, failure.consequences) == ("oracle", 3, ("later: here", "other: there"))
    assert {finding.verdict.oracle for finding in world.kept} == {"oracle"}
    assert world.kept[-1].consequences == failure.consequences


def test_what_was_wrong_before_any_step_is_the_cause_of_nothing_else() -> None:
    lint = replace(FAIL, oracle="lint", cell=Cell(step=-1, buffer="x", row=-1, column=-1, got="absent", want=""))
    world = World(fails=lambda case: [lint, OTHER] if padded_after_larger(case) else [])
    failures = world.go().findings
    assert [(failure.oracle, failure.failed, failure.consequences) for failure in failures] == [
        ("lint", 3, ()),
        ("other", 3, ()),
    ]
    # Asked to stop at the first, it does not even look at the second.
    assert len(World(fails=world.fails).go(replace(PLAN, stop_at_first=True)).findings) == 1


def failing_by(*failures: Verdict) -> World:
    return World(fails=lambda case: failures if padded_after_larger(case) else [])


def test_a_kernel_that_failed_is_a_finding_whatever_else_was_wrong() -> None:
    fault = Verdict(oracle="ended", status=Status.FAIL, where="raised CUDA error: an illegal memory access in replay")
    raised = replace(fault, where="raised IndexError in replay")
    for ended, findings in ((fault, ["ended", "oracle"]), (raised, ["oracle"])):
        assert [failure.oracle for failure in failing_by(ended, FAIL).go().findings] == findings


def test_a_known_consequence_alone_is_another_cause_only_where_the_known_one_was_right() -> None:
    """On the first setup the cause and what follows from it; then what follows alone, the cause's oracle in doubt or
    right."""
    for status, findings in ((Status.UNKNOWN, ["oracle"]), (Status.PASS, ["oracle", "other"])):
        firsts: list[Case] = []

        def fails(case: Case, status: Status = status, firsts: list[Case] = firsts) -> list[Verdict]:
            if not padded_after_larger(case):
                return []
            firsts.append(case)
            alone = case.setup.slots != firsts[0].setup.slots
            return [replace(FAIL, status=status), OTHER] if alone else [FAIL, OTHER]

        done = World(fails=fails).go(replace(PLAN, cases=120))
        assert [failure.oracle for failure in done.findings] == findings
        assert sum(failure.cases for failure in done.findings) == done.verdicts["other"]["fail"]


def test_an_end_that_did_not_come_back_with_a_cause_stands_alone_in_other_cases() -> None:
    """A session that was killed just behind a wrong value: the next one that is killed has nothing to do with it."""
    killed = Verdict(oracle="ended", status=Status.FAIL, where="crashed SIGKILL in replay")
    doubt = replace(FAIL, status=Status.UNKNOWN)
    for back, findings in ((True, ["oracle"]), (False, ["oracle", "ended"])):
        ran: list[Case] = []

        def fails(case: Case, back: bool = back, ran: list[Case] = ran) -> list[Verdict]:
            if not padded_after_larger(case):
                return []
            ran.append(case)
            if case.setup.slots != ran[0].setup.slots:
                return [doubt, killed]
            return [FAIL, killed] if back or len(ran) == 1 else [FAIL]

        done = World(fails=fails).go(replace(PLAN, cases=120))
        assert [finding.oracle for finding in done.findings] == findings


def test_a_first_wrong_value_that_does_not_come_back_leaves_the_next() -> None:
    world = World(
        fails=lambda case: [FAIL, OTHER] if padded_after_larger(case) else [],
        fails_fresh=lambda case: [OTHER] if padded_after_larger(case) else [],
    )
    assert {failure.oracle: failure.failed > 0 for failure in world.go().findings} == {"oracle": False, "other": True}


KNOWN = Issue(
    title="rows are stale", link="", probes=(), targets=(), explains=("draft/triton oracle",), expires=date(2099, 1, 1)
)


def test_what_known_issues_explain_is_counted_and_no_finding() -> None:
    """A case counts once, however many issues it shows, and not where they leave all that failed."""
    world = World(fails=lambda case: [FAIL, OTHER] if padded_after_larger(case) else [])
    two = Explained(issues=(KNOWN, replace(KNOWN, title="another")), only_mended=(OTHER,))
    stored: list[Case] = []

    def store(case: Case, failure: Verdict) -> str:
        stored.append(case)
        return f"{failure.oracle}.json"

    done = world.go(hooks=replace(world.hooks(), explain=lambda case, failures: two, keep_mended=store))
    shown = done.verdicts["oracle"]["fail"]
    assert done.findings == () and "fresh" not in world.log
    assert (done.known, done.only_mended) == ({str(KNOWN): shown}, {"other: there": shown})
    assert done.only_mended_seeds == {"other: there": "other.json"}
    assert len(stored) == 1 and padded_after_larger(stored[0])
    assert any(
        line.endswith("other: there; the first case (repro run --known-issues): other.json") for line in summary(done)
    )
    assert Campaign.from_json(done.to_json()) == done
    left = world.go(hooks=replace(world.hooks(), explain=lambda case, failures: Explained(left=tuple(failures))))
    assert left.known == {} and len(left.findings) == 1


def test_what_is_left_is_shrunk_on_the_target_and_not_towards_a_known_issue() -> None:
    """The same failure, of a known issue where a case has fewer than three steps."""

    def explain(case: Case, failures: Sequence[Verdict]) -> Explained:
        return Explained(left=tuple(failures)) if len(case.steps) >= 3 else Explained(issues=(KNOWN,))

    world = World()
    plain = world.go(replace(PLAN, stop_at_first=True))
    assert len(plain.findings[0].case.steps) == 2
    world = World()
    done = world.go(replace(PLAN, stop_at_first=True), hooks=replace(world.hooks(), explain=explain))
    assert [(len(failure.case.steps), failure.failed) for failure in done.findings] == [(3, 3)]
    assert done.findings[0].cell == FAIL.cell
