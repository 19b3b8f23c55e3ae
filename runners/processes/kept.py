"""The sessions of the setup that is in use: one, or several that run its cases side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from repro.cases.case import Case
from runners.processes.warm import Open


class Kept:
    """Mutable. The session of the last run stands first."""

    def __init__(self) -> None:
        self._sessions: list[Open] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Open]:
        return iter(self._sessions)

    @property
    def first(self) -> Open | None:
        return self._sessions[0] if self._sessions else None

    def put(self, session: Open, *, first: bool = True) -> None:
        self._sessions.insert(0 if first else len(self._sessions), session)

    def remove(self, session: Open) -> bool:
        """Have it no longer; whether it was there."""
        there = session in self._sessions
        if there:
            self._sessions.remove(session)
        return there

    def pop(self) -> Open | None:
        """One of them, which is the caller's from now on; None if there is no session left."""
        return self._sessions.pop() if self._sessions else None

    def useless(self, case: Case, upcoming: Sequence[Case]) -> list[Open]:
        """The sessions that can run neither this case nor what comes after it, as they have another setup, or were sent
        what is not asked for now. They are the caller's from now on."""

        def useful(session: Open) -> bool:
            sent = session.sent
            awaited = sent[:1] == [case] or all(other in upcoming for other in sent)
            return session.setup == case.setup and awaited

        left = [session for session in self._sessions if not useful(session)]
        self._sessions = [session for session in self._sessions if session not in left]
        return left

    def for_case(self, case: Case) -> Open | None:
        """The session that was sent this case, else one that has nothing to do. It stands first from now on."""
        sent = (session for session in self._sessions if session.sent[:1] == [case])
        free = (session for session in self._sessions if not session.sent)
        session = next(sent, None) or next(free, None)
        if session:
            self._sessions.remove(session)
            self._sessions.insert(0, session)
        return session

    def sent(self, case: Case) -> bool:
        """True if one of them has been sent this case, and it was not collected."""
        return any(case in session.sent for session in self._sessions)

    def least_busy(self) -> Open:
        return min(self._sessions, key=lambda session: len(session.sent))
