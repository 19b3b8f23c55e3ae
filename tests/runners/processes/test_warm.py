"""Sessions opened ahead and cases sent ahead: faster, and nothing else is different."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from repro.cases.case import Case, Setup, Target
from repro.traces.trace import Termination, Trace
from runners.processes import warm
from runners.processes.pool import Pool
from runners.processes.warm import STANDBYS_MAX, Coming, Open, WarmSessions, room_for
from tests.builders.misbehaving import COMPANY, going
from tests.builders.waiting import comes, has_said
from tests.runners.processes.test_pool import MODULE, TARGET, gone_within

# They wait for sessions that open, crash and hang beside each other.
pytestmark = pytest.mark.slow

WELL = going("well").setup
A, B, C = (replace(WELL, slots=slots) for slots in (5, 6, 7))


def opened(coming: Coming) -> Open:
    """A session that was sent what is known."""
    sent = list(coming.cases)
    return Open(setup=coming.setup, inbox=None, pid=0, log=None, sent=sent)  # type: ignore[arg-type]  # no process is behind


def standbys(room: int) -> tuple[WarmSessions, list[Setup], list[Setup]]:
    """With what was opened and what was closed, in order."""
    begun: list[Setup] = []
    closed: list[Setup] = []

    def begin(coming: Coming) -> Open:
        begun.append(coming.setup)
        return opened(coming)

    return WarmSessions(room, begin, lambda session: closed.append(session.setup)), begun, closed


def coming(*setups: Setup) -> list[Coming]:
    return [Coming(setup=setup) for setup in setups]


def case_of(setup: Setup, steps: int = 1) -> Case:
    return replace(going("well", steps=steps), setup=setup)


def test_what_is_expected_is_opened_as_far_as_there_is_room() -> None:
    some, begun, closed = standbys(2)
    some.expect(coming(A, B, C))
    some.fill()
    assert (begun, closed, len(some)) == ([A, B], [], 2)
    some.fill()
    assert begun == [A, B], "what is there is not opened again"
    taken = some.take(case_of(A))
    assert taken and taken.setup == A
    some.fill()
    assert (begun, closed) == ([A, B, C], [])


def test_a_setup_is_opened_as_often_as_it_will_be_needed() -> None:
    some, begun, _ = standbys(3)
    some.expect(coming(A) * 5)
    for _ in range(5):
        some.take(case_of(A))
        some.fill()
    assert len(begun) == 4, "the first of the five was not there to be taken and was opened otherwise"


def test_what_nobody_expects_makes_room_only_when_that_is_needed() -> None:
    some, begun, closed = standbys(2)
    some.expect(coming(A, B))
    some.fill()
    some.expect(coming(A))
    some.fill()
    assert (closed, len(some)) == ([], 2)
    some.fill([C])
    assert (begun, closed) == ([A, B, C], [B])
    assert some.take(case_of(B)) is None


def test_nothing_is_opened_ahead_while_it_is_held_back() -> None:
    some, begun, _ = standbys(2)
    some.paused = True
    some.expect(coming(A))
    some.fill([B])
    assert begun == []
    some.paused = False
    some.fill([B])
    assert begun == [B, A]


@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_without_compiled_kernels_the_first_session_opens_alone(
    compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLEEYE_KERNELS", str(tmp_path))
    if compiled:
        (tmp_path / "triton").mkdir()
    with Pool(Target("0.5.13", "cuda"), standbys=2) as pool:
        assert pool._standbys.paused is not compiled
    with Pool(TARGET, session=MODULE, timeout_s=20, standbys=2) as pool:
        pool._standbys.paused = True
        assert pool.run(going("well")).ended.how is Termination.DONE
        assert not pool._standbys.paused


def test_a_session_that_runs_cases_ahead_is_there_for_these_alone() -> None:
    some, begun, closed = standbys(2)
    first, second = case_of(A), case_of(A, steps=2)
    some.expect([Coming(setup=A, cases=(first, second)), Coming(setup=B, cases=(case_of(B),))])
    some.fill()
    some.fill()
    assert (begun, closed) == ([A, B], [])
    assert some.take(second) is None, "it was sent another case first"
    assert some.take(first, fresh=True) is None, "it has a past as soon as it has run one"
    taken = some.take(first)
    assert taken and taken.sent == [first, second]
    some.expect(coming(B))
    some.fill()
    assert (begun, closed) == ([A, B, B], []), "what is asked for first on the other is not known"


def test_what_is_merely_useful_has_room_besides_and_makes_room_once_it_is_not() -> None:
    some, begun, closed = standbys(2)
    some.expect(coming(A, B))
    some.fill(useful=[C, C])
    assert (begun, closed) == ([A, B, C, C], [])
    some.take(case_of(A))
    some.expect(coming(B, A))
    some.fill()
    assert (begun, closed) == ([A, B, C, C, A], [C])


def test_without_room_nothing_is_opened() -> None:
    some, begun, _ = standbys(0)
    some.expect(coming(A))
    some.fill([B])
    assert begun == []


@pytest.mark.parametrize(
    ("engine", "workers", "cores", "gibibytes", "room"),
    [
        ("cuda", 1, 16, 140, 8),
        ("cuda", 4, 16, 140, 2),
        ("cuda", 8, 16, 80, 1),
        ("cuda", 16, 32, 160, 1),
        ("cuda", 1, 16, 24, 5),
        ("cuda", 1, 16, 8, 0),
        ("emulated", 1, 2, 8, 1),
        ("emulated", 2, 2, 8, 0),
        ("emulated", 1, 1, 8, 0),
        ("toy", 1, 64, 8, 0),
    ],
)
def test_room_goes_with_the_cores_and_with_the_memory_of_gpus(
    engine: str, workers: int, cores: int, gibibytes: float, room: int
) -> None:
    assert room_for(engine, workers, cores, gibibytes) == room <= STANDBYS_MAX


def test_gpus_that_others_use_too_are_counted_where_one_sees_a_part_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "memory", lambda: (140.0,) * 8)
    monkeypatch.setattr(warm, "visible", lambda count: ("3",))
    assert (room_for("cuda", 64, 128), room_for("cuda", 64, 128, devices=8)) == (0, 1)


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(TARGET, session=MODULE, timeout_s=20, standbys=2) as pool:
        yield pool


def plain(trace: Trace) -> tuple[object, ...]:
    """A trace without times and addresses."""
    seen = [(s.step, s.path, s.name, s.array.tolist()) for s in trace.seen]
    ended = trace.ended
    return (ended.how, ended.step, ended.path, ended.what, seen, dict(trace.facts))


def stood_by(pool: Pool, case: Case) -> bool:
    """True if the session that runs this case began to open before it was asked for."""
    before = standing_by(pool, case.setup)
    trace = pool.run(case)
    assert trace.ended.how is Termination.DONE
    return int(trace.facts["pid"]) in before


def test_the_next_setups_session_is_there_when_it_is_needed(pool: Pool) -> None:
    case = going("slow-to-open")
    assert not stood_by(pool, case)
    other = replace(case, setup=replace(case.setup, slots=6))
    pool.expect([other.setup])
    pool.run(case)
    assert stood_by(pool, other)


def test_after_the_first_crash_the_next_case_starts_at_once(pool: Pool) -> None:
    """Both sessions of the setup open side by side."""
    crashing, well = going("slow-to-open-and-crash"), going("slow-to-open-and-crash", steps=1)
    assert pool.run(well).ended.how is Termination.DONE
    assert pool.run(crashing).ended.what == "SIGSEGV"
    assert stood_by(pool, well)


def test_with_room_for_one_what_comes_next_goes_before_a_crash_that_may_not_come() -> None:
    crashing, well = going("slow-to-open-and-crash"), going("slow-to-open-and-crash", steps=1)
    with Pool(TARGET, session=MODULE, timeout_s=20, standbys=1) as pool:
        assert pool.run(crashing).ended.what == "SIGSEGV"
        assert not stood_by(pool, well)
        assert pool.run(crashing).ended.what == "SIGSEGV"
        assert stood_by(pool, well)


def test_after_a_second_crash_the_next_case_starts_at_once(pool: Pool) -> None:
    crashing, well = going("slow-to-open-and-crash"), going("slow-to-open-and-crash", steps=1)
    for _ in range(2):
        assert pool.run(crashing).ended.what == "SIGSEGV"
        assert pool.run(well).ended.how is Termination.DONE
    assert pool.run(crashing).ended.what == "SIGSEGV"
    assert stood_by(pool, well)


def test_where_one_has_crashed_the_next_ones_may_come_at_once() -> None:
    crashing, well = going("slow-to-open-and-crash"), going("slow-to-open-and-crash", steps=1)
    with Pool(TARGET, session=MODULE, timeout_s=20, standbys=3) as pool:
        assert pool.run(crashing).ended.what == "SIGSEGV"
        assert pool.run(well).ended.how is Termination.DONE
        for _ in range(2):
            assert pool.run(crashing).ended.what == "SIGSEGV"
            assert stood_by(pool, well)


def test_fresh_runs_open_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them opens until all of them are at it."""
    monkeypatch.setenv("MISBEHAVE_MEETING", str(tmp_path))
    case = going("opens-with-others")
    with Pool(TARGET, session=MODULE, timeout_s=20, standbys=COMPANY - 1) as pool:
        pool.expect([case.setup] * COMPANY)
        traces = [pool.run_fresh(case) for _ in range(COMPANY)]
    assert [trace.ended.how for trace in traces] == [Termination.DONE] * COMPANY
    assert len({trace.facts["pid"] for trace in traces}) == COMPANY


@pytest.mark.parametrize(
    "way",
    ["well", "print", "raise", "crash", "raise-in-build", "refused-in-build", "crash-in-build", "raise-in-capture"],
)
def test_a_case_in_a_standby_says_what_it_says_in_any_session(way: str, pool: Pool) -> None:
    with Pool(TARGET, session=MODULE, timeout_s=20) as ordinary:
        expected = plain(ordinary.run(going(way)))
    pool.expect([going(way).setup])
    pool.run(going("many-arrays", steps=1))
    time.sleep(0.2)
    assert standing_by(pool, going(way).setup)
    assert without_pid(plain(pool.run(going(way)))) == without_pid(expected)


def standing_by(pool: Pool, setup: Setup) -> list[int]:
    """The processes that wait for cases on this setup."""
    return [session.pid for session in pool._standbys._open if session.setup == setup]


def without_pid(event: tuple[object, ...]) -> tuple[object, ...]:
    facts = event[-1]
    assert isinstance(facts, dict)
    return (*event[:-1], {name: text for name, text in facts.items() if name != "pid"})


def test_what_fails_for_lack_of_room_is_done_again_alone(pool: Pool) -> None:
    """A session that finds others opening beside it fails; without them it does not."""
    case = going("needs-room")
    pool.run(going("well"))
    pool.expect([going("slow-to-open").setup, case.setup])
    assert pool.run(going("well", steps=1)).ended.how is Termination.DONE
    time.sleep(0.2)
    assert pool.run(case).ended.how is Termination.DONE
    assert len(pool._standbys) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_standby_that_dies_while_it_waits_is_nobodys_fault(number: int, pool: Pool) -> None:
    pool.run(going("well"))
    pool.expect([going("print").setup])
    pool.run(going("well"))
    standby = next(session for session in pool._standbys if session.setup == going("print").setup)
    assert comes(lambda: has_said(standby, b'"opened"'))
    os.kill(standby.pid, number)
    trace = pool.run(going("print"))
    assert trace.ended.how is Termination.DONE
    assert trace.facts["sessions lost"] == f"one while it waited for a case: {signal.Signals(number).name}"


def test_standbys_end_with_the_pool() -> None:
    with Pool(TARGET, session=MODULE, standbys=2) as pool:
        pool.expect([going("slow-to-open").setup, going("print").setup])
        pool.run(going("well"))
        pids = [session.pid for session in pool._standbys._open]
        assert len(pids) == 2
    assert all(gone_within(pid, 5) for pid in pids)


def test_other_targets_are_asked_for_nothing() -> None:
    with Pool(Target("clean", "toy"), standbys=2) as pool:
        pool.expect([A])
    assert pool.session_pid is None
