"""Cases of which a kernel fails, and where that comes out: what tests/builders/faulting_session.py breaks."""

from __future__ import annotations

from dataclasses import replace

from repro.cases.case import Case

PLACES = (
    "the next wait",
    "what is recorded",
    "the launch, as it is recorded",
    "a buffer that cannot be read",
    "what is put back",
    "another history",
    "the first launch",
    "closing",
)
_FIRST = 700
# A setup with so many request slots fails while it is captured.
SLOTS_OF_FAULTY = 11


def faulty(case: Case, place: str) -> Case:
    """The case, of which a kernel fails: the data of a request say where that comes out."""
    *earlier, last = case.steps
    first, *others = last.requests
    marked = replace(first, data=_FIRST + PLACES.index(place))
    return replace(case, steps=(*earlier, replace(last, requests=(marked, *others))))


def place_of(case: Case) -> str:
    """The place at which the fault comes out; empty if no kernel fails."""
    number = case.steps[-1].requests[0].data - _FIRST
    return PLACES[number] if number >= 0 else ""
