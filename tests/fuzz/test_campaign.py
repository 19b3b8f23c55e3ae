"""The campaign: what is done in which order, what is counted, and that nothing found is ever lost."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fuzz.campaign import ATTEMPTS_MAX, REFUSALS_A_SETUP, REFUSALS_MAX, campaign
from fuzz.case_source import CaseStream
from fuzz.triage import FIRST_TRIES, Hooks, led_up
from oracles.catalogue import judge_all, overall
from repro.cases import codec
from repro.cases.case import STEPS_MAX, Case, Target, problems
from repro.commands.cli import ended
from repro.shrinking.store import keep
from repro.traces.campaign import Campaign
from repro.traces.finding import Finding, Status, Verdict
from repro.traces.trace import End, Termination, Trace
from runners.processes.diagnose import locate_first
from runners.processes.pool import Pool
from tests.builders.campaign_world import FAIL, PASS, PLAN, World, drawn, padded_after_larger, trace_of


def test_clean_target() -> None:
    world = World(fails=lambda case: [])
    done = world.go()
    assert world.log == ["run"] * 40
    assert (done.cases, done.judged, done.stopped, done.findings, done.error) == (40, 40, "cases", (), "")
    assert done.replays == sum(len(case.steps) for case in world.ran)
    assert done.setups == 5
    assert done.verdicts == {"oracle": {"pass": 40}}
    assert done.endings == {"done": 40}
    assert done.seconds == pytest.approx(4.0)
    assert done.facts == {"engine": "fake"}
    assert sum(covered.count for covered in done.transitions) == done.replays
    assert len(done.transitions) + len(done.transitions_missing) == done.transitions_possible
    assert [progress.cases for progress in world.progress] == list(range(41))


def test_same_seed_same_cases_whatever_the_target_answers() -> None:
    """Triage runs cases of its own, which are not the campaign's."""
    clean, buggy = World(fails=lambda case: []), World()
    clean.go()
    plan = replace(PLAN, triage=False)
    buggy.go(plan)
    assert buggy.ran == clean.ran == list(itertools.islice(drawn(), 40))
    longer = World(fails=lambda case: [])
    longer.go(replace(PLAN, cases=60))
    assert longer.ran[:40] == clean.ran


def test_order_keep_check_shrink_confirm_keep() -> None:
    world = World()
    done = world.go(replace(PLAN, stop_at_first=True))
    first = world.log.index("keep")
    assert set(world.log[:first]) == {"run"}
    assert world.log[first + 1] == "fresh"
    assert world.log[-4:] == ["fresh", "fresh", "fresh", "keep"]
    # In between only shrinking: every better form is stored the moment it is known.
    middle = world.log[first + 2 : -4]
    assert set(middle) == {"run", "keep"}
    assert middle[:1] == ["run"]
    finding = done.findings[0]
    assert done.stopped == "first finding"
    assert (finding.failed, finding.tried, finding.oracle, finding.where) == (3, 3, "oracle", "here")
    assert (finding.fingerprint, finding.cell) == (FAIL.fingerprint, FAIL.cell)
    assert finding.seed == f"{FAIL.fingerprint}.json"
    assert finding.shrink_runs == middle.count("run")
    assert finding.case == world.kept[-1].case
    # The first time counts, though the finding was put again and again.
    assert finding.at_seconds == pytest.approx(0.1 * finding.at_case)
    assert finding.done_seconds > finding.at_seconds
    assert [len(step.requests) for step in finding.case.steps] == [2, 1]
    sizes = [sum(len(step.requests) for step in finding.case.steps) for finding in world.kept]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.slow
def test_known_fingerprint_is_counted_and_not_shrunk_again() -> None:
    world = World()
    done = world.go(replace(PLAN, cases=200))
    assert len(done.findings) == 1
    assert done.cases == 200
    shown = sum(padded_after_larger(case) for case in itertools.islice(drawn(), 200))
    assert done.findings[0].cases == done.verdicts["oracle"]["fail"] == shown > 1
    assert world.log.count("fresh") == 1 + PLAN.confirm_tries


def test_without_triage_only_the_first_form_is_kept() -> None:
    world = World()
    done = world.go(replace(PLAN, triage=False))
    assert world.log.count("keep") == 1
    assert "fresh" not in world.log
    assert (done.findings[0].failed, done.findings[0].tried) == (0, 0)
    assert done.findings[0].cases == done.verdicts["oracle"]["fail"]


def test_what_does_not_come_back_stays_and_is_tried_again() -> None:
    world = World(fails=lambda case: [FAIL], fails_fresh=lambda case: [])
    done = world.go()
    assert done.stopped == "cases"
    (finding,) = done.findings
    assert finding.failed == 0
    assert finding.tried in (FIRST_TRIES, 2 * FIRST_TRIES)
    assert finding.cases == 40
    assert finding.at_case == 1
    # The first attempt has nothing before it; those after it also try the case behind what its session had run.
    assert world.log.count("keep") == 2 * ATTEMPTS_MAX
    assert world.log.count("fresh") <= FIRST_TRIES * (2 * ATTEMPTS_MAX)
    # It never ends a campaign as if it were a finding one can show.
    assert (
        World(fails=lambda case: [FAIL], fails_fresh=lambda case: []).go(replace(PLAN, stop_at_first=True)).cases == 40
    )


def test_failure_that_needs_earlier_cases_of_its_session() -> None:
    """Live, the third case of a session fails; alone it does not; behind the two before it, it does."""
    lived: list[Case] = []

    def fails(case: Case) -> list[Verdict]:
        lived[:] = [*lived, case] if lived and lived[-1].setup == case.setup else [case]
        return [FAIL] if sum(len(case_run.steps) for case_run in lived) >= 7 else []

    world = World(fails=fails, fails_fresh=lambda case: [FAIL] if len(case.steps) >= 7 else [])
    done = world.go(replace(PLAN, stop_at_first=True, shrink_runs=300))
    (finding,) = done.findings
    assert (finding.failed, finding.tried) == (3, 3)
    # Shrunk in the kept session it came down to nothing; in processes of their own the true minimum was found.
    assert len(finding.case.steps) == 7
    assert problems(finding.case) == []


@pytest.mark.parametrize("ends_before, candidates", [(Termination.DONE, 2), (Termination.CRASHED, 1)])
def test_what_led_up_is_what_the_same_session_ran(ends_before: Termination, candidates: int) -> None:
    """The failure shows at the third case of the campaign; a run that crashed took its session with it."""
    third = list(itertools.islice(drawn(), 3))[2]
    world = World(
        fails=lambda case: [FAIL] if case == third else [],
        fails_fresh=lambda case: [],
        ends=lambda case: trace_of(case, Termination.DONE if case == third else ends_before),
    )
    world.go(replace(PLAN, cases=3))
    assert world.log.count("fresh") == candidates * FIRST_TRIES


def test_another_setup_is_another_session() -> None:
    ninth = list(itertools.islice(drawn(), 9))[8]
    world = World(fails=lambda case: [FAIL] if case == ninth else [], fails_fresh=lambda case: [])
    world.go(replace(PLAN, cases=9))
    assert world.log.count("fresh") == FIRST_TRIES


def test_led_up_takes_what_fits() -> None:
    case = next(drawn())
    step = case.steps[:1]
    long_case, last = replace(case, steps=step * 30), replace(case, steps=step * 5)
    assert led_up([], last) is None
    assert led_up([replace(case, steps=step * STEPS_MAX)], last) is None
    joined = led_up([long_case, long_case, long_case], last)
    assert joined is not None
    assert len(joined.steps) == 35
    joined = led_up([long_case, last], last)
    assert joined is not None
    assert joined.steps == long_case.steps + last.steps + last.steps


@pytest.mark.parametrize("at", [("run", 1), ("run", 7)])
def test_interrupted_between_findings(at: tuple[str, int]) -> None:
    done = World(fails=lambda case: [], interrupt_at=at).go()
    assert (done.stopped, done.cases) == ("interrupted", at[1] - 1)


def test_interrupted_while_a_case_is_counted() -> None:
    world, noted = World(fails=lambda case: []), list[Case]()

    def note(case: Case, trace: Trace, verdicts: Sequence[Verdict], status: Status) -> None:
        if len(noted) == 2:
            signal.raise_signal(signal.SIGTERM)
        noted.append(case)

    def work() -> int:
        done = campaign(PLAN, CaseStream(drawn(PLAN)), replace(world.hooks(), note=note))
        return int(done.stopped == "interrupted" and done.cases == len(noted) == 3)

    assert ended(work) == 1


@pytest.mark.parametrize("number", range(1, 7))
def test_interrupted_during_triage_keeps_the_best_so_far(number: int) -> None:
    """In the check, in shrinking or in the last count: the finding is in the record and on disk."""
    for name in ("fresh", "keep"):
        world = World(interrupt_at=(name, number))
        done = world.go(replace(PLAN, stop_at_first=True))
        if done.stopped == "first finding":
            assert world.log.count(name) < number
            continue
        assert done.stopped == "interrupted"
        (finding,) = done.findings
        assert finding.case == world.kept[-1].case
        # Only an interruption within the very first storing leaves no path.
        assert bool(finding.seed) == ((name, number) != ("keep", 1))


def test_interrupted_while_shrinking() -> None:
    whole = World()
    whole.go(replace(PLAN, stop_at_first=True))
    second = [n for n, what in enumerate(whole.log) if what == "keep"][1]
    world = World(interrupt_at=("run", whole.log[:second].count("run") + 1))
    done = world.go(replace(PLAN, stop_at_first=True))
    assert done.stopped == "interrupted"
    assert done.findings[0].case == world.kept[-1].case != world.kept[0].case
    assert done.findings[0].failed == 0


def test_time_limit() -> None:
    """Behind the first case, which takes as long as imports do."""
    done = World(fails=lambda case: [], seconds_a_run=0.5).go(replace(PLAN, cases=None, seconds=3.0))
    assert (done.stopped, done.cases) == ("time", 7)


def test_triage_that_goes_on_long_after_the_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(case: Case) -> Trace:
        time.sleep(300)
        raise AssertionError("it has not been left")

    monkeypatch.setattr("fuzz.campaign.OVERTIME_S", 0.1)
    world, start = World(), time.monotonic()
    hooks = replace(world.hooks(), run_fresh=hang)
    done = campaign(replace(PLAN, cases=None, seconds=0.1), CaseStream(drawn(PLAN)), hooks)
    assert done.stopped == "time" and time.monotonic() - start < 200
    (finding,) = done.findings
    assert finding.seed and finding.case == world.kept[-1].case
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_cases_that_run_out() -> None:
    done = World(fails=lambda case: []).go(cases=itertools.islice(drawn(), 3))
    assert (done.stopped, done.cases) == ("cases", 3)


def test_full_disk_ends_the_campaign_with_what_it_has() -> None:
    class Full(World):
        def keep(self, finding: Finding) -> str:
            raise OSError(28, "No space left on device")

    done = Full().go()
    assert done.stopped == "error"
    assert "No space left" in done.error
    assert (done.findings[0].seed, done.findings[0].oracle) == ("", "oracle")


@pytest.mark.parametrize(("how", "name"), [(Termination.UNSUPPORTED, "unsupported"), (Termination.ERROR, "errors")])
def test_runs_that_cannot_be_made_are_told_by_reason_and_do_not_go_on_for_ever(how: Termination, name: str) -> None:
    def refused(case: Case) -> Trace:
        return Trace(ended=End(how=how, what="worker 123 said 7 words\nand more"))

    def doubt(case: Case) -> list[Verdict]:
        return [Verdict(oracle="oracle7", status=Status.UNKNOWN, detail="row 3 of 5 is missing")]

    done = World(fails=doubt, ends=refused).go(replace(PLAN, cases=1000))
    assert (done.stopped, done.cases, done.judged) == ("cannot run", REFUSALS_MAX, 0)
    counts: dict[str, dict[str, int]] = {"unsupported": {}, "errors": {}} | {
        name: {"worker 123 said 7 words": REFUSALS_MAX}
    }
    assert {"unsupported": done.unsupported, "errors": done.errors} == counts
    assert done.unknown == {}  # for that one reason
    assert done.verdicts == {"oracle7": {"unknown": REFUSALS_MAX}}
    assert (done.replays, done.transitions) == (0, ())
    # So many cases of every setup showed that it cannot be built; the others of it were not tried.
    each = 1 if how is Termination.UNSUPPORTED else REFUSALS_A_SETUP
    assert (done.setups, done.skipped // (8 - each)) == (REFUSALS_MAX // each, REFUSALS_MAX // each - 1)


def test_doubts_are_told_by_reason() -> None:
    def doubt(case: Case) -> list[Verdict]:
        by_detail = Verdict(oracle="oracle7", status=Status.UNKNOWN, detail="row 3 of 5 is missing")
        return [by_detail, Verdict(oracle="other", status=Status.UNKNOWN, where="tie", detail="at row 7"), PASS]

    done = World(fails=doubt).go(replace(PLAN, cases=6))
    assert done.unknown == {"oracle7: row 3 of 5 is missing": 6, "other: tie": 6}
    assert done.judged == 0  # by `worst`, which stands in for the catalogue here


@pytest.mark.parametrize("how", [Termination.UNSUPPORTED, Termination.ERROR, Termination.RAISED])
def test_a_setup_that_cannot_be_built_is_left_for_the_next(how: Termination) -> None:
    cases = list(itertools.islice(drawn(), 26))

    def ends(case: Case) -> Trace:
        refused = case.setup == cases[8].setup
        return Trace(ended=End(how=how, what="no such setup")) if refused else trace_of(case)

    world = World(fails=lambda case: [], ends=ends)
    done = world.go(replace(PLAN, cases=18))
    tried = 1 if how is Termination.UNSUPPORTED else 2
    assert world.ran == cases[: 8 + tried] + cases[16 : 26 - tried]
    assert (done.skipped, done.endings[how.value]) == (8 - tried, tried)


def test_a_setup_that_was_built_stays_in_use() -> None:
    """A run that could not be made behind one that could is no reason to leave: a worker that was killed, say."""
    cases = list(itertools.islice(drawn(), 8))

    def ends(case: Case) -> Trace:
        return trace_of(case) if case == cases[0] else Trace(ended=End(how=Termination.ERROR, what="no worker"))

    world = World(fails=lambda case: [], ends=ends)
    assert world.go(replace(PLAN, cases=8)).skipped == 0
    assert world.ran == cases


def test_stages_split_a_run() -> None:
    done = World(fails=lambda case: [], seconds_a_run=5.0).go(replace(PLAN, cases=2))
    assert done.stages == pytest.approx(
        {"draw": 0, "build": 1, "graph": 4, "eager": 2, "record": 0.5, "reference": 0, "pass": 2.5, "judge": 0}
    )


def toy_campaign(name: str, folder: Path, cases: int) -> Campaign:
    """The whole line on a toy target, with real processes and files."""
    plan = replace(PLAN, target=Target(name, "toy"), cases=cases)
    with Pool(plan.target, log=folder / "log") as pool:
        hooks = Hooks(
            run=pool.run,
            run_fresh=pool.run_fresh,
            judge=judge_all,
            overall=overall,
            keep=lambda finding: str(keep(folder, finding)),
            tell=lambda progress: None,
            clock=lambda: 0.0,
            send=pool.send,
            expect=pool.expect,
            locate=partial(locate_first, pool, judge=judge_all),
        )
        return campaign(plan, CaseStream(drawn(plan)), hooks)


@pytest.mark.slow
def test_toy_stale_padding_from_draw_to_seed_file(tmp_path: Path) -> None:
    done = toy_campaign("stale_padding", tmp_path, 24)
    (finding,) = done.findings
    assert finding.where == "padded rows of req_pool_indices"
    stale = [f"slot0_padding: padded rows of {name}" for name in ("topk_p", "topk_index", "hidden_states")]
    assert list(finding.consequences[:3]) == stale
    assert (finding.failed, finding.tried) == (3, 3)
    assert [len(step.requests) for step in finding.case.steps] == [2, 1]
    seed = codec.read(Path(finding.seed))
    assert seed.case == finding.case
    assert seed.about["oracle"] == "slot0_padding"
    assert str(seed.about["consequences"]).startswith("; ".join(stale))
    # The detail of a confirmed finding says where it began.
    first = f"First wrong: {finding.cell} (slot0_padding)."
    assert finding.detail.endswith(first)
    assert str(seed.about["detail"]).endswith(first)
    assert done.judged == done.cases == 24


@pytest.mark.slow
def test_toy_clean_gives_no_alarm(tmp_path: Path) -> None:
    done = toy_campaign("clean", tmp_path, 48)
    assert (done.findings, done.judged, done.endings) == ((), 48, {"done": 48})
