"""The parent's side of a worker: sends cases, collects what comes back; death or silence becomes a Trace.

Nothing that a worker does raises here. One worker process a pool; in it the session processes of the setup that is in
use, perhaps some that were opened ahead (runners/processes/warm.py), and some that wait for a setup of their kind
(runners/processes/served.py).
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from repro.cases.case import Case, Setup, Target
from repro.cases.codec import case_to_json
from repro.traces.device_errors import cuda_error, device_fault
from repro.traces.run_with_past import RunWithPast
from repro.traces.trace import End, Termination, Trace
from runners.processes.causes import exit_name
from runners.processes.closing import ended_in_closing
from runners.processes.host import Host
from runners.processes.kept import Kept
from runners.processes.log import SEARCHED_MAX, Log
from runners.processes.patience import patient
from runners.processes.served import Idle
from runners.processes.trace_reader import Intake
from runners.processes.unsaid import BUILDING, CLOSING, WAITING, NeverBegun, goes_on, is_opening, lacked_room, unsaid
from runners.processes.warm import IDLE_MAX, Coming, Open, WarmSessions, abreast
from runners.processes.wire import BadFrame, CutShort, Frame, Silence, pack, receive, write_all
from runners.processes.worker_handle import PROMPT_S, WorkerTrouble
from runners.targets.compiled import cold
from runners.targets.environments import waiting, worker_environment

# Silence while importing and building after which something is wrong: with cold caches much is compiled.
START_S = 300.0
# Time for a hanging session to write its stack into the log before it is killed.
_ABORT_S = 3.0
# What is sent ahead of its turn is no longer than this: so much finds room in the channel for certain.
_AHEAD_MAX = 32 << 10
# A setup of which a session has run so many cases, or cases for so long, is worth further ones that run them beside it.
_MANY_CASES, _LONG_S = 32, 1.0


class Pool(contextlib.AbstractContextManager["Pool"]):
    """Runs cases on one target, in processes that may die. Close it, or use it in a with statement.

    timeout_s: silence after which a run has hung; each at() of the session starts it anew. start_s: the same for
    imports and building, which compile things while caches are cold. fresh: a new session process for every case;
    otherwise a session is kept for as long as the setup stays the same and its runs end DONE. log: what the worker
    prints is appended there (OSError if it cannot be opened). session: the module to take open_session from,
    instead of the engine's. device: the GPU for a worker of the cuda engine. variables: more for its environment.
    standbys: how many sessions may be open ahead of their use (runners/processes/warm.py says how many are worth it).
    setups_per_session: how many setups a session process may serve, one after the other; 1: a fork for each. wrapper:
    words before the worker's command line. asks: in which steps of a case the reference is asked; None: in all.
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
        asks: Callable[[Case], Sequence[int] | None] = lambda case: None,
    ) -> None:
        self.target = target
        self._like = partial(
            Pool, target, timeout_s=timeout_s, log=log, start_s=start_s, session=session, device=device
        )
        self._variables = dict(variables or {})
        self._timeout_s, self._start_s, self._fresh = timeout_s, start_s, fresh
        self._log = Log(log)
        self._host = Host(
            target, partial(self._environment, device), self._log, start_s=start_s, session=session, wrapper=wrapper
        )
        self._kept = Kept()
        self._last: Open | None = None  # the session of the last run
        self._standbys = WarmSessions(standbys, self._open_ahead, self._leave, paused=bool(cold(target)))
        self._idle = Idle(setups_per_session, IDLE_MAX + standbys)
        self.past: tuple[Setup, ...] = ()  # what the process of the last run had served before
        self.history: tuple[Case, ...] = ()  # the latest cases that its session had run before
        self.late: list[RunWithPast] = []  # of cases that had ended; the caller takes them out
        # True if the run under way must be the first of its process; true if fresh runs close their sessions.
        self._pastless, self._closes = False, False
        self._crashed: set[Setup] = set()  # setups on which a run has ended badly
        self._upcoming: tuple[Case, ...] = ()
        self._change: Mapping[str, object] = {}
        self._alone, self._backend, self._asks = False, "", asks

    def _environment(self, device: str) -> dict[str, str]:
        return worker_environment(self.target, device=device) | cold(self.target, self._backend) | self._variables

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker and everything it started."""
        self._drop_worker()
        self._log.close()

    def abort(self) -> None:
        """From another thread: have the run under way end at once, whatever it says then."""
        self._host.kill()

    def waiting(self) -> Pool:
        """Another pool like this one, in whose worker every launch is waited for."""
        return self._like(variables=self._variables | waiting(self.target))

    @property
    def session_pid(self) -> int | None:
        """The process in which the kept session lives, if there is one."""
        return self._kept.first.pid if self._kept.first else None

    def renew(self) -> None:
        """Have the process of the last run serve no further setup: what failed in it may have left its mark."""
        if self._last:
            self._last.spent = True

    def expect(self, setups: Sequence[Setup]) -> None:
        """Say what sessions will be needed next, the most urgent first; a setup as often as it will need a new one.
        Some of them are opened from the next run on, in the background. Instead of what was said before."""
        self._standbys.expect([Coming(setup=setup) for setup in setups])

    def foresee(self, rounds: Sequence[Sequence[Case]]) -> None:
        """The same where cases are known: of each session that will be needed, the first that it will be asked for, in
        order. Those that are opened ahead run them, too."""
        self._standbys.expect([Coming(setup=cases[0].setup, cases=tuple(cases)) for cases in rounds if cases])

    def send(self, upcoming: Sequence[Case]) -> None:
        """Say which cases will be run after the next one, in order. Sessions of its setup go on with them at once,
        while the caller is at work on the trace of the first. One that none has begun is sent again when it is run."""
        self._upcoming = tuple(upcoming)

    def change(self, change: Mapping[str, object]) -> None:
        """From now on open sessions in which sglang is changed as runners/sessions/mutation.py says; empty: as it is.
        What was open before is not used again."""
        self._close_sessions()
        self._end_standbys()
        self._change = change

    def run_fresh(self, case: Case) -> Trace:
        """The same as run, in a session process of its own; once a session has failed while it closed, this one closes,
        too."""
        self._close_sessions()
        self._pastless = True
        try:
            trace = self.run(case)
        finally:
            self._pastless = False
        if self._closes and self._last and trace.ended.how is Termination.DONE:
            ended = ended_in_closing(self._last, self._send, self._died, time.monotonic() + self._start_s)
            trace = replace(trace, ended=ended or trace.ended)
        self._close_sessions()
        return trace

    def run(self, case: Case) -> Trace:
        """Run this case and return its record."""
        upcoming, self._upcoming = self._upcoming, ()
        trace = self._attempt(case, upcoming)
        if lacked_room(trace.ended, others=self._standbys.room > 0):
            self._end_standbys()  # others took memory, perhaps, that this one lacked: no case is to depend on them
            trace = self._attempt(case, (), alone=True)
        return trace

    def _attempt(self, case: Case, upcoming: Sequence[Case], *, alone: bool = False) -> Trace:
        """Run the case. alone: without opening other sessions meanwhile."""
        mark, self._alone = self._log.mark(), alone
        intake = Intake(facts={}, step=BUILDING[0], path=BUILDING[1])
        try:
            ended = self._ended(case, upcoming, intake)
            self._standbys.paused = False
            if ended.how is not Termination.DONE:
                self._part_from(case, ended)
            elif self._fresh:
                self._close_sessions()
        except WorkerTrouble as trouble:
            ended = intake.end(Termination.ERROR, str(trouble), self._log.since(mark))
            self._drop_worker()
        except BaseException:
            self._drop_worker(at_once=True)  # Ctrl-C: the session is in an unknown state, and so is what it still says
            raise
        return intake.trace(ended)

    def _part_from(self, case: Case, ended: End) -> None:
        """A run has ended badly, and its session with it; others of the setup go on."""
        self._crashed.add(case.setup)
        if self._last is None or not self._kept.remove(self._last):
            return  # it has ended already
        if goes_on(ended):
            self._last.sent.clear()  # it lets these go, and can be asked to open anew
            self._leave(self._last)
        else:
            self._dismiss(self._last)

    def _ended(self, case: Case, upcoming: Sequence[Case], intake: Intake) -> End:
        """Run the case in a kept session if there is one of its setup, else in a new one."""
        try:
            return self._converse(self._session_for(case, upcoming, intake), case, upcoming, intake)
        except NeverBegun as gone:
            # The process died of an earlier case, which `late` says.
            late = self._last.failed_late(gone.late) if self._last and gone.late else None
            self.late += [late] if late else []
            self._closes |= bool(late and late.trace.ended.path == CLOSING[1])
            if gone.late and not late and gone.late.path != CLOSING[1] and device_fault(gone.late.what):
                return gone.late  # it had run none, and a kernel of its opening failed
            intake.begin_again(*BUILDING)
            self._end_standbys()
            ended = self._converse(self._session_for(case, (), intake), case, (), intake)
            intake.facts["sessions lost"] = str(gone)
            return ended

    def _session_for(self, case: Case, upcoming: Sequence[Case], intake: Intake) -> Open:
        """The session that this case is run in, which is kept from now on: it has been sent there already, or it is a
        kept one that has nothing else to do, one that was opened ahead, or a new one."""
        for session in self._kept.useless(case, upcoming):
            self._leave(session)
        self._backend = case.setup.backend
        self._host.start()
        mine = self._kept.for_case(case)
        if mine is None:
            ready = self._standbys.take(case, fresh=self._pastless)
            mine = ready or self._reopened(case.setup) or self._host.open(case.setup)
            self._kept.put(mine)
        self._last = mine
        if mine.used:
            intake.step, intake.path = WAITING
        elif mine.past:
            intake.step, intake.path = CLOSING
        intake.mark = mine.mark
        mine.used = True
        self.past, self.history = mine.past, tuple(mine.ran)
        intake.facts = mine.facts
        return mine

    def _converse(self, session: Open, case: Case, upcoming: Sequence[Case], intake: Intake) -> End:
        """Send the case, and perhaps the next ones, and take in what comes back until it has ended."""
        inbox, start = session.inbox, time.monotonic()
        try:
            if not session.sent:
                self._send(session, case, self._deadline(intake))
            self._send_ahead(case.setup, upcoming)
            self._fill(case.setup)
            others = [other.inbox for other in (*self._kept, *self._standbys) if other is not session]
            deadline = self._deadline(intake)
            while intake.ended is None:
                deadline = patient(partial(inbox.wait, others=others), session.pid, deadline)
                frame = receive(partial(inbox.read, deadline=deadline))
                if frame is None:
                    return self._died(session, intake)
                if intake.take(frame):
                    deadline = self._deadline(intake)
        except Silence:
            return self._hung(session, intake)
        except CutShort:
            return self._died(session, intake)
        except BadFrame as error:
            raise WorkerTrouble(f"the worker sent garbage: {error}") from error
        session.has_run(session.sent.pop(0), time.monotonic() - start)
        if intake.ended.how is Termination.RAISED and cuda_error(intake.ended.what):
            # What a device assertion says is printed, and no part of the exception.
            intake.ended = replace(intake.ended, detail=f"{session.log.since(intake.mark)}\n{intake.ended.detail}")
        self._log.take_over(session.log)
        session.mark = session.log.mark()
        return intake.ended

    def _send(self, session: Open, case: Case, deadline: float, room: int = 1 << 62) -> int:
        """Ask the session for this case, and to open where it has not been asked to. How long the request was; 0 where
        it is longer than there is room, and was not made."""
        head = {"case": case_to_json(case), "change": dict(self._change), "open": not session.opening}
        request = pack(Frame(head=head | {"cold": self._standbys.paused, "asked": self._asks(case)}))
        if len(request) > room:
            return 0
        session.opening = True
        session.sent.append(case)
        # If it has died, what it said before that is still to be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            write_all(session.inbox.channel.fileno(), request, deadline)
        return len(request)

    def _send_ahead(self, setup: Setup, upcoming: Sequence[Case]) -> None:
        """Deal the next cases out to the sessions of this setup, as long as one of them has only one to run."""
        if self._fresh or self._alone:
            return
        if self._wanted() and (ready := self._standbys.opened(setup)):
            self._kept.put(ready, first=False)
        for case in upcoming:
            if case.setup != setup:
                return
            if self._kept.sent(case):
                continue
            session = self._kept.least_busy()
            if len(session.sent) > 1 or not self._send(session, case, time.monotonic() + PROMPT_S, _AHEAD_MAX):
                return

    def _wanted(self) -> int:
        """The number of further sessions that are to run cases of the setup in use."""
        worth = self._last and (len(self._last.ran) >= _MANY_CASES or self._last.seconds >= _LONG_S)
        return abreast(self._standbys.room) - len(self._kept) if worth else 0

    def _fill(self, setup: Setup) -> None:
        """While the session is at work: open what will be needed next."""
        room = self._standbys.room
        if room and not self._alone:
            # The case after a crash should not have to wait, and the next may crash at once. But what is expected has
            # the only place until then, and any where another process opens this setup anew soon enough.
            crashed = setup in self._crashed
            single = not (self._fresh or self._idle.wanted)
            twins = max(crashed, min(1 + crashed, room - 1)) if single else 0
            self._standbys.fill((setup,) * twins, (setup,) * self._wanted())

    def _deadline(self, intake: Intake) -> float:
        patience = max(self._start_s, self._timeout_s) if is_opening(intake) else self._timeout_s
        return time.monotonic() + patience

    def _died(self, session: Open, intake: Intake) -> End:
        """The session closed its channel without saying how the run ended."""
        session.inbox.close()
        self._kept.remove(session)
        return self._unsaid(Termination.CRASHED, exit_name(self._host.end(session, 0, PROMPT_S)), session, intake)

    def _hung(self, session: Open, intake: Intake) -> End:
        """Nothing came for too long."""
        try:
            self._host.end(session, signal.SIGABRT, _ABORT_S)
            session.inbox.close()
            self._kept.remove(session)
        except WorkerTrouble:
            self._drop_worker()  # it hung, whatever became of the worker
        return self._unsaid(Termination.HUNG, "no answer", session, intake)

    def _unsaid(self, how: Termination, what: str, session: Open, intake: Intake) -> End:
        printed = session.log.since(intake.mark, SEARCHED_MAX)
        self._log.take_over(session.log)
        return unsaid(how, what, printed, intake)

    def _reopened(self, setup: Setup) -> Open | None:
        """A session of this setup in a process that has served others; else None."""
        return None if self._pastless or self._change else self._idle.reopened(setup)

    def _open_ahead(self, coming: Coming) -> Open:
        session = self._reopened(coming.setup) or self._host.open(coming.setup)
        deadline, room = time.monotonic() + PROMPT_S, _AHEAD_MAX
        # If it has died, or never listens, its user will see.
        with contextlib.suppress(Silence):
            for case in coming.cases:
                if not (length := self._send(session, case, deadline, room)):
                    break
                room -= length
            if not session.sent:
                self._send(session, Case(setup=coming.setup, steps=()), deadline)
                session.sent.clear()
        return session

    def _leave(self, session: Open) -> None:
        """End a session that is not needed any more, or keep its process for another setup."""
        at_rest = session.is_idle or (session.used and not session.sent)
        if not at_rest or session.spent or self._fresh or self._change or not self._idle.wanted:
            self._dismiss(session)
            return
        session.inbox.clear()
        if left := self._idle.put(session):
            self._dismiss(left)

    def _close_sessions(self) -> None:
        """End the kept sessions."""
        while session := self._kept.pop():
            self._dismiss(session)

    def _dismiss(self, session: Open) -> None:
        """End a session without waiting for that: at once if it is at work, else by closing our end."""
        try:
            self._host.dismiss(session, signal.SIGKILL if session.sent or not session.used else 0)
        except WorkerTrouble:
            self._drop_worker()  # what the run gave is whole all the same

    def _end_standbys(self) -> None:
        """End the standbys and what is idle, and have their memory back, and that of all that were dismissed before."""
        try:
            while session := self._standbys.pop() or self._idle.pop():
                self._host.dismiss(session, signal.SIGKILL)
            self._host.settle()
        except WorkerTrouble:
            self._drop_worker()

    def _drop_worker(self, *, at_once: bool = False) -> None:
        pops = (self._kept.pop, self._standbys.pop, self._idle.pop)
        self._host.drop([session for pop in pops for session in iter(pop, None)], at_once=at_once)
