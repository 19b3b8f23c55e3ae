"""Ctrl-C and SIGTERM: where they raise KeyboardInterrupt, and where they wait.

They wait by a flag, not by the thread's signal mask: the kernel gives a signal that one thread holds back to another
(numpy starts some), and Python then runs its handler in the main thread all the same.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class _Waiting:
    """Of this process. depth: how many blocks are entered in which interrupts wait. came: whether one has."""

    depth = 0
    came = False


def interrupt(number: int, frame: FrameType | None) -> None:
    """A signal's handler: as default_int_handler, but later where interrupts wait, and a moment later where what was
    interrupted could not end by it."""
    if _Waiting.depth:
        _Waiting.came = True
    elif _is_ignored_in(frame):
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        _Waiting.came = False
        raise KeyboardInterrupt


@contextlib.contextmanager
def held() -> Iterator[None]:
    """What is done here is done whole: an interrupt raises at the end of the outermost such block. Interrupts raise in
    the main thread; in others this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    depth = _Waiting.depth
    _Waiting.depth += 1
    try:
        yield
    finally:
        _Waiting.depth = depth
        _raise_what_waits()


@contextlib.contextmanager
def let_in() -> Iterator[None]:
    """Within held(): here interrupts raise, and one that has waited does at once. In other threads than the main one
    this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    depth = _Waiting.depth
    try:
        _Waiting.depth = 0
        _raise_what_waits()
        yield
    finally:
        _Waiting.depth = depth


def _raise_what_waits() -> None:
    if _Waiting.came and not _Waiting.depth:
        _Waiting.came = False
        raise KeyboardInterrupt


def _is_ignored_in(frame: FrameType | None) -> bool:
    """Whether what is raised here is printed and goes no further: in Hypothesis's callback of the garbage collector, in
    a finalizer, or where a weak set or dictionary lets go of what is gone."""
    while frame is not None:
        name, module = frame.f_code.co_name, frame.f_globals.get("__name__")
        if name in ("gc_callback", "__del__") or (
            name in ("remove", "_remove") and module in ("weakref", "_weakrefset")
        ):
            return True
        frame = frame.f_back
    return False
