"""Ctrl-C, SIGTERM and a hang-up: where they raise KeyboardInterrupt, and where they wait.

They wait by a flag, not by the thread's signal mask: the kernel gives a signal that one thread holds back to another
(numpy starts some), and Python then runs its handler in the main thread all the same.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from repro.commands.last_resort import INTERRUPTS, limit_ending

# The last word of a command that another one starts, and that ends when its standard input does.
ENDS_WITH_INPUT = "--ends-with-input"


class _Waiting:
    """The waiting interrupts of this process. depth: blocks entered in which interrupts wait. came: True once one has
    come."""

    depth = 0
    came = False


def while_imported() -> None:
    """Have a command end at once by a signal during its imports, when nothing has begun. interruptible() takes over.
    From here on an interrupt ends it in time."""
    for number in INTERRUPTS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end_at_once)
    limit_ending()


def end_with(channel: int) -> None:
    """Have an interrupt come once the other side of this pipe is closed: for a process whose first read from it comes
    behind its imports, which take long on a busy machine."""
    poll = select.poll()
    poll.register(channel, 0)  # POLLHUP is reported without being asked for

    def watch() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))  # whatever starts this process may hold it back
        poll.poll()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


def _end_at_once(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(OSError):  # a terminal that is gone
        os.write(2, b"error: interrupted\n")
    os._exit(3)  # ExitCode.ERROR, without importing it


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within it Ctrl-C, SIGTERM and a hang-up interrupt the main thread, so that a stopped job keeps its findings and
    ends its workers. Also a job that a script has started in the background, for which a shell ignores SIGINT; but a
    hang-up is ignored where nohup was asked for."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    hook = sys.unraisablehook

    def ignored(ignored: sys.UnraisableHookArgs) -> None:
        """An interrupt within a finalizer or a callback of the garbage collector ends nothing: it comes again."""
        if issubclass(ignored.exc_type, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        else:
            hook(ignored)

    sys.unraisablehook = ignored
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt(number: int, frame: FrameType | None) -> None:
    """A signal's handler: as default_int_handler, but later where interrupts wait."""
    if number == signal.SIGHUP:
        _leave_terminal()
    if _Waiting.depth:
        _Waiting.came = True
    else:
        _Waiting.came = False
        raise KeyboardInterrupt


@contextlib.contextmanager
def held() -> Iterator[None]:
    """A block that is run whole: an interrupt raises at the end of the outermost such block. Interrupts raise in
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


class Limit:
    """A time after which an interrupt comes. Mutable. rang: True once it has."""

    rang = False

    def ring(self, number: int, frame: FrameType | None) -> None:
        self.rang = True
        interrupt(number, frame)

    def after(self, seconds: float) -> None:
        """Have it come so many seconds from now, in place of what was set before. Nothing in other threads than the
        main one, where interrupts do not raise."""
        if threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_REAL, seconds)


@contextlib.contextmanager
def limited() -> Iterator[Limit]:
    """A limit that can be set within it, and does not ring behind it."""
    limit = Limit()
    if threading.current_thread() is not threading.main_thread():
        yield limit
        return
    ring = limit.ring
    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield limit
    finally:
        if signal.getsignal(signal.SIGALRM) is ring:  # else an interrupt is to come again, as interruptible() has it
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _raise_what_waits() -> None:
    if _Waiting.came and not _Waiting.depth:
        _Waiting.came = False
        raise KeyboardInterrupt


def _leave_terminal() -> None:
    """Print nothing more to a terminal that is gone: each line would be an OSError."""
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
