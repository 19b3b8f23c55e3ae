"""The parent's side of a worker: sends cases, collects what comes back; death or silence becomes a Trace.

Nothing that a worker does raises here. One worker process a pool; in it one session process that runs cases, and
perhaps some that were opened ahead (runners/processes/warm.py).
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType

from repro.cases.case import Case, Setup, Target
from repro.cases.codec import case_to_json
from repro.traces.trace import End, Termination, Trace
from runners.processes.causes import cuda_error, exit_name
from runners.processes.compilers import patient
from runners.processes.fork_servers import started
from runners.processes.log import Log
from runners.processes.served import IDLE_MAX, Idle
from runners.processes.trace_reader import Intake
from runners.processes.unsaid import BUILDING, CLOSING, WAITING, NeverBegun, is_opening, lacked_room, unsaid
from runners.processes.warm import Open, WarmSessions
from runners.processes.wire import BadFrame, CutShort, Frame, Silence, pack, read_exactly, receive, write_all
from runners.processes.worker_handle import PROMPT_S, Worker, WorkerTrouble
from runners.targets.environments import NotUsable, has_kernels, waiting, worker_environment

# A worker that could not be started this often in a row is not tried again: a campaign would wait for it at each case.
STARTS_MAX = 2
# Silence while importing and building after which something is wrong: with cold caches much is compiled.
START_S = 300.0
# Time for a hanging session to write its stack into the log before it is killed.
_ABORT_S = 3.0
# A longer request is not sent before its turn: in the channel there is room for some of this length for certain.
_AHEAD_MAX = 32 << 10


class Pool:
    """Runs cases on one target, in processes that may die. Close it, or use it in a with statement.

    timeout_s: silence after which a run has hung; each at() of the session starts it anew. start_s: the same for
    imports and building, which compile things while caches are cold. fresh: a new session process for every case;
    otherwise a session is kept for as long as the setup stays the same and its runs end DONE. log: what the worker
    prints is appended there (OSError if it cannot be opened). session: the module to take open_session from,
    instead of the engine's. device: the GPU for a worker of the cuda engine. variables: more for its environment.
    standbys: how many sessions may be open ahead of their use (runners/processes/warm.py says how many are worth it).
    setups_per_session: how many setups a session process may serve, one after the other; 1: a fork for each.
    wrapper: words to put in front of the worker's command line.
    """

    def __init__(
        self,
        target: Target,
        *,
        timeout_s: float = 120.0,
        fresh: bool = False,
        log: Path | None = None,
        start_s: float = START_S,
        session: str = "",
        device: str = "",
        variables: Mapping[str, str] | None = None,
        standbys: int = 0,
        setups_per_session: int = 1,
        wrapper: Sequence[str] = (),
    ) -> None:
        self.target = target
        self._like = partial(
            Pool, target, timeout_s=timeout_s, log=log, start_s=start_s, session=session, device=device
        )
        self._device, self._variables, self._wrapper = device, dict(variables or {}), tuple(wrapper)
        self._timeout_s, self._start_s, self._fresh, self._session_module = timeout_s, start_s, fresh, session
        self._log = Log(log)
        self._worker: Worker | None = None
        self._session: Open | None = None
        cold = target.engine == "cuda" and not has_kernels()
        self._standbys = WarmSessions(standbys, self._open_ahead, self._dismiss, held=cold)
        self._idle = Idle(setups_per_session, IDLE_MAX + standbys)
        self.past: tuple[Setup, ...] = ()  # what the process of the last run had served before
        self._pastless = False  # whether the run under way must be the first of its process
        self._crashed: set[Setup] = set()  # setups on which a run has ended badly
        self._next: Case | None = None
        self._change: Mapping[str, object] = {}
        self._alone = False
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

    def waiting(self) -> Pool:
        """Another pool like this one, in whose worker every launch is waited for."""
        return self._like(variables=self._variables | waiting(self.target))

    @property
    def session_pid(self) -> int | None:
        """The process in which the kept session lives, if there is one."""
        return self._session.pid if self._session else None

    def renew(self) -> None:
        """Have the process of the kept session serve no further setup: what failed in it may have left its mark."""
        if self._session:
            self._session.spent = True

    def expect(self, setups: Sequence[Setup]) -> None:
        """Say what sessions will be needed next, the most urgent first; a setup as often as it will need a new one.
        Some of them are opened from the next run on, in the background. Instead of what was said before."""
        self._standbys.expect(setups)

    def send(self, case: Case) -> None:
        """Say which case will be run after the next one. A session that both can use goes on with it at once, while
        the caller is at work on the trace of the first. One that it never began is sent again when it is run."""
        self._next = case

    def change(self, change: Mapping[str, object]) -> None:
        """From now on open sessions in which sglang is changed as runners/sessions/mutation.py says; empty: as it is.
        What was open before is not used again."""
        self._close_session()
        self._end_standbys()
        self._change = change

    def run_fresh(self, case: Case) -> Trace:
        """As run, in a session process of its own, whatever the pool does otherwise."""
        self._close_session()
        self._pastless = True
        try:
            trace = self.run(case)
        finally:
            self._pastless = False
        self._close_session()
        return trace

    def run(self, case: Case) -> Trace:
        """What happened when this case was run."""
        upcoming, self._next = self._next, None
        trace = self._attempt(case, upcoming)
        if self._standbys.room and lacked_room(trace.ended):
            # Others took memory, perhaps, that this one lacked: what is said of a case must not depend on them.
            self._end_standbys()
            trace = self._attempt(case, None, alone=True)
        return trace

    def _attempt(self, case: Case, upcoming: Case | None, *, alone: bool = False) -> Trace:
        """Run the case. alone: without opening other sessions meanwhile."""
        mark, self._alone = self._log.mark(), alone
        intake = Intake(facts={}, step=BUILDING[0], path=BUILDING[1])
        try:
            ended = self._ended(case, upcoming, intake)
            self._standbys.held = False
            if ended.how is not Termination.DONE:
                self._crashed.add(case.setup)
            if self._fresh or ended.how is not Termination.DONE:
                self._close_session()
        except WorkerTrouble as trouble:
            ended = intake.end(Termination.ERROR, str(trouble), self._log.since(mark))
            self._drop_worker()
        except BaseException:
            # Ctrl-C in the middle of a run: the session is in an unknown state, and so is what it still says.
            self._drop_worker()
            raise
        return intake.trace(ended)

    def _ended(self, case: Case, upcoming: Case | None, intake: Intake) -> End:
        """Run the case in the kept session if that has its setup, else in a new one."""
        try:
            return self._converse(self._session_for(case, intake), case, upcoming, intake)
        except NeverBegun as gone:
            # Nobody knows of what it died, and it is said so, but this case is not it.
            intake.begin_again(*BUILDING)
            self._end_standbys()
            ended = self._converse(self._session_for(case, intake), case, None, intake)
            intake.facts["sessions lost"] = str(gone)
            return ended

    def _session_for(self, case: Case, intake: Intake) -> Open:
        """The session that this case is run in: it has been sent there already, or it is the kept one, one that was
        opened ahead, or a new one."""
        current = self._session
        if current and (current.setup != case.setup or (current.sent and current.sent[0] != case)):
            self._leave_session()
        worker = self._worker_or_start()
        if self._session is None:
            ready = self._standbys.take(case.setup, fresh=self._pastless)
            self._session = ready or self._reopened(case.setup) or self._open(worker, case.setup)
        if self._session.used:
            intake.step, intake.path = WAITING
            intake.mark = self._session.log.mark()
        elif self._session.past:
            intake.step, intake.path = CLOSING
            intake.mark = self._session.mark
        self._session.used = True
        self.past = self._session.past
        intake.facts = self._session.facts
        return self._session

    def _converse(self, session: Open, case: Case, upcoming: Case | None, intake: Intake) -> End:
        """Send the case, and perhaps the next one, and take in what comes back until it has ended."""
        channel = session.channel.fileno()
        try:
            if not session.sent:
                self._send(session, case, intake)
            if upcoming and upcoming.setup == case.setup and not self._fresh and len(session.sent) == 1:
                self._send(session, upcoming, intake, room=_AHEAD_MAX)
            self._fill(case.setup)
            deadline = self._deadline(intake)
            while intake.ended is None:
                deadline = patient(channel, session.pid, deadline)
                frame = receive(partial(read_exactly, channel, deadline=deadline))
                if frame is None:
                    return self._died(session, intake)
                if intake.take(frame):
                    deadline = self._deadline(intake)
        except Silence:
            return self._hung(session, intake)
        except (CutShort, ConnectionResetError):
            return self._died(session, intake)
        except BadFrame as error:
            raise WorkerTrouble(f"the worker sent garbage: {error}") from error
        session.sent.pop(0)
        if intake.ended.how is Termination.RAISED and cuda_error(intake.ended.what):
            # What a device assertion says is printed, and no part of the exception.
            intake.ended = replace(intake.ended, detail=f"{session.log.since(intake.mark)}\n{intake.ended.detail}")
        self._log.take_over(session.log)
        return intake.ended

    def _send(self, session: Open, case: Case, intake: Intake, room: int = 1 << 62) -> None:
        request = pack(Frame(head={"case": case_to_json(case), "change": dict(self._change)}))
        if len(request) > room:
            return
        session.sent.append(case)
        # If it has died, what it said before that is still to be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            write_all(session.channel.fileno(), request, self._deadline(intake))

    def _fill(self, setup: Setup) -> None:
        """While the session is at work: open what will be needed next."""
        room = self._standbys.room
        if room and not self._alone:
            # The case after a crash should not have to wait, and where one has crashed, the next may at once. What is
            # expected keeps a place, but where there is one place only, it goes first until a run has ended badly.
            # Where processes serve many setups, a twin that was not needed would cost one its place.
            crashed = setup in self._crashed
            twins = max(crashed, min(1 + crashed, room - 1)) if not self._idle.wanted else int(crashed)
            self._standbys.fill((setup,) * twins if not self._fresh else ())

    def _deadline(self, intake: Intake) -> float:
        patience = max(self._start_s, self._timeout_s) if is_opening(intake) else self._timeout_s
        return time.monotonic() + patience

    def _died(self, session: Open, intake: Intake) -> End:
        """The session closed its channel without saying how the run ended."""
        self._forget_session()
        status = self._end(session, 0, PROMPT_S)
        return self._unsaid(
            Termination.CRASHED, exit_name(status), f"the session ended with {exit_name(status)}", session, intake
        )

    def _hung(self, session: Open, intake: Intake) -> End:
        """Nothing came for too long."""
        try:
            self._end(session, signal.SIGABRT, _ABORT_S)
            self._forget_session()
        except WorkerTrouble:
            self._drop_worker()  # it hung, whatever became of the worker
        return self._unsaid(
            Termination.HUNG, "no answer", "nothing was heard of the session for too long", session, intake
        )

    def _unsaid(self, how: Termination, what: str, detail: str, session: Open, intake: Intake) -> End:
        printed = session.log.since(intake.mark)
        self._log.take_over(session.log)
        return unsaid(how, what, detail, printed, intake)

    def _worker_or_start(self) -> Worker:
        if self._worker:
            return self._worker
        if self._failed_starts >= STARTS_MAX:
            raise WorkerTrouble(self._trouble)
        self._failed_starts += 1
        try:
            environment = worker_environment(self.target, device=self._device) | self._variables
            arguments = ["--target", str(self.target)]
            arguments += ["--session", self._session_module] if self._session_module else []
            log = self._log.fileno()
            self._worker = started(self.target, arguments, environment, log, self._start_s, self._wrapper)
            self._worker.wait_ready(self._start_s)
        except (NotUsable, WorkerTrouble) as error:
            self._trouble = str(error)
            raise WorkerTrouble(self._trouble) from error
        self._failed_starts = 0
        return self._worker

    def _open(self, worker: Worker, setup: Setup) -> Open:
        log = Log()
        try:
            channel, pid = worker.open(log.fileno())
        except BaseException:
            log.close()
            raise
        return Open(setup=setup, channel=channel, pid=pid, log=log)

    def _reopened(self, setup: Setup) -> Open | None:
        """A session of this setup in a process that has served others; None if there is none, or none is wanted."""
        return None if self._pastless or self._change else self._idle.reopened(setup)

    def _open_ahead(self, setup: Setup) -> Open:
        session = self._reopened(setup) or self._open(self._worker_or_start(), setup)
        nothing = case_to_json(Case(setup=setup, steps=()))
        request = pack(Frame(head={"case": nothing, "change": dict(self._change), "ahead": True}))
        # If it has died, whoever takes it will see.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, Silence):
            write_all(session.channel.fileno(), request, time.monotonic() + PROMPT_S)
        return session

    def _leave_session(self) -> None:
        """End the kept session, or keep its process for another setup."""
        session = self._session
        if session is None or session.sent or self._fresh or self._change or not self._idle.wanted:
            self._close_session()
            return
        self._session = None
        if left := self._idle.put(session):
            self._dismiss(left)

    def _close_session(self) -> None:
        """End the kept session, if there is one."""
        session = self._session
        if session:
            self._session = None
            self._dismiss(session)

    def _dismiss(self, session: Open) -> None:
        """End a session without waiting for that: at once if it is at work, else by closing our end."""
        self._shut(session)
        if self._worker:
            try:
                self._worker.dismiss(session.pid, signal.SIGKILL if session.sent or not session.used else 0, PROMPT_S)
            except WorkerTrouble:
                self._drop_worker()  # what the run gave is whole all the same

    def _end_standbys(self) -> None:
        """End the standbys and what is idle, and have their memory back."""
        while session := self._standbys.pop() or self._idle.pop():
            try:
                self._end(session, signal.SIGKILL, PROMPT_S)
            except WorkerTrouble:
                self._drop_worker()
            self._shut(session)

    def _end(self, session: Open, number: int, within_s: float) -> int:
        """Give the session this signal (0: none) and time to end by, then kill it. Its wait status."""
        if not self._worker:
            raise WorkerTrouble("the worker is gone")
        status = self._worker.end_session(session.pid, number, within_s)
        if status is None:
            status = self._worker.end_session(session.pid, signal.SIGKILL, PROMPT_S)
        if status is None:
            raise WorkerTrouble("the session cannot be killed")
        return status

    def _forget_session(self) -> None:
        """Close our end of a session that has ended."""
        if self._session:
            self._session.channel.close()
            self._session = None

    def _shut(self, session: Open) -> None:
        """Close our end: a session that waits for its next case ends by that. Its log is closed, too."""
        session.channel.close()
        self._log.take_over(session.log)
        session.log.close()

    def _drop_worker(self) -> None:
        open_sessions = [self._session] if self._session else []
        self._session = None
        while session := self._standbys.pop() or self._idle.pop():
            open_sessions.append(session)
        for session in open_sessions:
            self._shut(session)
        if self._worker:
            worker, self._worker = self._worker, None
            worker.end()
