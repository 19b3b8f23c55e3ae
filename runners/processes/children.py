"""Processes that are forked on request: what a worker does for sessions, and a fork server for workers.

Orders come over a control socket, each with the descriptors that the new process is to have; so do the answers.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

MESSAGE_MAX = 65536
_SET_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def take_over_standard_input() -> socket.socket:
    """The control socket, off descriptor 0; whatever prints or reads by habit now meets the log and nothing."""
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return control


def live_quietly() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool decides what Ctrl-C means
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()  # a Python stack in the log for every signal that kills


@contextlib.contextmanager
def watching(channel: int, gone: Callable[[], object]) -> Iterator[None]:
    """Within it, call `gone` in another thread once the other side of this channel is closed: for work during which
    it is not read, such as an import."""
    over, poll = os.eventfd(0), select.poll()
    poll.register(channel, 0)  # POLLHUP is reported without being asked for
    poll.register(over, select.POLLIN)

    def watch() -> None:
        if all(handle != over for handle, _ in poll.poll()):
            gone()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.eventfd_write(over, 1)
        thread.join()
        os.close(over)


def tell(control: socket.socket, **message: object) -> None:
    """Send one control message."""
    control.send(json.dumps(message).encode())


@dataclass(slots=True)
class _Order:
    """An order to a child to end in time. Mutable: a patience that ran out is replaced.

    answer: whether the other side waits to hear of it. If not, a child that does not end in time is killed.
    """

    deadline: float
    answer: bool


class Children:
    """The forked processes that are alive, and those that have ended and whose end has not been reported. Mutable.
    begin: what a fork does with the two descriptors that came with the order: a channel to the caller, and a log."""

    def __init__(self, control: socket.socket, begin: Callable[[int], int | None]) -> None:
        self._control, self._begin = control, begin
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._handles: dict[int, int] = {}  # of every child that was not reaped: its number, a handle to its process
        self._ended: set[int] = set()  # those of them that are
        self._orders: dict[int, _Order] = {}
        self._settling = False  # whether the other side waits until all of them are carried out

    def serve(self) -> None:
        """Do what the other side asks for until it closes the control socket."""
        while True:
            deadline = min((order.deadline for order in self._orders.values()), default=math.inf)
            wait = None if deadline == math.inf else max(0.0, 1000 * (deadline - time.monotonic()))
            for handle, _ in self._poll.poll(wait):
                if handle != self._control.fileno():
                    self._notice(handle)
                elif not self._obey():
                    return
            for number, order in list(self._orders.items()):
                self._look(number, order)
            if self._settling and not self._orders:
                self._settling = False
                tell(self._control, say="settled")

    def end(self, within_s: float = 0.0) -> None:
        """Kill what is left, and all that it started. within_s: time to end by itself."""
        deadline = time.monotonic() + within_s
        while self._handles.keys() - self._ended and (wait := deadline - time.monotonic()) > 0:
            for handle, _ in self._poll.poll(1000 * wait):
                if handle == self._control.fileno():
                    self._poll.unregister(handle)
                else:
                    self._notice(handle)
        for number in list(self._handles):
            self._signal(number, signal.SIGKILL)
            self._reap(number)

    def _obey(self) -> bool:
        """Hear the next word from the other side and act on it. False if it is gone."""
        try:
            word, handles, _, _ = socket.recv_fds(self._control, MESSAGE_MAX, 2)
        except ConnectionResetError:  # it died with messages unread
            return False
        if not word:
            return False
        order = json.loads(word)
        if handles:
            self._open(*handles)
        elif "settle" in order:
            self._settling = True
        else:
            self._begin_to_end(**order)
        return True

    def _open(self, channel: int, log: int) -> None:
        number = os.fork()
        if number == 0:
            self._control.close()
            for handle in self._handles.values():
                os.close(handle)
            _be_child(log, partial(self._begin, channel))
        os.close(channel)
        os.close(log)
        # Both sides do it: neither knows who comes first.
        _lead_group(number)
        self._handles[number] = handle = os.pidfd_open(number)
        self._poll.register(handle, select.POLLIN)
        tell(self._control, say="opened", pid=number)

    def _begin_to_end(self, pid: int, signal: int, within_s: float, answer: bool) -> None:
        if signal:
            self._signal(pid, signal)
        self._orders[pid] = _Order(deadline=time.monotonic() + within_s, answer=answer)

    def _notice(self, handle: int) -> None:
        """A child has ended. It stays unreaped until that is asked for, so that its number cannot be anyone else's."""
        self._poll.unregister(handle)
        self._ended.add(next(number for number, open_handle in self._handles.items() if open_handle == handle))

    def _look(self, number: int, order: _Order) -> None:
        """Look whether the order was carried out, or its time has passed."""
        if number in self._ended:
            del self._orders[number]
            self._signal(number, signal.SIGKILL)  # what it may have started
            status = self._reap(number)
            if order.answer:
                tell(self._control, say="closed", status=status)
        elif time.monotonic() > order.deadline:
            if order.answer:
                del self._orders[number]
                tell(self._control, say="alive")
            else:
                self._signal(number, signal.SIGKILL)
                order.deadline = math.inf

    def _signal(self, number: int, which: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(number, which)

    def _reap(self, number: int) -> int:
        """Its wait status."""
        os.close(self._handles.pop(number))
        self._ended.discard(number)
        _, status = os.waitpid(number, 0)
        return status


def _lead_group(pid: int) -> None:
    # The refusals: it has done so itself, or has ended.
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, pid)


def _be_child(log: int, begin: Callable[[], int | None]) -> NoReturn:
    """Right after the fork. log: where what it prints goes. What `begin` returns, if anything, is the exit status."""
    status = 1
    try:
        parent = os.getppid()
        os.setpgid(0, 0)
        for number in (1, 2):
            os.dup2(log, number)
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() == parent:  # else the parent died before the line above could notice
            status = begin() or 0
    except BaseException:  # becomes the exit status; the other side reads the log
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit: what the parent registered to run at exit is the parent's.
        os._exit(status)
