"""The pool: whatever a worker does becomes a trace, nothing that was seen before is lost, nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from repro.cases.case import Target
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from tests.builders.misbehaving import going
from tests.builders.project import PROJECT
from tests.builders.waiting import comes

TARGET = Target("misbehaving", "toy")
MODULE = "tests.builders.misbehaving"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """One pool for all of it: that it still works after each test is part of what is tested."""
    with Pool(TARGET, session=MODULE, timeout_s=20) as pool:
        yield pool


@pytest.fixture
def impatient(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Pool:
    """The same, up and running, and from now on quick to lose patience."""
    assert pool.run(going("well")).ended.how is Termination.DONE
    monkeypatch.setattr(pool, "_timeout_s", 0.25)
    return pool


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone_within(pid: int, seconds: float) -> bool:
    return comes(lambda: not alive(pid), seconds)


def test_a_run_that_goes_well_comes_back_whole(pool: Pool) -> None:
    trace = pool.run(going("well"))
    assert trace.ended.how is Termination.DONE
    assert [(s.step, s.path, s.name) for s in trace.seen[:3]] == [
        (0, "input", "positions"),
        (0, "launch", "bs"),
        (0, "graph", "tokens"),
    ]
    assert len(trace.seen) == 9
    positions, bs, tokens = (
        trace.get(2, *place) for place in (("input", "positions"), ("launch", "bs"), ("graph", "tokens"))
    )
    assert positions is not None and positions.tolist() == [[2, 1, 0], [5, 4, 3]] and positions.dtype == np.int64
    assert bs is not None and bs.shape == () and bs == 4 and bs.dtype == np.int32
    assert tokens is not None and tokens.tolist() == [[2, 2]] * 3 and tokens.dtype == np.float16
    assert trace.facts == {"way": "well"}
    assert trace.seconds["graph"] == pytest.approx(0.75)
    assert trace.seconds["record"] > 0


@pytest.mark.parametrize(
    ("way", "ended", "what"),
    [
        ("crash", Termination.CRASHED, "SIGSEGV"),
        ("abort-with-cuda-error", Termination.CRASHED, "CUDA error: an illegal memory access"),
        ("exit", Termination.CRASHED, "exit 7"),
        ("half-frame", Termination.CRASHED, "exit 9"),
        ("raise", Termination.RAISED, "KeyError"),
        ("sys-exit", Termination.RAISED, "SystemExit"),
        ("raise-cuda", Termination.RAISED, "CUDA error: an illegal memory access"),
        ("fails", Termination.ERROR, "this release has no such field"),
        ("object-array", Termination.ERROR, "graph/tokens: an array of object cannot be recorded"),
        ("garbage", Termination.ERROR, "the worker sent garbage: expected a frame, got b'Traceback (most '"),
        ("wrong-event", Termination.ERROR, "the worker sent garbage: an unknown event: ['done!']"),
        ("kill-worker", Termination.ERROR, "the worker ended: SIGKILL"),
    ],
)
def test_trouble_in_the_second_step_names_it_and_keeps_the_first(
    pool: Pool, way: str, ended: Termination, what: str
) -> None:
    trace = pool.run(going(way))
    assert (trace.ended.how, trace.ended.what) == (ended, what), trace.ended
    assert (trace.ended.step, trace.ended.path) == (1, "graph")
    assert trace.get(0, "graph", "tokens") is not None
    assert trace.get(1, "input", "positions") is not None
    # One case's trouble is not the next one's: a case of one step never gets to where this session goes wrong.
    assert pool.run(going(way, steps=1)).ended.how is Termination.DONE


def test_a_crash_has_the_python_stack_in_its_detail(pool: Pool) -> None:
    assert "_go_wrong" in pool.run(going("crash")).ended.detail


def test_an_exception_has_its_traceback_in_its_detail(pool: Pool) -> None:
    detail = pool.run(going("raise")).ended.detail
    assert "_go_wrong" in detail
    assert detail.rstrip().endswith("KeyError: 'slot'")


def test_silence_is_a_hang_and_says_where(impatient: Pool) -> None:
    trace = impatient.run(going("hang"))
    assert (trace.ended.how, trace.ended.what) == (Termination.HUNG, "no answer")
    assert (trace.ended.step, trace.ended.path) == (1, "graph")
    assert "_hang_here" in trace.ended.detail
    assert trace.get(0, "graph", "tokens") is not None


def test_recording_without_end_is_a_hang(impatient: Pool) -> None:
    assert impatient.run(going("chatter-without-end")).ended.how is Termination.HUNG


@pytest.mark.slow
def test_each_step_has_the_whole_time(impatient: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps of 0.2 s are no silence of 0.5 s."""
    monkeypatch.setattr(impatient, "_timeout_s", 0.5)
    assert impatient.run(going("slow-steps")).ended.how is Termination.DONE


@pytest.mark.slow
def test_a_session_whose_compiler_works_has_not_hung(impatient: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvcc works for minutes where many sessions compile side by side."""
    monkeypatch.setattr(impatient, "_timeout_s", 0.5)
    assert impatient.run(going("compile")).ended.how is Termination.DONE


@pytest.mark.slow
def test_a_hang_takes_its_children_along(impatient: Pool) -> None:
    trace = impatient.run(going("hang-with-children"))
    assert (trace.ended.how, trace.ended.path) == (Termination.HUNG, "eager")
    assert gone_within(int(trace.facts["child"]), 5)


def test_a_crash_takes_its_children_along(pool: Pool) -> None:
    trace = pool.run(going("crash-with-children"))
    assert (trace.ended.how, trace.ended.path) == (Termination.CRASHED, "eager")
    assert gone_within(int(trace.facts["child"]), 5)


@pytest.mark.parametrize(
    ("way", "ended", "path", "what"),
    [
        ("raise-in-build", Termination.ERROR, "build", "AttributeError: no such class"),
        ("refused-in-build", Termination.UNSUPPORTED, "build", "there is no such backend"),
        ("crash-in-build", Termination.ERROR, "build", "SIGSEGV while building"),
        ("hang-in-build", Termination.ERROR, "build", "no answer while building"),
        (
            "raise-in-capture",
            Termination.RAISED,
            "capture",
            "CUDA error: operation not permitted when stream is capturing",
        ),
        ("hang-in-capture", Termination.HUNG, "capture", "no answer"),
    ],
)
def test_only_capturing_can_be_sglangs_fault_before_the_first_step(
    pool: Pool, way: str, ended: Termination, path: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way.startswith("hang"):
        monkeypatch.setattr(pool, "_timeout_s", 0.25)
    if way == "hang-in-build":
        monkeypatch.setattr(pool, "_start_s", 0.25)
    trace = pool.run(going(way))
    assert (trace.ended.how, trace.ended.path, trace.ended.what) == (ended, path, what), trace.ended
    assert trace.ended.step == -1


def test_a_session_is_kept_while_the_setup_stays_the_same(pool: Pool) -> None:
    case = going("well")
    pool.run(case)
    first = pool.session_pid
    again = pool.run(going("well", steps=1))
    assert pool.session_pid == first
    assert again.facts == {"way": "well"}, "what the session said of itself holds for every run"
    pool.run(replace(case, setup=replace(case.setup, topk=3)))
    assert pool.session_pid not in (None, first)


def test_a_session_that_was_killed_from_outside_is_replaced(pool: Pool) -> None:
    pool.run(going("well"))
    assert pool.session_pid is not None
    os.kill(pool.session_pid, signal.SIGKILL)
    trace = pool.run(going("well"))
    assert trace.ended.how is Termination.DONE, "a case that was not begun is not to blame"
    assert trace.facts == {"way": "well", "sessions lost": "one while it waited for a case: SIGKILL"}
    assert pool.run(going("well")).ended.how is Termination.DONE


def test_a_session_that_was_killed_while_it_was_built_is_replaced_once(pool: Pool) -> None:
    killed: list[int] = []

    def kill_the_first() -> None:
        comes(lambda: pool.session_pid is not None)
        killed.append(pool.session_pid or 0)
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill_the_first)
    thread.start()
    trace = pool.run(going("slow-to-open"))
    thread.join()
    assert trace.ended.how is Termination.DONE
    assert trace.facts["pid"] != str(killed[0])


@pytest.mark.slow
def test_after_an_interrupt_the_next_run_is_its_own(pool: Pool) -> None:
    """Ctrl-C arrives while a run is under way; what its session may still say must not end up in the next trace."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            pool.run(going("hang"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    trace = pool.run(going("hang", steps=1))
    assert trace.ended.how is Termination.DONE
    assert len(trace.seen) == 3


def test_recording_is_cheap(pool: Pool) -> None:
    """2,000 small arrays in 100 steps take about 10 ms; 20 times that leaves room for a busy machine."""
    trace = pool.run(going("many-arrays", steps=64))
    assert len(trace.seen) == 64 * 20
    assert trace.seconds["record"] < 0.2


def test_fresh_gives_every_case_a_process_and_prints_go_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with Pool(TARGET, session=MODULE, fresh=True, log=log) as pool:
        assert pool.run(going("print")).ended.how is Termination.DONE
        assert pool.session_pid is None
        assert pool.run(going("print")).ended.how is Termination.DONE
    assert log.read_bytes().count(b"garbage on standard output") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("raise", "the worker cannot import what it needs: ImportError: no module named moon"),
        ("die", "the worker ended: SIGSEGV"),
        ("hang", "the worker sent nothing for 0.3 s"),
    ],
)
def test_a_worker_that_does_not_start_is_an_error(how: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISBEHAVE_IMPORT", how)
    with Pool(TARGET, session=MODULE, start_s=0.3 if how == "hang" else 20) as pool:
        trace = pool.run(going("well"))
        assert (trace.ended.how, trace.ended.what, trace.ended.step) == (Termination.ERROR, what, -1)
        if how == "die":
            assert "about to die while importing" in trace.ended.detail
        pool.run(going("well"))
        monkeypatch.delenv("MISBEHAVE_IMPORT")
        # It is tried twice; then a campaign need not wait for it at every case, even where it would start by now.
        assert pool.run(going("well")).ended.what == what


def test_a_release_that_is_not_installed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLEEYE_CACHE", str(tmp_path))
    with Pool(Target("0.0.1", "emulated")) as pool:
        ended = pool.run(going("well")).ended
    assert ended.how is Termination.ERROR
    assert ended.what == "sglang 0.0.1 is not installed; to install it: python -m runners install 0.0.1"


def start_parent() -> tuple[subprocess.Popen[str], list[int]]:
    """A process of its own that runs a pool and says which processes there are: worker and session."""
    script = """
        import json, pathlib, sys, threading, time
        from tests.builders.misbehaving import going
        from tests.runners.processes.test_pool import MODULE, TARGET, Pool
        def tell():
            while pool.session_pid is None: time.sleep(0.01)
            worker = pathlib.Path(f"/proc/{pool.session_pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
            time.sleep(0.05)
            print(json.dumps([int(worker), pool.session_pid]), flush=True)
        with Pool(TARGET, session=MODULE, timeout_s=600) as pool:
            threading.Thread(target=tell, daemon=True).start()
            print(pool.run(going("hang")).ended.how)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout
    return parent, json.loads(parent.stdout.readline())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_parent_is_killed(number: signal.Signals) -> None:
    parent, others = start_parent()
    with parent:
        assert all(alive(pid) for pid in others)
        parent.send_signal(number)
        parent.wait(10)
    assert [pid for pid in others if not gone_within(pid, 5)] == []


@pytest.mark.slow
def test_nothing_is_left_when_the_worker_is_killed() -> None:
    parent, (worker, session) = start_parent()
    with parent:
        os.kill(worker, signal.SIGKILL)
        assert gone_within(session, 5)
        assert parent.stdout and parent.stdout.read().strip() == "error"
