"""The pool's hold on a worker process: start it, have it open a session, end a session, end it with all it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from runners.causes import exit_name

# For what takes milliseconds: a fork, the end of a killed process. It is slow only on a machine about to fall over.
PROMPT_S = 30.0
MESSAGE_MAX = 65536


class WorkerTrouble(Exception):
    """The worker does not start, is gone, or answers what makes no sense: our trouble, never sglang's bug."""


class Worker:
    """A running worker (runners/worker.py) and the control socket to it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: int) -> None:
        """Start it; what it prints goes to the descriptor `log`. WorkerTrouble if the system refuses."""
        # Every message on this kind of socket arrives whole or not at all.
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command, stdin=theirs.fileno(), stdout=log, stderr=log, env=dict(environment), process_group=0
                )
        except OSError as error:
            self._control.close()
            raise WorkerTrouble(f"the worker cannot be started: {error}") from error
        self._session_pid = 0

    def wait_ready(self, within_s: float) -> None:
        """Return once it has imported what it needs. WorkerTrouble, with its reason, if it could not."""
        message = self._hear(within_s, ("ready", "unfit"))
        if message["say"] == "unfit":
            raise WorkerTrouble(f"the worker cannot import what it needs: {message.get('text')}")

    def open(self) -> tuple[socket.socket, int]:
        """Start a session process: the channel to it, and its number."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # Reads and writes on our end wait in poll, where they can be given a deadline.
        ours.setblocking(False)
        try:
            with theirs:
                socket.send_fds(self._control, [b"open"], [theirs.fileno()])
            self._session_pid = int(self._hear(PROMPT_S, ("opened",))["pid"])
        except OSError as error:
            ours.close()
            raise WorkerTrouble(f"the worker ended: {self._exit()}") from error
        except BaseException:
            ours.close()
            raise
        return ours, self._session_pid

    def end_session(self, number: int, within_s: float) -> int | None:
        """Send its process group this signal (0: none), and wait for it to end. Its wait status; None if it has not
        ended by then. Once it has, what it started is ended, too."""
        self._say({"signal": number, "within_s": within_s})
        message = self._hear(within_s + PROMPT_S, ("closed", "alive"))
        if message["say"] == "alive":
            return None
        self._session_pid = 0
        return int(message["status"])

    def end(self) -> None:
        """End it and everything it started. Returns when that is so."""
        self._control.close()
        if self._session_pid:
            # The worker sees the socket close and kills the session's group, grandchildren included, before it exits.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PROMPT_S)
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._session_pid and self._process.returncode:
            # The worker was killed; its session dies with it, but what that one started does not.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._session_pid, signal.SIGKILL)

    def _say(self, order: dict[str, float]) -> None:
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
            raise WorkerTrouble(f"the worker said nothing for {within_s:g} s") from None
        except OSError:
            data = b""  # it died with words of ours unread
        finally:
            self._control.settimeout(None)
        if not data:
            raise WorkerTrouble(f"the worker ended: {self._exit()}")
        try:
            message = json.loads(data)
        except ValueError:
            message = None
        if not isinstance(message, dict) or message.get("say") not in expected:
            raise WorkerTrouble(f"the worker answers what makes no sense: {data[:80]!r}")
        return message

    def _exit(self) -> str:
        """How the worker process ended, in words."""
        try:
            code = self._process.wait(PROMPT_S)
        except subprocess.TimeoutExpired:
            return "it closed its control socket"
        return exit_name(-code) if code < 0 else f"exit {code}"
