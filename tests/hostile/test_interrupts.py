"""An interrupt ends a command wherever it comes."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from repro.commands.cli import ended
from repro.commands.interrupts import held, let_in
from repro.traces.exit_codes import ExitCode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_of_a_garbage_collectors_callback_is_not_lost(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    def gc_callback(phase: str, info: dict[str, int]) -> None:
        gc.callbacks.remove(gc_callback)
        signal.raise_signal(number)

    def work() -> int:
        gc.callbacks.append(gc_callback)
        gc.collect()
        time.sleep(60)
        return ExitCode.PASS

    before = {other: signal.getsignal(other) for other in (signal.SIGINT, signal.SIGTERM)}
    start = time.monotonic()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        assert ended(work) == ExitCode.ERROR
    finally:
        signal.signal(signal.SIGINT, before[signal.SIGINT])
    assert time.monotonic() - start < 50
    assert capsys.readouterr().err == "error: interrupted\n"
    assert {other: signal.getsignal(other) for other in before} == before


def assert_ends(work: Callable[[], int], capsys: pytest.CaptureFixture[str]) -> None:
    """Long before it would by itself, and as what is interrupted."""
    start = time.monotonic()
    assert ended(work) == ExitCode.ERROR
    assert time.monotonic() - start < 50
    assert capsys.readouterr().err == "error: interrupted\n"


def test_an_interrupt_of_a_finalizer_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    class Gone:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def work() -> int:
        Gone()
        time.sleep(60)
        return ExitCode.PASS

    assert_ends(work, capsys)


def test_an_interrupt_of_a_weak_references_callback_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    class Thing:
        pass

    def work() -> int:
        thing = Thing()
        reference = weakref.ref(thing, lambda dead: signal.raise_signal(signal.SIGTERM))
        del thing
        assert reference() is None
        time.sleep(60)
        return ExitCode.PASS

    assert_ends(work, capsys)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_a_script_started_in_the_background_ends_by_it(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as shells have it
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where these tests run under nohup

    def work() -> int:
        signal.raise_signal(number)
        time.sleep(60)
        return ExitCode.PASS

    try:
        assert_ends(work, capsys)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGHUP, hang_up)


def test_nohup_is_heeded() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert ended(lambda: int(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)) == 1
    finally:
        signal.signal(signal.SIGHUP, before)


def by_the_kernel() -> None:
    """Send an interrupt as a person does: to this process, in whichever thread. Return once it has come."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.05)


def said_of(work: Callable[[list[str]], object]) -> list[str]:
    """The messages of the work until an interrupt ends it."""
    lines: list[str] = []
    elsewhere = threading.Event()
    threading.Thread(target=elsewhere.wait, daemon=True).start()  # as numpy's: it would take what main holds back
    assert ended(lambda: int(bool(work(lines)))) == ExitCode.ERROR, "it was not interrupted"
    elsewhere.set()
    return lines


def test_what_is_held_is_done_whole() -> None:
    def work(lines: list[str]) -> None:
        with held():
            with held():
                by_the_kernel()
                lines.append("inner")
            lines.append("outer")
        lines.append("behind")

    assert said_of(work) == ["inner", "outer"]


def test_an_interrupt_that_waited_raises_where_it_is_let_in() -> None:
    def work(lines: list[str]) -> None:
        with held():
            by_the_kernel()
            lines.append("before")
            try:
                with let_in():
                    lines.append("let in")
            except KeyboardInterrupt:
                lines.append("raised")
            by_the_kernel()
            lines.append("held again")
        lines.append("behind")

    assert said_of(work) == ["before", "raised", "held again"]


def test_an_interrupt_within_what_is_let_in_raises_at_once_and_only_once() -> None:
    def work(lines: list[str]) -> None:
        with held():
            try:
                with let_in():
                    by_the_kernel()
                    lines.append("behind the interrupt")
            except KeyboardInterrupt:
                lines.append("raised")
        lines.append("behind")
        with held():
            pass
        raise KeyboardInterrupt

    assert said_of(work) == ["raised", "behind"]


def test_what_other_threads_hold_keeps_no_interrupt_waiting() -> None:
    def work(lines: list[str]) -> None:
        inside, over = threading.Event(), threading.Event()

        def elsewhere() -> None:
            with held():
                inside.set()
                over.wait(10)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        inside.wait(10)
        try:
            by_the_kernel()
            lines.append("behind")
        finally:
            over.set()
            thread.join()

    assert said_of(work) == []


def test_an_error_ends_what_is_held_and_the_interrupt_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    def work(lines: list[str]) -> None:
        with held():
            by_the_kernel()
            raise OSError("no room")

    assert said_of(work) == []
    assert capsys.readouterr().err == "error: interrupted\n"
