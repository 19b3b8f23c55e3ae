"""A pool's worker, started when it is needed, and the session processes that it forks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from repro.cases.case import Setup, Target
from runners.processes.fork_servers import started
from runners.processes.inbox import Inbox
from runners.processes.log import Log
from runners.processes.warm import Open
from runners.processes.worker_handle import PROMPT_S, Worker, WorkerTrouble
from runners.targets.environments import NotUsable

# A worker that could not be started this often in a row is not tried again: a campaign would wait for it at each case.
STARTS_MAX = 2


class Host:
    """One worker at a time. Mutable.

    environment: what the worker is to have, asked for at each start; NotUsable if its target is not there. start_s:
    how long it may take to start. session: the module to take open_session from, instead of the engine's. wrapper:
    words in front of its command line. log: what sessions print is appended there when they end.
    """

    def __init__(
        self,
        target: Target,
        environment: Callable[[], Mapping[str, str]],
        log: Log,
        *,
        start_s: float,
        session: str = "",
        wrapper: Sequence[str] = (),
    ) -> None:
        self._target, self._environment, self._log = target, environment, log
        self._start_s, self._session, self._wrapper = start_s, session, tuple(wrapper)
        self._worker: Worker | None = None
        self._failed_starts = 0
        self._trouble = ""

    def start(self) -> Worker:
        """The worker, if need be a new one. WorkerTrouble, with its reason, if there is none to be had."""
        if self._worker:
            return self._worker
        if self._failed_starts >= STARTS_MAX:
            raise WorkerTrouble(self._trouble)
        self._failed_starts += 1
        try:
            arguments = ["--target", str(self._target)]
            arguments += ["--session", self._session] if self._session else []
            log = self._log.fileno()
            self._worker = started(self._target, arguments, self._environment(), log, self._start_s, self._wrapper)
            self._worker.wait_ready(self._start_s)
        except (NotUsable, WorkerTrouble) as error:
            self._trouble = str(error)
            raise WorkerTrouble(self._trouble) from error
        self._failed_starts = 0
        return self._worker

    def open(self, setup: Setup) -> Open:
        """A new session process, which was not asked for anything yet."""
        worker, log = self.start(), Log()
        try:
            channel, pid = worker.open(log.fileno())
        except BaseException:
            log.close()
            raise
        return Open(setup=setup, inbox=Inbox(channel), pid=pid, log=log)

    def end(self, session: Open, number: int, within_s: float) -> int:
        """Give the session this signal (0: none) and time to end by, then kill it. Its wait status. WorkerTrouble if
        that cannot be done."""
        if not self._worker:
            raise WorkerTrouble("the worker is gone")
        status = self._worker.end_session(session.pid, number, within_s)
        if status is None:
            status = self._worker.end_session(session.pid, 9, PROMPT_S)
        if status is None:
            raise WorkerTrouble("the session cannot be killed")
        return status

    def dismiss(self, session: Open, number: int) -> None:
        """Close our end of a session, by which one that waits for its next case ends, and give it this signal (0:
        none), without waiting for its end. WorkerTrouble if the worker is gone."""
        self.shut(session)
        if self._worker:
            self._worker.dismiss(session.pid, number, PROMPT_S)

    def settle(self) -> None:
        """Wait until all that were dismissed have ended, and what they held is free. WorkerTrouble if they do not."""
        if self._worker:
            self._worker.settle(2 * PROMPT_S)  # they have one to end by themselves

    def shut(self, session: Open) -> None:
        """Close our end, and the session's log, once what it printed was taken over."""
        session.inbox.close()
        self._log.take_over(session.log)
        session.log.close()

    def kill(self) -> None:
        """End the worker and its sessions at once, for another thread."""
        if worker := self._worker:
            worker.kill()

    def drop(self, sessions: Iterable[Open], *, at_once: bool = False) -> None:
        """End the worker and everything it started; these are the sessions that were open. at_once: without waiting
        until what they held is free."""
        if at_once:
            self.kill()
        for session in sessions:
            self.shut(session)
        if self._worker:
            worker, self._worker = self._worker, None
            worker.end()
