"""A kernel that has failed: a failure of the case that ran it, wherever it comes out, and of no other."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.__main__ import main
from fuzz.campaign import campaign
from fuzz.case_source import CaseStream
from fuzz.triage import Hooks
from oracles import ended
from oracles.catalogue import judge_all, overall
from repro.cases import codec
from repro.cases.case import Case, Target
from repro.cases.release_list import NEWEST
from repro.shrinking.store import LEAD_UP, keep
from repro.traces.campaign import loads
from repro.traces.device_errors import cuda_error, device_fault, fault_in
from repro.traces.exit_codes import ExitCode
from repro.traces.finding import ENDED, Status, Verdict
from repro.traces.run_with_past import RunWithPast
from repro.traces.trace import End, Termination, Trace
from repro.upstream.edits import Edit
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from runners.targets.overlay import Overlay, make_overlay
from tests.builders.campaign_world import PLAN, World, trace_of
from tests.builders.cases import case_of, setup_of
from tests.builders.faults import PLACES, SLOTS_OF_FAULTY, faulty
from tests.builders.misbehaving import ILLEGAL, RESTING_S, going
from tests.builders.tiers import few
from tests.builders.waiting import comes
from tests.runners.processes.test_pool import MODULE, TARGET, alive

FAULT = "CUDA error: an illegal memory access"
WELL = going("well")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(TARGET, session=MODULE, timeout_s=20, setups_per_session=16) as opened:
        yield opened


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (ILLEGAL, FAULT),
        ("Triton Error [CUDA]: an illegal memory access was encountered", FAULT),
        ("CUDA error: device-side assert triggered\nCompile with", "CUDA error: device-side assert triggered"),
        ("CUDA error: misaligned address", "CUDA error: misaligned address"),
        ("CUDA out of memory. Tried to allocate 20.00 GiB", ""),
        (f"CUDA out of memory. Tried to allocate\n{ILLEGAL}", FAULT),
        ("CUDA error: operation not permitted when stream is capturing", ""),
        ("CUDA error: invalid argument", ""),
        ("CUDA error: invalid configuration argument\n" + ILLEGAL, FAULT),
        ("an illegal memory access, says the manual", ""),
    ],
)
def test_what_the_host_is_told_at_once_is_no_fault(text: str, fault: str) -> None:
    assert device_fault(text) == fault
    assert bool(cuda_error(text)) or not fault


def test_a_fault_is_found_behind_whatever_was_raised_for_it() -> None:
    fault = RuntimeError(ILLEGAL)
    for raised in (
        fault,
        _raised_for(fault, fault),
        _raised_for(fault, None),
        _raised_for(_raised_for(fault, fault), None),
    ):
        assert fault_in(raised) is fault
    assert fault_in(_raised_for(RuntimeError("CUDA error: invalid argument"), None)) is None


def _raised_for(error: BaseException, cause: BaseException | None) -> BaseException:
    try:
        try:
            raise error
        except BaseException:
            raise KeyError("slot") from cause
    except KeyError as raised:
        return raised


@pytest.mark.parametrize(
    ("way", "how", "step", "path"),
    [
        ("raise-cuda", Termination.RAISED, 1, "graph"),
        ("fault-in-copy", Termination.RAISED, 1, "graph"),
        ("fault-in-flight", Termination.RAISED, 1, "graph"),
        ("abort-with-cuda-error", Termination.CRASHED, 1, "graph"),
        ("abort-with-long-dump", Termination.CRASHED, 1, "graph"),
        ("fault-in-build", Termination.RAISED, -1, "build"),
        ("abort-in-build", Termination.CRASHED, -1, "build"),
    ],
)
def test_wherever_it_comes_out_it_is_no_error_of_the_harness(
    way: str, how: Termination, step: int, path: str, pool: Pool
) -> None:
    ended = pool.run(going(way)).ended
    assert (ended.how, ended.what, ended.step, ended.path) == (how, FAULT, step, path), ended
    assert pool.run(WELL).ended.how is Termination.DONE
    assert pool.past == (), "the process ended with it"
    assert not pool.late


@pytest.mark.parametrize(
    ("way", "what"), [("fault-at-close", FAULT), ("abort-at-close", FAULT), ("silent-abort-at-close", "SIGABRT")]
)
def test_what_comes_out_while_a_session_closes_is_the_case_before(way: str, what: str, pool: Pool) -> None:
    first, last = going(way), going(way, steps=2)
    for case in (WELL, first, last):
        assert pool.run(case).ended.how is Termination.DONE
    trace = pool.run(WELL)
    assert trace.ended.how is Termination.DONE
    assert what in trace.facts["sessions lost"]
    (late,) = _taken(pool)
    assert late.case == last and late.history == (first,) and late.past[-1:] == (WELL.setup,)
    ended = late.trace.ended
    assert (ended.how, ended.what, ended.step, ended.path) == (Termination.CRASHED, what, 1, "close"), ended
    assert late.trace.facts == {"way": way}
    assert pool.past == (), "the process is gone"
    # From now on a fresh run closes its session, too, so that it shows what the case does.
    for case in (first, last):
        ended = pool.run_fresh(case).ended
        assert (ended.what, ended.step, ended.path) == (what, len(case.steps) - 1, "close"), ended
    assert pool.run_fresh(WELL).ended.how is Termination.DONE
    assert pool.run_fresh(going("stays")).ended.how is Termination.DONE
    assert not pool.late


def test_what_comes_out_between_two_cases_is_the_one_before(pool: Pool) -> None:
    case, following = going("abort-at-rest"), going("abort-at-rest", steps=1)
    pool.run(case)
    pid = pool.session_pid
    assert pid and comes(lambda: not alive(pid), 20 * RESTING_S)
    assert pool.run(following).ended.how is Termination.DONE
    (late,) = _taken(pool)
    assert (late.case, late.trace.ended.what, late.trace.ended.path) == (case, FAULT, "rest")


def test_what_comes_out_before_any_case_is_the_setup_that_was_opened() -> None:
    case = going("abort-once-opened")
    with Pool(TARGET, session=MODULE, timeout_s=20, standbys=1) as pool:
        pool.expect([case.setup])
        pool.run(WELL)
        (standby,) = pool._standbys
        assert comes(lambda: not alive(standby.pid), 20 * RESTING_S)
        ended = pool.run(case).ended
        assert (ended.how, ended.what, ended.step, ended.path) == (Termination.CRASHED, FAULT, -1, "rest"), ended
        assert not pool.late


@pytest.mark.parametrize("way", ["stays", "no-room-at-close"])
def test_what_the_harness_lacks_while_a_session_closes_blames_no_case(way: str, pool: Pool) -> None:
    pool.run(going(way))
    trace = pool.run(WELL)
    assert trace.ended.how is Termination.DONE
    assert "closed the setup before: exit 1" in trace.facts["sessions lost"]
    assert not pool.late


def test_a_killed_process_blames_no_case(pool: Pool) -> None:
    pool.run(WELL)
    os.kill(pool.session_pid or 0, signal.SIGKILL)
    assert pool.run(WELL).ended.how is Termination.DONE
    assert not pool.late


def test_cases_that_were_sent_ahead_are_run_elsewhere(pool: Pool) -> None:
    bad, following = going("raise-cuda"), [going("raise-cuda", steps=1), going("raise-cuda", steps=1)]
    pool.send(following)
    assert pool.run(bad).ended.what == FAULT
    for case in following:
        assert pool.run(case).ended.how is Termination.DONE
    assert not pool.late


def _taken(pool: Pool) -> list[RunWithPast]:
    late, pool.late = pool.late, []
    return late


CASES = tuple(replace(WELL, setup=replace(WELL.setup, slots=number)) for number in range(5, 15))


def ended_by(case: Case, trace: Trace) -> list[Verdict]:
    """The verdicts of the oracle `ended`, and of one that the trace has nothing for."""
    return [ended.judge(case, trace), Verdict(oracle="other", status=Status.PASS)]


def crashed(case: Case, path: str, how: Termination = Termination.RAISED) -> Trace:
    return replace(trace_of(case), ended=End(how=how, step=0, path=path, what=FAULT))


class Device(World):
    """A device on which a kernel fails in each of these cases; it comes out somewhere else each time."""

    def __init__(self, *bad: Case, waited: bool = True) -> None:
        super().__init__(ends=self.end)
        self.bad, self.waited, self.paths = bad, waited, iter("abcdefghijklmnopqrstuvwxyz")

    def end(self, case: Case) -> Trace:
        return crashed(case, next(self.paths)) if case in self.bad else trace_of(case)

    def judge(self, case: Case, trace: Trace) -> Sequence[Verdict]:
        return ended_by(case, trace)

    def end_waiting(self, case: Case) -> Trace:
        self.note("waiting")
        return crashed(case, "replay") if case.setup in {bad.setup for bad in self.bad} else trace_of(case)

    def hooks(self) -> Hooks:
        hooks = super().hooks()
        waiting = replace(hooks, run=self.end_waiting, run_fresh=self.end_waiting)
        return replace(hooks, waiting=(lambda: waiting) if self.waited else None)


def test_a_fault_has_the_name_that_it_has_where_every_launch_is_waited_for() -> None:
    """And one name, wherever it came out at first."""
    done = Device(CASES[1], CASES[3]).go(replace(PLAN, cases=6), iter(CASES))
    (finding,) = done.findings
    assert (finding.where, finding.cases, finding.failed, finding.tried) == (f"raised {FAULT} in replay", 2, 3, 3)
    assert len(finding.case.steps) == 1, "it was made small there, too"


def test_a_fault_that_waiting_drives_away_is_kept_as_it_was() -> None:
    world = Device(CASES[1])
    world.end_waiting = trace_of  # type: ignore[method-assign]  # the world as it is in this test
    (finding,) = world.go(replace(PLAN, cases=3), iter(CASES)).findings
    assert (finding.where, finding.failed) == (f"raised {FAULT} in a", 0)


@pytest.mark.parametrize(
    ("accesses", "words"),
    [
        (None, ""),
        ([], " Under a memory checker, by itself: no bad access."),
        (["Invalid __global__ read in _fwd_kernel"], "by itself: Invalid __global__ read in _fwd_kernel."),
    ],
)
def test_a_fault_that_no_fresh_process_shows_is_run_under_a_memory_checker(
    accesses: list[str] | None, words: str
) -> None:
    world, checked = Device(CASES[1]), list[Case]()
    world.end_waiting = trace_of  # type: ignore[method-assign]  # the world as it is in this test

    def check(case: Case) -> list[str]:
        checked.append(case)
        return accesses or []

    hooks = replace(world.hooks(), check_memory=check if accesses is not None else None)
    (finding,) = campaign(replace(PLAN, cases=3), CaseStream(iter(CASES)), hooks).findings
    assert finding.failed == 0
    assert finding.detail.endswith(words)
    assert ("memory checker" in finding.detail) == bool(words)
    assert checked == ([finding.case] if accesses is not None else [])


def test_what_is_no_fault_is_not_asked_about() -> None:
    world = Device(CASES[1])
    # The world as it is in this test.
    world.end = lambda case: replace(crashed(case, "a"), ended=End(how=Termination.RAISED, what="KeyError"))  # type: ignore[method-assign]
    world.ends = world.end
    world.go(replace(PLAN, cases=3, triage=False), iter(CASES))
    assert "waiting" not in world.log


def test_a_failure_that_comes_to_light_later_is_the_earlier_cases(tmp_path: Path) -> None:
    """No fresh process shows it: it says so, and what had run before it is kept."""
    first, bad, following = (replace(WELL, steps=WELL.steps[:n]) for n in (1, 2, 3))
    trace = replace(crashed(bad, "close", Termination.CRASHED), seen=())
    late = [RunWithPast(case=bad, trace=trace, past=(first.setup,), history=(first,))]
    world = World()

    def come_to_light() -> list[RunWithPast]:
        return [late.pop()] if late and world.ran[-1] == following else []

    hooks = replace(
        world.hooks(), judge=ended_by, late=come_to_light, keep=lambda finding: str(keep(tmp_path, finding))
    )
    done = campaign(replace(PLAN, cases=3), CaseStream(iter((first, bad, following))), hooks)
    (single,) = done.findings
    assert (single.where, single.case, single.failed) == (f"raised {FAULT} in close", bad, 0)
    assert "1 steps before it, and in none of 4 fresh ones" in single.detail
    assert done.judged == 3, "what was counted as it ended is not counted twice"
    stored = codec.read(Path(single.seed).with_suffix(LEAD_UP)).case
    assert stored.steps == first.steps + bad.steps


FAULTY = "tests.builders.faulting_session"
SETUP = setup_of("draft", "triton", topk=1, num_steps=2, num_draft_tokens=3, capture_bs=(1,), slots=6)
GOOD = case_of(SETUP, ((1, 9, 1),))


@pytest.fixture(scope="module")
def live(target: Target) -> Iterator[Pool]:
    if target.sglang != NEWEST:
        pytest.skip("what fails is the harness's and the emulated engine's: one release is enough")
    with Pool(target, session=FAULTY, setups_per_session=16) as opened:
        yield opened


@pytest.mark.emulated
@pytest.mark.parametrize("place", few(PLACES, 3))
def test_a_kernel_that_fails_is_a_failure_of_its_case_alone(place: str, live: Pool) -> None:
    bad, other = faulty(GOOD, place), replace(GOOD, setup=replace(SETUP, slots=7))
    # Where nothing has run before it, it comes out while another history is made.
    if place != "the first launch":
        assert overall(judge_all(GOOD, live.run(GOOD))) is Status.PASS
    # A session that was sent further cases is not closed for another setup.
    following = (other,) if place == "closing" else (GOOD, other)
    live.send(following[:-1])
    trace = live.run(bad)
    for case in following:
        assert overall(judge_all(case, live.run(case))) is Status.PASS
    late = _taken(live)
    assert [run.case for run in late] == ([bad] if place == "closing" else [])
    (failure,) = [v for v in judge_all(bad, late[0].trace if late else trace) if v.status is Status.FAIL]
    assert failure.oracle == ENDED
    assert FAULT in failure.where and FAULT in failure.detail, failure


@pytest.mark.emulated
def test_a_kernel_that_fails_while_a_setup_opens_is_a_failure(live: Pool) -> None:
    bad = replace(GOOD, setup=replace(SETUP, slots=SLOTS_OF_FAULTY))
    live.run(GOOD)
    trace = live.run(bad)
    assert (trace.ended.how, trace.ended.what) == (Termination.RAISED, FAULT)
    assert overall(judge_all(bad, trace)) is Status.FAIL
    assert overall(judge_all(GOOD, live.run(GOOD))) is Status.PASS


FAILS = Edit(
    file="sglang/srt/speculative/eagle_draft_cuda_graph_runner.py",
    function="EAGLEDraftCudaGraphRunner.execute",
    old="num_tokens = bs * self.captured_req_width",
    new="num_tokens = bs * self.captured_req_width\n"
    "if bs > raw_bs:\n"
    "    from tests.builders.failed_kernel import fail\n"
    "    fail()",
)


@pytest.mark.exhaustive
@pytest.mark.emulated
def test_a_campaign_finds_it_and_keeps_it(target: Target, tmp_path: Path) -> None:
    """In this release a kernel fails in padded batches; a copy of the harness's comes upon it."""
    if target.sglang != NEWEST:
        pytest.skip("the failing kernel is planted in one release")  # each edit opens sessions of its own
    overlay = make_overlay(
        sglang_path(target), Overlay(release=target.sglang, change="a failing kernel"), [FAILS], tmp_path
    )
    out = tmp_path / "out"
    options = "--runner draft --backend triton --cases 6 --seed 3 --setups-per-session 4 --no-known-issues"
    limits = "--confirm 1 --shrink-runs 2"
    # In this process, whose fork server has imported torch.
    assert main(f"run --target {overlay}@emulated --out {out} {options} {limits}".split()) == ExitCode.FAIL
    (done,) = loads((out / "record.json").read_text())[0]
    assert not done.errors and done.cases == 6
    padded = [finding for finding in done.findings if finding.oracle == ENDED]
    assert padded and len(padded) == len(done.findings)
    for finding in padded:
        assert FAULT in finding.where and finding.failed == finding.tried == 1
        case = codec.read(Path(finding.seed)).case
        assert any(case.setup.bucket(len(step.requests)) > len(step.requests) for step in case.steps)
