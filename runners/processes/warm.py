"""Sessions that are opened before they are needed, each in a process of its own, in the background.

A standby has just been captured, like any fresh session, and has run nothing. What it said while it was opened lies
unread in its channel, so that whoever runs a case in it hears exactly what an ordinary session would have said.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from repro.cases.case import Case, Setup
from runners.processes.log import Log

# Cores that a machine must have for each standby of a worker, besides those of other workers. Opening one is one
# thread's work: one core for it, one for the session under way.
CORES_EACH = {"emulated": 2, "cuda": 2}
# On a GPU each holds a CUDA context and its graphs, about 1 GB with the models that are run here.
STANDBYS_MAX = 4


def room_for(engine: str, workers: int = 1, cores: int = 0) -> int:
    """How many standbys each of so many workers may have on this machine; cores: 0 for those that we may use.

    None on the toy, whose sessions open at once.
    """
    if engine not in CORES_EACH:
        return 0
    cores = cores or len(os.sched_getaffinity(0))
    return min(STANDBYS_MAX, cores // workers // CORES_EACH[engine])


@dataclass(slots=True, kw_only=True)
class Open:
    """A session process and the channel to it. Mutable: what was sent to it and has not been collected.

    past: setups that its process has served before. mark: how much it had printed until then. spent: whether it is to
    serve no further one. facts: about the session, true for all of its runs. sent: cases whose traces have not been
    collected yet, in order. used: whether a case was sent to it.
    """

    setup: Setup
    channel: socket.socket
    pid: int
    log: Log
    past: tuple[Setup, ...] = ()
    mark: int = 0
    spent: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    sent: list[Case] = field(default_factory=list)
    used: bool = False


class WarmSessions:
    """Up to `room` sessions that wait. Mutable.

    begin: start to open a session for a setup. close: end one, without waiting for it. held: open none until this is
    taken back: where nothing was compiled yet, several at once would compile the same, or wait for who does.
    """

    def __init__(
        self, room: int, begin: Callable[[Setup], Open], close: Callable[[Open], None], *, held: bool = False
    ) -> None:
        self.room, self.held = room, held
        self._begin, self._close = begin, close
        self._open: list[Open] = []
        self._expected: list[Setup] = []

    def __len__(self) -> int:
        return len(self._open)

    def expect(self, setups: Sequence[Setup]) -> None:
        """What will be needed next, the most urgent first; a setup as often as it will be needed."""
        self._expected = list(setups)

    def take(self, setup: Setup, *, fresh: bool = False) -> Open | None:
        """The standby for this setup that was opened first, if there is one. It is the caller's from now on, and what
        was expected has come about. fresh: not one whose process has a past."""
        if setup in self._expected:
            self._expected.remove(setup)
        fitting = (session for session in self._open if session.setup == setup)
        taken = next((session for session in fitting if not (fresh and session.past)), None)
        if taken:
            self._open.remove(taken)
        return taken

    def fill(self, urgent: Sequence[Setup] = ()) -> None:
        """Begin to open what is urgent or expected and not there, as far as there is room; others make room for it."""
        if self.held:
            return
        spare, missing = list(self._open), []
        for setup in [*urgent, *self._expected][: self.room]:
            session = next((open_session for open_session in spare if open_session.setup == setup), None)
            if session:
                spare.remove(session)
            else:
                missing.append(setup)
        for setup in missing:
            if len(self._open) >= self.room:
                unneeded = spare.pop(0)
                self._open.remove(unneeded)
                self._close(unneeded)
            self._open.append(self._begin(setup))

    def pop(self) -> Open | None:
        """One of them, which is the caller's from now on; None if there is no session left."""
        return self._open.pop() if self._open else None
