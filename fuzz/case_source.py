"""The source of a campaign's cases: an object that is asked for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from repro.cases.case import Case


@dataclass(frozen=True, slots=True)
class CaseStream:
    """Cases whose order depends on nothing that is run."""

    cases: Iterator[Case]
    # The first cases of each of the next rounds, as far as they are known, for sessions that open ahead.
    coming: Callable[[], Sequence[Sequence[Case]]] = tuple
    # Draw no more cases of the round that the last one was of.
    leave: Callable[[], None] = lambda: None

    def next_case(self) -> Case | None:
        """The next case, which is then the caller's; None at the end."""
        return next(self.cases, None)
