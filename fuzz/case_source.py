"""The source of a campaign's cases: an object that is asked for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Protocol

from repro.cases.case import Case


class NoCase(Enum):
    """Why there is no next case. NOT_YET: it depends on whether the case in flight can be run."""

    NOT_YET = "not yet"
    DONE = "done"


class CaseSource(Protocol):
    def next_case(self, ran: int, in_flight: int = 0) -> Case | NoCase:
        """The next case, which is then the caller's. ran: cases that the campaign has run and counted. in_flight:
        cases that are being run, and will be counted only if they can be."""

    def coming(self) -> Sequence[Sequence[Case]]:
        """The first cases of each of the next rounds, as far as they are known, for sessions that open ahead."""

    def leave(self) -> None:
        """Draw no more cases of the round that the last one was of."""


class CaseStream:
    """Cases whose order depends on nothing that is run."""

    def __init__(
        self,
        cases: Iterator[Case],
        coming: Callable[[], Sequence[Sequence[Case]]] = tuple,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self._cases, self._coming, self._leave = cases, coming, leave

    def next_case(self, ran: int, in_flight: int = 0) -> Case | NoCase:
        return next(self._cases, NoCase.DONE)

    def coming(self) -> Sequence[Sequence[Case]]:
        return self._coming()

    def leave(self) -> None:
        self._leave()
