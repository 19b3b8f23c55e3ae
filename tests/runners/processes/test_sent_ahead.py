"""Cases sent ahead, to the session in use, to others of its setup and to those of setups to come: faster, and nothing
else is different."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from repro.cases.case import Case, Setup, Step
from repro.traces.trace import Termination, Trace
from runners.processes.pool import Pool
from tests.builders.misbehaving import going
from tests.builders.waiting import comes, has_said
from tests.runners.processes.test_pool import MODULE, TARGET
from tests.runners.processes.test_warm import plain, without_pid

# They wait for sessions that open, crash and hang beside each other.
pytestmark = pytest.mark.slow


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(TARGET, session=MODULE, timeout_s=20, standbys=2) as some:
        yield some


def run_all(pool: Pool, cases: list[Case]) -> list[Trace]:
    traces = []
    for number, case in enumerate(cases):
        if number + 1 < len(cases):
            pool.send(cases[number + 1 : number + 2])
        traces.append(pool.run(case))
    return traces


def test_cases_sent_ahead_give_the_same_traces_in_the_same_order() -> None:
    cases = [going("well", steps=n % 4 + 1) for n in range(12)] + [going("print"), going("well")]
    with Pool(TARGET, session=MODULE) as pool:
        ahead = run_all(pool, cases)
        one_by_one = [pool.run(case) for case in cases]
    assert [without_pid(plain(t)) for t in ahead] == [without_pid(plain(t)) for t in one_by_one]


def test_the_session_goes_on_while_nobody_listens() -> None:
    case, other = different(2, "slow-steps")
    with Pool(TARGET, session=MODULE) as pool:
        pool.send([other])
        pool.run(case)
        session = pool._last
        assert session is not None
        assert comes(lambda: has_said(session, b'["ended","done"'))
        assert pool.run(other).ended.how is Termination.DONE


def different(count: int, way: str = "well", setup: Setup | None = None) -> list[Case]:
    """Cases of one step on one setup."""
    case = going(way, steps=1)
    requests = (replace(case.steps[0].requests[0], data=number) for number in range(count))
    return [Case(setup=setup or case.setup, steps=(Step(requests=(request,)),)) for request in requests]


def test_sessions_that_open_ahead_run_the_first_cases_of_their_setup() -> None:
    """Nothing of what they say is lost or mixed up, and a case that ends badly costs those behind it a second try."""
    rounds = [
        different(6, "print"),
        different(6, "many-arrays"),
        [*different(3, "crash"), going("crash"), *different(6, "crash")[3:]],
    ]
    with Pool(TARGET, session=MODULE) as alone:
        expected = [without_pid(plain(alone.run(case))) for cases in rounds for case in cases]
    with Pool(TARGET, session=MODULE, standbys=2) as pool:
        traces = []
        for number, cases in enumerate(rounds):
            pool.foresee([some[:5] for some in rounds[number + 1 :]])
            for case in cases:
                traces.append(pool.run(case))
                if case is rounds[0][0]:
                    time.sleep(0.5)
    assert [without_pid(plain(trace)) for trace in traces] == expected
    assert [trace.ended.how is Termination.CRASHED for trace in traces].count(True) == 1


def test_what_a_session_runs_ahead_is_run_once_and_is_its_history() -> None:
    first, second = different(3), different(4, "slow-to-open")
    with Pool(TARGET, session=MODULE, standbys=1) as pool:
        pool.foresee([second[:2]])
        pool.run(first[0])
        (standby,) = pool._standbys
        assert standby.sent == second[:2]
        pids = {int(pool.run(case).facts["pid"]) for case in second}
        assert (pids, pool.history) == ({standby.pid}, tuple(second[:3]))


@pytest.mark.parametrize(("way", "alone"), [("slow-to-open", 32), ("slow-steps", 6)])
def test_a_setup_with_many_cases_or_long_ones_has_several_sessions(way: str, alone: int) -> None:
    cases = different(80 if alone > 6 else 16, way)
    with Pool(TARGET, session=MODULE, standbys=2) as pool:
        pids = []
        for number, case in enumerate(cases):
            pool.send(cases[number + 1 : number + 4])
            trace = pool.run(case)
            assert trace.ended.how is Termination.DONE
            assert all(earlier in cases[:number] for earlier in pool.history)
            pids.append(pool.session_pid)
            time.sleep(0.01)
    assert len(set(pids[:alone])) == 1
    assert len(set(pids)) == 2


def test_what_one_session_says_waits_while_another_is_listened_to() -> None:
    """More than a channel holds: the session goes on all the same."""
    loud = [replace(case, steps=case.steps * 12) for case in different(5, "many-arrays")]
    with Pool(TARGET, session=MODULE, standbys=1) as pool:
        pool.foresee([loud])
        pool.run(going("slow-steps"))
        (standby,) = pool._standbys
        assert standby.sent == loud
        pool.run(going("slow-steps"))
        traces = [pool.run(case) for case in loud]
        assert [len(trace.seen) for trace in traces] == [240] * 5
        assert standby.ran == loud


@pytest.mark.parametrize("way", ["crash", "raise", "exit", "hang", "print-and-crash"])
def test_a_bad_end_belongs_to_its_own_case(way: str) -> None:
    """The case behind it was in the channel already; it is run in another session."""
    bad, good = going(way), going(way, steps=1)
    with Pool(TARGET, session=MODULE, timeout_s=1) as pool:
        alone = pool.run(bad)
        traces = run_all(pool, [good, bad, good, good, bad, bad, good])
        hows = [trace.ended.how is Termination.DONE for trace in traces]
    assert hows == [True, False, True, True, False, False, True]
    for trace in (traces[1], traces[4], traces[5]):
        assert (trace.ended.how, trace.ended.what, trace.ended.step) == (alone.ended.how, alone.ended.what, 1)
        assert "sessions lost" not in trace.facts


def test_what_was_printed_by_the_case_before_does_not_name_the_next_ones_crash() -> None:
    loud, bad = going("print-cuda-error"), going("print-cuda-error", steps=2)
    with Pool(TARGET, session=MODULE) as pool:
        traces = run_all(pool, [loud, bad])
    assert traces[0].ended.how is Termination.DONE
    assert (traces[1].ended.how, traces[1].ended.what) == (Termination.CRASHED, "SIGSEGV")


def test_a_case_that_was_sent_and_is_not_run_next_is_dropped() -> None:
    first, other = going("well", steps=1), going("well", steps=2)
    with Pool(TARGET, session=MODULE) as pool:
        pool.send([other])
        pool.run(first)
        assert plain(pool.run(going("well")))[:2] == (Termination.DONE, 2)
        assert len(pool.run(other).seen) == 6
        pool.send([other])
        pool.run(first)
        assert len(pool.run_fresh(going("well")).seen) == 9


def test_interrupted_with_a_case_sent_ahead(pool: Pool) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    pool.run(going("hang", steps=1))
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        pool.send([going("hang", steps=1)])
        with pytest.raises(KeyboardInterrupt):
            pool.run(going("hang"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(pool.run(going("hang", steps=1)).seen) == 3
