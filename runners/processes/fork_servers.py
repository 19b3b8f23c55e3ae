"""The parent's side of fork servers: one for all workers of this process whose imports are the same but for sglang."""

from __future__ import annotations

import atexit
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from repro.cases.case import Target
from runners.processes.log import Log
from runners.processes.worker_handle import PROMPT_S, Worker, WorkerTrouble
from runners.targets.environments import interpreter

# What only sessions, sglang or pytest read, so that it may differ between workers of one server.
_NOT_COMMON = ("EAGLEEYE_", "SGLANG_", "PYTEST_")
# What workers of an engine have in common, by its module; engines that are absent have workers of their own making.
PRELOADED = {"emulated": "runners.sessions.preloaded", "toy": "runners.toy.session"}
# As many at once of a kind: one without packages in front, one with those of the newest releases, one for somebody's
# variables.
SERVERS_MAX = 3


class ForkServer:
    """A running fork server (runners/processes/fork_server.py). Mutable."""

    def __init__(self, preloaded: str, environment: Mapping[str, str], within_s: float) -> None:
        """Start it. preloaded: the module that it imports. WorkerTrouble, with the reason, if it does not start."""
        self._log = Log()
        self._lock = threading.Lock()
        self.alive: set[int] = set()
        command = [sys.executable, "-P", "-m", "runners.processes.fork_server", preloaded]
        self._server = Worker.started(command, environment, self._log.fileno())
        try:
            self._server.wait_ready(within_s)
        except BaseException:
            self.end()
            raise

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str], log: int) -> Worker:
        """A new worker. WorkerTrouble if the server is gone."""
        with self._lock:
            control, number = self._server.open(log, socket.SOCK_SEQPACKET)
        self.alive.add(number)
        control.setblocking(True)
        try:
            control.send(json.dumps({"arguments": list(arguments), "environment": dict(environment)}).encode())
        except OSError as error:
            control.close()
            raise WorkerTrouble(f"the worker cannot be started: {error}") from error
        return Worker(Forked(self, number), control)

    def status(self, number: int, within_s: float) -> int | None:
        """The exit status of a worker, once it has ended; None if it has not by then."""
        with self._lock:
            status = self._server.end_session(number, 0, within_s)
        if status is not None:
            self.alive.discard(number)
        return status

    def end(self) -> None:
        self._server.end()
        self._log.close()


class Forked:
    """A worker's process that is a fork server's child: what Popen is of one's own."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            within_s = PROMPT_S if timeout is None else timeout
            try:
                status = self._server.status(self.pid, within_s)
            except WorkerTrouble:
                status = 9  # the server is gone, and its children were killed with it
            if status is None:
                raise subprocess.TimeoutExpired("the worker", within_s)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


_servers: dict[tuple[int, str, object], ForkServer] = {}  # the one that was used last stands last
_lock = threading.Lock()


def started(
    target: Target,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: int,
    within_s: float,
    wrapper: Sequence[str] = (),
) -> Worker:
    """A worker of this target, forked where its engine is preloaded. wrapper: words in front of its command line."""
    if target.engine in PRELOADED and not wrapper:
        return forked(target.engine, arguments, environment, log, within_s)
    # -P: what lies in the current directory is not importable by being there.
    command = [*wrapper, str(interpreter(target)), "-P", "-m", "runners.processes.worker"]
    return Worker.started([*command, *arguments], environment, log)


def forked(engine: str, arguments: Sequence[str], environment: Mapping[str, str], log: int, within_s: float) -> Worker:
    """A worker of this engine with these arguments in this environment. WorkerTrouble if there is none to be had."""
    preloaded, common = PRELOADED[engine], common_environment(environment)
    key = (os.getpid(), preloaded, tuple(sorted(common.items())))
    with _lock:
        server = _servers.pop(key, None) or ForkServer(preloaded, common, within_s)
        try:
            worker = server.fork(arguments, environment, log)
        except WorkerTrouble:  # it was killed, perhaps
            server.end()
            server = ForkServer(preloaded, common, within_s)
            worker = server.fork(arguments, environment, log)
        _servers[key] = server
        # Of its own kind: those of the toy cost nothing, and must not end one that took seconds.
        alike = {key: server for key, server in _servers.items() if key[1] == preloaded}
        idle = [key for key, server in alike.items() if not server.alive]
        for surplus in idle[: max(0, len(alike) - SERVERS_MAX)]:
            _servers.pop(surplus).end()
    return worker


def common_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that counts for everything but sglang: without what only sessions read, and without
    the folders that hold a sglang on the import path."""
    common = {name: value for name, value in environment.items() if not name.startswith(_NOT_COMMON)}
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    common["PYTHONPATH"] = os.pathsep.join(place for place in path if not (Path(place) / "sglang").is_dir())
    return common


def end_all() -> None:
    """The servers of this process, and whatever workers they still have."""
    for key in list(_servers):
        if key[0] == os.getpid():
            _servers.pop(key).end()


def processor_seconds() -> float:
    """Processor seconds of this process and of all that it started and that have ended. Ends the fork servers: what
    their workers spent is known only when they have."""
    end_all()
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


atexit.register(end_all)
