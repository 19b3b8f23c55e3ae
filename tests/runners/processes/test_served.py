"""Setup after setup in one session process: the traces of fresh ones, and a fresh one where that is not possible."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import pytest

from fuzz.campaign import campaign
from fuzz.case_source import CaseStream
from fuzz.draw.rounds import round_cases
from fuzz.triage import AFTER_OTHERS
from oracles.catalogue import judge_all, oversteps
from oracles.kv_indices import GUARD
from repro.cases.case import Case, Setup, Target
from repro.shrinking.store import AFTER, keep
from repro.traces.campaign import dumps, loads
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Termination, Trace
from runners.processes.log import Log
from runners.processes.pool import Pool
from runners.processes.served import Idle, kind, may_serve
from runners.processes.warm import Open
from tests.builders.campaign_world import FAIL, PLAN, World
from tests.builders.cases import setup_of
from tests.builders.misbehaving import going
from tests.builders.same_bits import bits
from tests.runners.processes.test_pool import MODULE, TARGET
from tests.runners.processes.test_warm import plain

WELL = going("well")
QUIET = Log()


def setups(count: int, case: Case = WELL) -> list[Case]:
    return [replace(case, setup=replace(case.setup, slots=4 + number)) for number in range(count)]


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(TARGET, session=MODULE, timeout_s=20, setups_per_session=3) as opened:
        yield opened


def processes(pool: Pool, cases: list[Case]) -> list[int]:
    """The process that ran each case, numbered in order."""
    seen: list[int | None] = []
    for case in cases:
        assert pool.run(case).ended.how is Termination.DONE
        seen.append(pool.session_pid)
    return [list(dict.fromkeys(seen)).index(pid) for pid in seen]


def test_a_process_serves_so_many_setups(pool: Pool) -> None:
    cases = setups(7)
    assert processes(pool, [case for case in cases for _ in range(2)]) == [0] * 6 + [1] * 6 + [2] * 2
    assert pool.past == ()


def test_the_pool_knows_what_went_before(pool: Pool) -> None:
    for case in setups(3):
        pool.run(case)
    assert pool.past == tuple(case.setup for case in setups(2))


def test_one_setup_a_session_is_as_before() -> None:
    with Pool(TARGET, session=MODULE, timeout_s=20) as pool:
        assert processes(pool, setups(3)) == [0, 1, 2]


def test_traces_say_nothing_of_the_past(pool: Pool) -> None:
    with Pool(TARGET, session=MODULE, timeout_s=20) as fresh:
        for case in setups(3):
            assert plain(pool.run(case)) == plain(fresh.run(case))


def test_setups_of_two_kinds_take_turns_in_two_processes(pool: Pool) -> None:
    first, second = setups(2)
    other, another = (replace(case, setup=replace(case.setup, algorithm="NEXTN")) for case in (first, second))
    assert processes(pool, [first, other, second, another]) == [0, 1, 0, 1]


def test_what_was_not_freed_costs_the_process_and_no_case(pool: Pool) -> None:
    stays, well = going("stays"), setups(2)[1]
    pool.run(stays)
    trace = pool.run(well)
    assert trace.ended.how is Termination.DONE
    assert "closed the setup before" in trace.facts["sessions lost"]
    assert pool.past == ()


def test_a_crash_ends_the_process_and_the_next_setup_has_a_fresh_one(pool: Pool) -> None:
    first, second = setups(2)
    pool.run(first)
    pool.run(going("crash"))
    assert pool.run(second).ended.how is Termination.DONE
    assert pool.past == ()


@pytest.mark.parametrize("way", ["raise", "crash", "raise-in-build", "refused-in-build", "crash-in-build", "print"])
def test_what_goes_wrong_after_other_setups_is_told_as_in_a_fresh_process(way: str, pool: Pool) -> None:
    with Pool(TARGET, session=MODULE, timeout_s=20) as fresh:
        expected = plain(fresh.run(going(way)))
    pool.run(WELL)
    assert plain(pool.run(going(way))) == expected


def test_a_fresh_run_has_no_past_and_leaves_none(pool: Pool) -> None:
    first, second, third = setups(3)
    pool.run(first)
    assert pool.run_fresh(second).ended.how is Termination.DONE
    assert pool.past == ()
    pool.run(third)
    assert pool.past == ()


def test_a_changed_sglang_has_processes_of_its_own(pool: Pool) -> None:
    first, second = setups(2)
    pool.run(first)
    pool.change({"edit": "any"})
    assert pool.run(second).ended.how is Termination.UNSUPPORTED, "sessions of this kind cannot be changed"
    assert pool.past == ()


def test_what_failed_serves_no_further_setup(pool: Pool) -> None:
    first, second = setups(2)
    pool.run(first)
    pool.renew()
    pool.run(second)
    assert pool.past == ()


def test_a_setup_that_was_refused_costs_no_process() -> None:
    """Nothing of it was built; cases of it that were sent with the first are not answered, and not run."""
    first, second = setups(2)
    refused = going("refused-in-build")
    with Pool(TARGET, session=MODULE, timeout_s=20, setups_per_session=16) as pool:
        pool.run(first)
        pid = pool.session_pid
        for _ in range(2):
            pool.send([replace(refused, steps=refused.steps[:1])])
            assert pool.run(refused).ended.how is Termination.UNSUPPORTED
            assert pool.session_pid is None
        assert pool.run(second).ended.how is Termination.DONE
        assert pool.session_pid == pid
        assert pool.past == (first.setup, refused.setup, refused.setup)


@pytest.mark.parametrize(("way", "goes_on"), [("raise", True), ("raise-cuda", False), ("raise-in-capture", False)])
def test_what_raised_costs_a_process_only_where_the_device_failed_or_nothing_was_built(way: str, goes_on: bool) -> None:
    bad, good = going(way), going(way, steps=1)
    with Pool(TARGET, session=MODULE, timeout_s=20, setups_per_session=16) as pool:
        pool.run(WELL)
        pid = pool.session_pid
        for _ in range(2):
            pool.send([good])
            assert pool.run(bad).ended.how is Termination.RAISED
        trace = pool.run(WELL)
        assert trace.ended.how is Termination.DONE
        assert (pool.session_pid == pid) is goes_on
        assert pool.past == ((WELL.setup, bad.setup, bad.setup) if goes_on else ())
        assert pool.run_fresh(WELL).ended.how is Termination.DONE
        assert pool.past == ()


def test_a_setup_that_is_refused_ahead_costs_no_process_and_ends_no_other() -> None:
    first, second = setups(2)
    refused = going("refused-in-build")
    for known in (True, False):
        with Pool(TARGET, session=MODULE, timeout_s=20, standbys=2, setups_per_session=16) as pool:
            if known:
                pool.foresee([[refused, replace(refused, steps=refused.steps[:1])], [second]])
            else:
                pool.expect([refused.setup, second.setup])
            pool.run(first)
            standbys = {session.pid for session in pool._standbys}
            assert pool.run(refused).ended.how is Termination.UNSUPPORTED
            assert pool.run(second).ended.how is Termination.DONE
            assert pool.session_pid in standbys
            assert pool.run(first).ended.how is Termination.DONE
            assert pool.past


def test_setups_are_opened_ahead_in_processes_that_have_served() -> None:
    cases = setups(6)
    with Pool(TARGET, session=MODULE, timeout_s=20, standbys=1, setups_per_session=16) as pool:
        pool.expect([case.setup for case in cases[1:]])
        pids = []
        for case in cases:
            assert pool.run(case).ended.how is Termination.DONE
            pids.append(pool.session_pid)
    assert len(set(pids)) == 2, "one at work, one that opens what comes next"


def test_processes_end_with_the_pool() -> None:
    with Pool(TARGET, session=MODULE, timeout_s=20, setups_per_session=3) as pool:
        pool.run(WELL)
        pid = pool.session_pid
    assert pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def served_by(setup: Setup, **past: object) -> Open:
    return Open(setup=setup, inbox=None, pid=0, log=None, **past)  # type: ignore[arg-type]  # no session is behind it


def test_which_setups_a_process_may_serve() -> None:
    eagle = setup_of("draft", "triton")
    session = served_by(eagle)
    assert may_serve(session, replace(eagle, topk=1, algorithm="EAGLE3"), 2)
    assert not may_serve(session, replace(eagle, algorithm="NEXTN"), 2), "latent attention"
    assert not may_serve(session, replace(eagle, deterministic=True), 2), "kernels in the place of torch's"
    assert not may_serve(session, replace(eagle, runner="decode"), 2)
    assert not may_serve(session, replace(eagle, backend="flashinfer"), 2)
    assert not may_serve(session, eagle, 1)
    assert not may_serve(served_by(eagle, past=(eagle,)), eagle, 2)
    assert not may_serve(served_by(eagle, spent=True), eagle, 2)
    assert kind(eagle) == kind(replace(eagle, num_steps=1))


def test_idle_processes_of_one_kind_wait_up_to_a_limit_and_the_latest_serves_next() -> None:
    eagle = setup_of("draft", "triton")
    idle = Idle(setups_per_session=4, room=2)
    left = [replace(served_by(eagle), pid=number, log=QUIET) for number in range(3)]
    assert [idle.put(session) for session in left] == [None, None, left[0]]
    assert idle.reopened(replace(eagle, algorithm="NEXTN")) is None
    sessions = [idle.reopened(replace(eagle, num_steps=1)) for _ in range(3)]
    assert [session and session.pid for session in sessions] == [2, 1, None]
    assert idle.pop() is None


def test_only_what_was_written_elsewhere_costs_a_process() -> None:
    def failed(oracle: str, where: str) -> Verdict:
        return Verdict(oracle=oracle, status=Status.FAIL, where=where)

    assert oversteps(failed("kv_indices", f"{GUARD} kv_indices"))
    assert oversteps(failed("memory", "stores of a_kernel"))
    assert not oversteps(failed("slot0_padding", "padded rows of positions"))
    assert not oversteps(replace(failed("memory", "stores of a_kernel"), status=Status.UNKNOWN))


def test_a_failure_that_only_a_past_shows_is_flagged_and_kept_with_it(tmp_path: Path) -> None:
    past = tuple(case.setup for case in setups(2))
    world = World(fails=lambda case: [FAIL], fails_fresh=lambda case: [])
    hooks = replace(world.hooks(), past=lambda: past, keep=lambda finding: str(keep(tmp_path, finding)))
    done = campaign(replace(PLAN, cases=1), CaseStream(iter([going("well")])), hooks)
    (single,) = done.findings
    assert (single.failed, single.tried > 0) == (0, True)
    assert f"{AFTER_OTHERS}, 2 of them" in single.detail
    past_of_file = json.loads(Path(single.seed).with_suffix(AFTER).read_text())
    assert [setup["server_args"]["max_running_requests"] for setup in past_of_file] == [4, 5]
    assert loads(dumps([done]))[0] == (done,)


@pytest.mark.parametrize("fresh", [lambda case: [FAIL], lambda case: []])
def test_without_a_past_or_in_fresh_processes_there_is_no_flag(
    tmp_path: Path, fresh: Callable[[Case], list[Verdict]]
) -> None:
    past = (WELL.setup,) if fresh(WELL) else ()
    world = World(fails=lambda case: [FAIL], fails_fresh=fresh)
    hooks = replace(world.hooks(), past=lambda: past, keep=lambda finding: str(keep(tmp_path, finding)))
    (single,) = campaign(replace(PLAN, cases=1), CaseStream(iter([going("well")])), hooks).findings
    assert AFTER_OTHERS not in single.detail
    assert not Path(single.seed).with_suffix(AFTER).exists()


ROUNDS, EACH = 5, 1


def drawn(runner: str, backend: str) -> Iterator[Case]:
    """Cases of setups that every release runs: what fails may end a process, and few drafts of old releases
    are extended where these have branches, or have windows that Triton can compile. Families of models have processes
    of their own (served.kind)."""
    rounds = (islice(round_cases(11, number, runner, backend, EACH), EACH) for number in count())
    some = (case for drawn_round in rounds for case in drawn_round)
    plain = (case for case in some if not case.setup.window and not case.setup.family)
    return islice((case for case in plain if runner != "draft_extend" or case.setup.topk == 1), ROUNDS)


SERVED = [
    (runner, backend)
    for runner, backends in {
        **dict.fromkeys(("draft", "decode", "verify"), ("triton", "flashinfer", "fa3")),
        "draft_extend": ("triton", "flashinfer"),
        **dict.fromkeys(("multi_layer", "frozen_kv_mtp", "kv_move"), ("triton",)),
        **dict.fromkeys(("verify_eager", "verify_eager_tree", "verify_eager_multi_layer"), ("triton",)),
    }.items()
    for backend in backends
]


@pytest.mark.exhaustive
@pytest.mark.emulated
@pytest.mark.parametrize(("runner", "backend"), SERVED)
def test_served_setups_give_the_bits_of_fresh_sessions(runner: str, backend: str, target: Target) -> None:
    if target.engine == "cuda":
        pytest.skip("a compiler that has seen other shapes may order sums otherwise: verdicts are compared there")
    with Pool(target) as fresh, Pool(target, setups_per_session=ROUNDS) as served:
        pasts, ends = 0, list[Termination]()
        for case in drawn(runner, backend):
            expected, trace = fresh.run(case), served.run(case)
            ends.append(expected.ended.how)
            assert bits(trace) == bits(expected), served.past
            assert replace(trace.ended, detail="") == replace(expected.ended, detail="")
            assert trace.facts == expected.facts, "a session that was lost would be told here"
            pasts += bool(served.past)
            skip_unsupported(trace)
    skip_without_two(ends)
    assert pasts, "no process served a second setup"


@pytest.mark.cuda
@pytest.mark.parametrize(("runner", "backend"), SERVED)
def test_served_setups_give_the_verdicts_of_fresh_sessions(runner: str, backend: str, cuda_target: Target) -> None:
    """A compiler that has seen other shapes may order sums otherwise; verdicts must not depend on it."""
    with Pool(cuda_target) as fresh, Pool(cuda_target, setups_per_session=ROUNDS) as served:
        pasts, lost, ends = 0, list[str](), list[Termination]()
        for case in drawn(runner, backend):
            expected, trace = fresh.run(case), served.run(case)
            ends.append(expected.ended.how)
            skip_unsupported(trace)
            assert verdicts(case, trace) == verdicts(case, expected), served.past
            pasts += bool(served.past)
            lost += [trace.facts["sessions lost"]] if "sessions lost" in trace.facts else []
    skip_without_two(ends)
    assert pasts, "no process served a second setup"
    assert not lost


def skip_unsupported(trace: Trace) -> None:
    """Skip what the release does not have, in its own words; what a setup refuses is a setup's."""
    if trace.ended.how is Termination.UNSUPPORTED and "captures no" in trace.ended.what:
        pytest.skip(trace.ended.what)


def skip_without_two(ends: list[Termination]) -> None:
    """Skip where there were no two setups that one process could have served to their end."""
    if ends.count(Termination.DONE) < 2:
        pytest.skip(f"this release runs no two of these setups to their end: {', '.join(map(str, ends))}")


def verdicts(case: Case, trace: Trace) -> list[tuple[str, str, str, str]]:
    finding = judge_all(case, trace)
    ended = (str(trace.ended.how), trace.ended.what)
    return [(verdict.oracle, verdict.status.name, *ended) for verdict in finding]
