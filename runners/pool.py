"""The parent's side of a worker: sends cases, collects what comes back; death or silence becomes a Trace.

Nothing that a worker does raises here. One worker process a pool, one session process at a time in it.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType

from repro.case import Case, Setup, Target
from repro.codec import case_to_json
from repro.trace import Ended, How, Trace
from runners.causes import cuda_error, exit_name
from runners.environments import NotUsable, interpreter, worker_environment
from runners.intake import Intake
from runners.log import Log
from runners.process import PROMPT_S, Worker, WorkerTrouble
from runners.wire import BadFrame, CutShort, Frame, Silence, pack, read_exactly, receive, write_all

# A worker that could not be started this often in a row is not tried again: a campaign would wait for it at each case.
STARTS_MAX = 2
# Time for a hanging session to write its stack into the log before it is killed.
_ABORT_S = 3.0
# Where a session is before it has said so itself (runners/worker.py says the same).
_BUILDING = (-1, "build")
_STARTING = (0, "input")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """An open session. facts: what it has said about itself, which holds for all of its runs."""

    setup: Setup
    channel: socket.socket
    pid: int
    facts: dict[str, str] = field(default_factory=dict)


class Pool:
    """Runs cases on one target, in processes that may die. Close it, or use it in a with statement.

    timeout_s: silence after which a run has hung; each at() of the session starts it anew. start_s: the same for
    imports and building, which compile things while caches are cold. fresh: a new session process for every case;
    otherwise a session is kept for as long as the setup stays the same and its runs end DONE. log: what the worker
    prints is appended there (OSError if it cannot be opened). session: the module to take open_session from,
    instead of the engine's. device: the GPU for a worker of the cuda engine. variables: more for its environment.
    """

    def __init__(
        self,
        target: Target,
        *,
        timeout_s: float = 120.0,
        fresh: bool = False,
        log: Path | None = None,
        start_s: float = 300.0,
        session: str = "",
        device: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.target = target
        self._device, self._variables = device, dict(variables or {})
        self._timeout_s, self._start_s, self._fresh, self._session_module = timeout_s, start_s, fresh, session
        self._log = Log(log)
        self._worker: Worker | None = None
        self._session: _Session | None = None
        self._failed_starts = 0
        self._trouble = ""

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker and everything it started."""
        self._drop_worker()
        self._log.close()

    @property
    def session_pid(self) -> int | None:
        """The process in which the kept session lives, if there is one."""
        return self._session.pid if self._session else None

    def run_fresh(self, case: Case) -> Trace:
        """As run, in a session process of its own, whatever the pool does otherwise."""
        self._close_session()
        trace = self.run(case)
        self._close_session()
        return trace

    def run(self, case: Case) -> Trace:
        """What happened when this case was run."""
        self._log.mark()
        intake = Intake(facts={}, step=_BUILDING[0], path=_BUILDING[1])
        try:
            ended = self._ended(case, intake)
            if self._fresh or ended.how is not How.DONE:
                self._close_session()
        except WorkerTrouble as trouble:
            ended = intake.end(How.UNFIT, str(trouble), self._log.since_mark())
            self._drop_worker()
        except BaseException:
            # Ctrl-C in the middle of a run: the session is in an unknown state, and so is what it still says.
            self._drop_worker()
            raise
        return intake.trace(ended)

    # The conversation ---------------------------------------------------------------------------------------------

    def _ended(self, case: Case, intake: Intake) -> Ended:
        """Run the case in the kept session if that has its setup, else in a new one."""
        if self._session and self._session.setup != case.setup:
            self._close_session()
        worker = self._worker_or_start()
        if self._session is None:
            channel, pid = worker.open()
            self._session = _Session(setup=case.setup, channel=channel, pid=pid)
        else:
            intake.step, intake.path = _STARTING
        intake.facts = self._session.facts
        return self._converse(worker, self._session.channel.fileno(), case, intake)

    def _converse(self, worker: Worker, channel: int, case: Case, intake: Intake) -> Ended:
        """Send the case and take in what comes back until it has ended."""
        request = pack(Frame(head={"case": case_to_json(case)}))
        deadline = self._deadline(intake)
        try:
            write_all(channel, request, deadline)
            while intake.ended is None:
                frame = receive(partial(read_exactly, channel, deadline=deadline))
                if frame is None:
                    return self._died(worker, intake)
                if intake.take(frame):
                    deadline = self._deadline(intake)
        except Silence:
            return self._hung(worker, intake)
        except (CutShort, BrokenPipeError, ConnectionResetError):
            return self._died(worker, intake)
        except BadFrame as error:
            raise WorkerTrouble(f"the worker sent garbage: {error}") from error
        return intake.ended

    def _deadline(self, intake: Intake) -> float:
        building = (intake.step, intake.path) == _BUILDING
        return time.monotonic() + (max(self._start_s, self._timeout_s) if building else self._timeout_s)

    def _died(self, worker: Worker, intake: Intake) -> Ended:
        """The session closed its channel without saying how the run ended."""
        self._forget_session()
        status = _end_session(worker, 0, PROMPT_S)
        return self._unsaid(How.CRASHED, exit_name(status), f"the session ended with {exit_name(status)}", intake)

    def _hung(self, worker: Worker, intake: Intake) -> Ended:
        """Nothing came for too long."""
        try:
            _end_session(worker, signal.SIGABRT, _ABORT_S)
            self._forget_session()
        except WorkerTrouble:
            self._drop_worker()  # it hung, whatever became of the worker
        return self._unsaid(How.HUNG, "no answer", "nothing was heard of the session for too long", intake)

    def _unsaid(self, how: How, what: str, detail: str, intake: Intake) -> Ended:
        """An end that the session could not tell: named by a CUDA error where the log speaks of one."""
        printed = self._log.since_mark()
        if (intake.step, intake.path) == _BUILDING:
            # As with an exception there: what fails before sglang captures is our trouble (no memory, a kernel that
            # does not compile), not a finding.
            return intake.end(How.UNFIT, f"{what} while building", f"{detail}\n{printed}")
        if how is How.CRASHED:
            what = cuda_error(printed) or what
        return intake.end(how, what, f"{detail}\n{printed}")

    # Worker and session -------------------------------------------------------------------------------------------

    def _worker_or_start(self) -> Worker:
        if self._worker:
            return self._worker
        if self._failed_starts >= STARTS_MAX:
            raise WorkerTrouble(self._trouble)
        self._failed_starts += 1
        try:
            environment = worker_environment(self.target, device=self._device) | self._variables
            # -P: what lies in the current directory is not importable by being there.
            command = [str(interpreter(self.target)), "-P", "-m", "runners.worker", "--target", str(self.target)]
            command += ["--session", self._session_module] if self._session_module else []
            self._worker = Worker(command, environment, self._log.fileno())
            self._worker.wait_ready(self._start_s)
        except (NotUsable, WorkerTrouble) as error:
            self._trouble = str(error)
            raise WorkerTrouble(self._trouble) from error
        self._failed_starts = 0
        return self._worker

    def _close_session(self) -> None:
        """End the kept session, if there is one."""
        if self._session is None or self._worker is None:
            return
        self._forget_session()
        try:
            _end_session(self._worker, 0, PROMPT_S)
        except WorkerTrouble:
            self._drop_worker()  # what the run gave is whole all the same

    def _forget_session(self) -> None:
        """Close our end: a session that waits for its next case ends by that."""
        if self._session:
            self._session.channel.close()
            self._session = None

    def _drop_worker(self) -> None:
        self._forget_session()
        if self._worker:
            worker, self._worker = self._worker, None
            worker.end()


def _end_session(worker: Worker, number: int, within_s: float) -> int:
    """Give the session this signal (0: none) and time to end by, then kill it. Its wait status."""
    status = worker.end_session(number, within_s)
    if status is None:
        status = worker.end_session(signal.SIGKILL, PROMPT_S)
    if status is None:
        raise WorkerTrouble("the session cannot be killed")
    return status
