"""Sessions that are opened before they are needed, each in a process of its own, in the background.

A standby has just been captured, like any fresh session. It has run nothing, or the first of the cases that it will be
asked for. What it said meanwhile waits (runners/processes/inbox.py), so that the runner of a case hears exactly
what an ordinary session would have said.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from repro.cases.case import Case, Setup
from repro.traces.run_with_past import RunWithPast
from repro.traces.trace import End, Trace
from runners.processes.inbox import Inbox
from runners.processes.log import Log
from runners.processes.unsaid import CLOSING
from runners.targets.devices import memory, visible

# Cores that a machine must have for each standby of a worker, besides those of other workers. Opening one is one
# thread's work: one core for it, one for the session under way.
CORES_EACH = {"emulated": 2, "cuda": 2}
# They bridge what a setup with long cases takes.
STANDBYS_MAX = 8
# GiB of a GPU that a session holds with the models that are run here: a CUDA context, its graphs, workspaces.
_SESSION_GIB = 1.7
# Processes that may wait for a setup of their kind, besides those that sessions opened ahead leave.
IDLE_MAX = 2
# How many sessions of a setup may run its cases side by side: what judges them keeps up with three.
_ABREAST_MAX = 3
# How many of a session's latest cases are remembered: more than fit into one.
_RAN_MAX = 64
# What a session says once it has opened ahead and waits for a case (runners/processes/session_process.py).
_OPENED = b'["at",-1,"opened"]'


def room_for(engine: str, workers: int = 1, cores: int = 0, gibibytes: float = 0.0, devices: int = 0) -> int:
    """The number of standbys that each of so many workers may have on this machine. cores: 0 for those that we may use.
    gibibytes: of GPU memory for all of them, 0 for that of so many devices; devices: 0 for the GPUs that we may use.

    None on the toy, whose sessions open at once.
    """
    if engine not in CORES_EACH:
        return 0
    cores = cores or len(os.sched_getaffinity(0))
    room = min(STANDBYS_MAX, cores // workers // CORES_EACH[engine])
    if engine == "cuda" and (gibibytes := gibibytes or _on_gpus(devices)):
        # Each standby may leave a process that waits, beside those that do anyway and the one at work.
        processes = gibibytes / workers / _SESSION_GIB
        room = min(room, max(0, int(processes - 1 - IDLE_MAX) // 2))
    return room


def _on_gpus(devices: int) -> float:
    each = memory()
    return min(each, default=0.0) * (devices or len(visible(len(each))))


def abreast(standbys: int) -> int:
    """The number of sessions that may run cases of one setup side by side, where so many may be open ahead."""
    return max(1, min(_ABREAST_MAX, standbys))


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """A session that will be needed. cases: the first ones that it will be asked for, in order, as far as they are
    known: it runs them ahead."""

    setup: Setup
    cases: tuple[Case, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Open:
    """A session process and what it says. Mutable: what was sent to it and has not been collected.

    past: setups that its process has served before; before: as what it served the last of them. mark: how much it had
    printed when a run last ended. spent: whether it is to
    serve no further one. facts: about the session, true for all of its runs. opening: whether it was asked to open.
    sent: cases whose traces have not been collected yet, in order. used: whether a case of it was asked for. ran: the
    latest cases that were run in it, in order. seconds: for which all but the first of its cases were waited for.
    """

    setup: Setup
    inbox: Inbox
    pid: int
    log: Log
    past: tuple[Setup, ...] = ()
    before: Open | None = None
    mark: int = 0
    spent: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    opening: bool = False
    sent: list[Case] = field(default_factory=list)
    used: bool = False
    ran: list[Case] = field(default_factory=list)
    seconds: float = 0.0

    def has_run(self, case: Case, seconds: float) -> None:
        """This case has ended in it, after it was waited for so long."""
        self.seconds += seconds if self.ran else 0.0  # the first one opens it
        self.ran = [*self.ran, case][-_RAN_MAX:]

    def failed_late(self, ended: End) -> RunWithPast | None:
        """The process has ended so before it began a case: the failure of the one that it ran last, if there is one."""
        of = self.before if ended.path == CLOSING[1] else self
        if of is None or not of.ran:
            return None
        *history, case = of.ran
        trace = Trace(ended=replace(ended, step=len(case.steps) - 1), facts=dict(of.facts))
        return RunWithPast(case=case, trace=trace, past=of.past, history=tuple(history))

    @property
    def is_idle(self) -> bool:
        """True if it was opened ahead, has opened, and was asked for nothing."""
        return not self.sent and self.inbox.holds(_OPENED)

    def begins_with(self, coming: Coming) -> bool:
        """True if it was opened for this: what it was sent is what will be asked for first."""
        known = tuple(self.sent[: len(coming.cases)])
        as_known = coming.cases[: len(known)] == known if coming.cases else not self.sent
        return self.setup == coming.setup and as_known


class WarmSessions:
    """Up to `room` sessions that wait. Mutable.

    begin: start to open a session. close: end one, without waiting for it. paused: open none until this is taken back:
    where nothing was compiled yet, several at once would compile the same, or wait for who does.
    """

    def __init__(
        self, room: int, begin: Callable[[Coming], Open], close: Callable[[Open], None], *, paused: bool = False
    ) -> None:
        self.room, self.paused = room, paused
        self._begin, self._close = begin, close
        self._open: list[Open] = []
        self._expected: list[Coming] = []

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Open]:
        return iter(self._open)

    def expect(self, coming: Sequence[Coming]) -> None:
        """Take note of what will be needed next, the most urgent first; a setup as often as it will be needed."""
        self._expected = list(coming)

    def take(self, case: Case, *, fresh: bool = False) -> Open | None:
        """The standby for this case: one that has been sent it, else the one of its setup that was opened first. It is
        the caller's from now on, and what was expected has come about. fresh: not one whose process has a past, or has
        been sent anything."""
        awaited = next((coming for coming in self._expected if coming.setup == case.setup), None)
        if awaited:
            self._expected.remove(awaited)
        fitting = [session for session in self._open if session.setup == case.setup]
        sent = (session for session in fitting if session.sent and session.sent[0] == case)
        idle = (session for session in fitting if not session.sent and not (fresh and session.past))
        taken = (None if fresh else next(sent, None)) or next(idle, None)
        if taken:
            self._open.remove(taken)
        return taken

    def opened(self, setup: Setup) -> Open | None:
        """A standby of this setup that has opened and has nothing to do; it is the caller's from now on."""
        taken = next((session for session in self._open if session.setup == setup and session.is_idle), None)
        if taken:
            self._open.remove(taken)
        return taken

    def fill(self, urgent: Sequence[Setup] = (), useful: Sequence[Setup] = ()) -> None:
        """Begin to open what is urgent or expected and not there, as far as there is room; others make room for it.
        useful: setups that have room of their own besides, if there is any."""
        if self.paused or not self.room:
            return
        spare, missing, more = list(self._open), [], [Coming(setup=setup) for setup in useful]
        comings = [*(Coming(setup=setup) for setup in urgent), *self._expected][: self.room] + more
        for coming in comings:
            session = next((open_session for open_session in spare if open_session.begins_with(coming)), None)
            if session:
                spare.remove(session)
            else:
                missing.append(coming)
        for coming in missing:
            if len(self._open) >= self.room + len(more):
                unneeded = spare.pop(0)
                self._open.remove(unneeded)
                self._close(unneeded)
            self._open.append(self._begin(coming))

    def pop(self) -> Open | None:
        """One of them, which is the caller's from now on; None if there is no session left."""
        return self._open.pop() if self._open else None
