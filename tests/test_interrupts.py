"""An interrupt ends a command wherever it comes."""

from __future__ import annotations

import gc
import signal
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from repro.commands.cli import ended
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
        time.sleep(10)
        return ExitCode.PASS

    before = {other: signal.getsignal(other) for other in (signal.SIGINT, signal.SIGTERM)}
    start = time.monotonic()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        assert ended(work) == ExitCode.ERROR
    finally:
        signal.signal(signal.SIGINT, before[signal.SIGINT])
    assert time.monotonic() - start < 5
    assert capsys.readouterr().err == "error: interrupted\n"
    assert {other: signal.getsignal(other) for other in before} == before


def assert_ends(work: Callable[[], int], capsys: pytest.CaptureFixture[str]) -> None:
    """Long before it would by itself, and as what is interrupted."""
    start = time.monotonic()
    assert ended(work) == ExitCode.ERROR
    assert time.monotonic() - start < 5
    assert capsys.readouterr().err == "error: interrupted\n"


def test_an_interrupt_of_a_finalizer_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    class Gone:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def work() -> int:
        Gone()
        time.sleep(10)
        return ExitCode.PASS

    assert_ends(work, capsys)


def test_an_interrupt_where_a_weak_set_lets_go_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    of_weak_sets: dict[str, Any] = {"__name__": "_weakrefset", "signal": signal}
    exec("def _remove(item): signal.raise_signal(signal.SIGTERM)", of_weak_sets)

    def work() -> int:
        thing = type("Thing", (), {})()
        held = weakref.ref(thing, of_weak_sets["_remove"])
        del thing
        assert held() is None
        time.sleep(10)
        return ExitCode.PASS

    assert_ends(work, capsys)


def test_where_a_shell_has_interrupts_ignored_they_stay_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert ended(lambda: int(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)) == 1
    finally:
        signal.signal(signal.SIGINT, before)
