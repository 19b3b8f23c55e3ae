"""The worker process: imports what is heavy once, then forks a session process for each session that is asked for.

Replies go over sockets of their own and never over standard output, because sglang prints; what it prints is the log.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import importlib
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass

from repro.cases.case import Target
from runners.processes.causes import one_line
from runners.processes.session_process import Changed, session_process, unchanging
from runners.recording.observer import OpenSession

MESSAGE_MAX = 65536


def session_module(target: Target) -> str:
    """The module whose open_session serves this target's engine."""
    return "runners.toy.session" if target.engine == "toy" else "runners.sessions.open"


def main(arguments: list[str]) -> int:
    """Serve the pool that started this process until it closes its end. Standard input is the control socket."""
    parser = argparse.ArgumentParser(prog="python -m runners.processes.worker")
    parser.add_argument("--target", required=True, type=Target.parse)
    parser.add_argument("--session", default="", help="the module to take open_session from")
    options = parser.parse_args(arguments)
    control = _take_over_standard_input()
    _live_quietly()
    try:
        module = importlib.import_module(options.session or session_module(options.target))
        open_session: OpenSession = module.open_session
    except BaseException as error:  # becomes the "failed" message; sglang's imports may even call exit
        traceback.print_exc()
        tell(control, say="failed", text=one_line(error))
        return 1
    # What was imported lives as long as this process: keep the collector of every session from touching its pages.
    gc.freeze()
    tell(control, say="ready")
    sessions = Sessions(control, options.target, open_session, getattr(module, "changed", unchanging))
    try:
        # What is said to a pool that is gone.
        with contextlib.suppress(ConnectionError):
            sessions.serve()
    finally:
        sessions.end()
    return 0


def _take_over_standard_input() -> socket.socket:
    """The control socket, off descriptor 0; whatever prints or reads by habit now meets the log and nothing."""
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return control


def _live_quietly() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool decides what Ctrl-C means
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()  # a Python stack in the log for every signal that kills


def tell(control: socket.socket, **message: object) -> None:
    """Send one control message."""
    control.send(json.dumps(message).encode())


@dataclass(slots=True)
class _Order:
    """What the pool wants of a session: that it ends in time. Mutable: a patience that ran out is replaced.

    answer: whether the pool waits to hear of it. If not, a session that does not end in time is killed.
    """

    deadline: float
    answer: bool


class Sessions:
    """The session processes that are alive, and those that have ended and whose end has not been reported. Mutable."""

    def __init__(self, control: socket.socket, target: Target, open_session: OpenSession, changed: Changed) -> None:
        self._control, self._target, self._open_session, self._changed = control, target, open_session, changed
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._handles: dict[int, int] = {}  # of every session that was not reaped: its number, a handle to its process
        self._ended: set[int] = set()  # those of them that are
        self._orders: dict[int, _Order] = {}

    def serve(self) -> None:
        """Do what the pool asks for until it closes the control socket."""
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

    def end(self) -> None:
        """Kill what is left, and all that it started."""
        for number in list(self._handles):
            self._signal(number, signal.SIGKILL)
            self._reap(number)

    def _obey(self) -> bool:
        """Hear the next word from the pool and act on it. False if the pool is gone."""
        try:
            word, handles, _, _ = socket.recv_fds(self._control, MESSAGE_MAX, 2)
        except ConnectionResetError:  # it died with messages unread
            return False
        if not word:
            return False
        order = json.loads(word)
        if handles:
            self._open(*handles)
        else:
            self._begin_to_end(**order)
        return True

    def _open(self, channel: int, log: int) -> None:
        number = os.fork()
        if number == 0:
            self._control.close()
            for handle in self._handles.values():
                os.close(handle)
            session_process(channel, log, self._target, self._open_session, self._changed)
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
        """A session has ended. It stays unreaped until the pool asks, so that its number cannot be anyone else's."""
        self._poll.unregister(handle)
        self._ended.add(next(number for number, open_handle in self._handles.items() if open_handle == handle))

    def _look(self, number: int, order: _Order) -> None:
        """Whether what was ordered has come about, or its time has passed."""
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
