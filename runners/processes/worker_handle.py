"""The pool's hold on a worker process: start it, have it open sessions, end a session, end it with all it started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from runners.processes.causes import exit_name
from runners.processes.patience import patient
from runners.processes.wire import Silence, until_ready

# For what takes milliseconds: a fork, the end of a killed process. It is slow only on a machine about to fall over.
PROMPT_S = 30.0
# For a worker to end its sessions, whose memory the kernel may take seconds to free. They are killed by then.
END_S = 4.0
MESSAGE_MAX = 65536
_ROOM = 4 << 20


class WorkerTrouble(Exception):
    """The worker does not start, is gone, or answers nonsense: an error of the harness, never a bug of sglang."""


class Process(Protocol):
    """The part of a process that a worker needs; a Popen has it."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class Worker:
    """A running worker (runners/processes/worker.py) and the control socket to it."""

    def __init__(self, process: Process, control: socket.socket) -> None:
        self._process, self._control = process, control
        self._sessions: set[int] = set()  # which it may have alive

    @classmethod
    def started(cls, command: Sequence[str], environment: Mapping[str, str], log: int) -> Worker:
        """Start one; what it prints goes to the descriptor `log`. WorkerTrouble if the system refuses."""
        # Every message on this kind of socket arrives whole or not at all.
        control, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with child_end:
                process = subprocess.Popen(
                    command, stdin=child_end.fileno(), stdout=log, stderr=log, env=dict(environment), process_group=0
                )
        except OSError as error:
            control.close()
            raise WorkerTrouble(f"the worker cannot be started: {error}") from error
        return cls(process, control)

    def wait_ready(self, within_s: float) -> None:
        """Return once it has imported what it needs. WorkerTrouble, with its reason, if it could not, or took longer:
        seconds without a processor do not count."""
        heard = partial(until_ready, self._control.fileno(), select.POLLIN)
        try:
            patient(heard, self._process.pid, time.monotonic() + within_s)
        except Silence:
            raise WorkerTrouble(f"the worker sent nothing for {within_s:g} s") from None
        message = self._hear(PROMPT_S, ("ready", "failed"))
        if message["say"] == "failed":
            raise WorkerTrouble(f"the worker cannot import what it needs: {message.get('text')}")

    def open(self, log: int, kind: int = socket.SOCK_STREAM) -> tuple[socket.socket, int]:
        """Start a session process that prints to the descriptor `log`: the channel to it, and its number."""
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, kind)
        # Reads and writes on our end wait in poll, where they can be given a deadline.
        parent_end.setblocking(False)
        try:
            with child_end:
                # As much as the system allows: a session goes on while what it says waits to be read.
                child_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
                socket.send_fds(self._control, [b"{}"], [child_end.fileno(), log])
            number = int(self._hear(PROMPT_S, ("opened",))["pid"])
        except OSError as error:
            parent_end.close()
            raise WorkerTrouble(f"the worker ended: {self._exit()}") from error
        except BaseException:
            parent_end.close()
            raise
        self._sessions.add(number)
        return parent_end, number

    def end_session(self, session: int, number: int, within_s: float) -> int | None:
        """Send its process group this signal (0: none), and wait for it to end. Its wait status; None if it has not
        ended by then. Once it has, what it started is ended, too."""
        self._say({"pid": session, "signal": number, "within_s": within_s, "answer": True})
        message = self._hear(within_s + PROMPT_S, ("closed", "alive"))
        if message["say"] == "alive":
            return None
        self._sessions.discard(session)
        return int(message["status"])

    def dismiss(self, session: int, number: int, within_s: float) -> None:
        """The same as end_session, and kill it if it does not end in time, without waiting for any of it."""
        self._say({"pid": session, "signal": number, "within_s": within_s, "answer": False})
        self._sessions.discard(session)

    def settle(self, within_s: float) -> None:
        """Wait until all that were dismissed have ended. WorkerTrouble if they have not by then."""
        self._say({"settle": True})
        self._hear(within_s, ("settled",))

    def end(self) -> None:
        """End it and everything it started. Returns when that is so."""
        self._control.close()
        if self._sessions:
            # The worker sees the socket close and kills the sessions' groups, grandchildren included, before it exits.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        if self._process.poll() is None:
            self.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it ends as soon as the kernel gets to it
                self._process.wait(PROMPT_S)
        if self._process.returncode:
            # The worker was killed; its sessions die with it, but what those started does not.
            for session in self._sessions:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(session, signal.SIGKILL)

    def kill(self) -> None:
        """End it and its sessions at once, whichever thread waits for them; end() is still to be called."""
        for group in (*self._sessions, self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def _say(self, order: Mapping[str, object]) -> None:
        try:
            self._control.send(json.dumps(order).encode())
        except OSError as error:
            raise WorkerTrouble(f"the worker ended: {self._exit()}") from error

    def _hear(self, within_s: float, expected: Sequence[str]) -> dict[str, Any]:
        """The next control message, of an expected kind."""
        self._control.settimeout(within_s)
        try:
            data = self._control.recv(MESSAGE_MAX)
        except TimeoutError:
            raise WorkerTrouble(f"the worker sent nothing for {within_s:g} s") from None
        except OSError:
            data = b""  # it died with messages unread
        finally:
            self._control.settimeout(None)
        if not data:
            raise WorkerTrouble(f"the worker ended: {self._exit()}")
        try:
            message = json.loads(data)
        except ValueError:
            message = None
        if not isinstance(message, dict) or message.get("say") not in expected:
            raise WorkerTrouble(f"the worker sent an invalid message: {data[:80]!r}")
        return message

    def _exit(self) -> str:
        """The end of the worker process, in words."""
        try:
            code = self._process.wait(PROMPT_S)
        except subprocess.TimeoutExpired:
            return "it closed its control socket"
        return exit_name(-code) if code < 0 else f"exit {code}"
