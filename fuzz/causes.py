"""Failures of a campaign by their cause: what was wrong first, and what followed from it, in one case or in another."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from repro.traces.device_errors import device_fault
from repro.traces.finding import ENDED, Verdict, first_first


def by_cause(failures: Sequence[Verdict]) -> list[tuple[Verdict, ...]]:
    """The failures of a case, those of one cause together, the first that was wrong in front. What was wrong before any
    step (as an attribute that nothing makes) stands alone: no step follows from it for sure. So does a kernel that has
    failed: its case and its line are looked for, whatever else was wrong."""
    ordered = first_first(failures)
    alone = [v for v in ordered if (v.cell and v.cell.step < 0) or (v.oracle == ENDED and device_fault(v.where))]
    of_steps = tuple(verdict for verdict in ordered if verdict not in alone)
    return [*((verdict,) for verdict in alone), *filter(None, [of_steps])]


@dataclass(slots=True)
class Causes:
    """Mutable: it remembers what followed from what."""

    _causes: dict[str, Verdict] = field(default_factory=dict)  # by the fingerprint of a consequence

    def put(self, cause: Verdict, consequences: Sequence[Verdict]) -> None:
        for verdict in consequences:
            self._causes.setdefault(verdict.fingerprint, cause)

    def of(self, first: Verdict, passed: Collection[str]) -> str:
        """The fingerprint of the finding that this failure, the first of its case, belongs to: its own, or that of a
        cause that it followed from before. passed: oracles that passed; a cause whose oracle did is none here."""
        cause = self._causes.get(first.fingerprint)
        return cause.fingerprint if cause and cause.oracle not in passed else first.fingerprint
