"""Updates of weights while a server serves: setups that may have them, and the weights that requests come behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from repro.cases.families import family_facts
from repro.cases.option import Need, refusals
from repro.cases.rows.requests import OF_DRAFT
from repro.cases.setup import Setup
from repro.cases.sharing import ranks_of

UPDATE = "update"
# The weights that a scheduler starts with and those of its first update take turns.
VERSIONS = 2
_NEEDS = (
    Need(lambda s, r, b: family_facts(s).plain, "weights of {s.family} models are not updated"),
    Need(lambda s, r, b: ranks_of(s) == 1, "weights are not updated beside another rank"),
    Need(lambda s, r, b: not s.enable_lora, "weights are not updated with adapters"),
    Need(lambda s, r, b: s.nan_logits != OF_DRAFT, "weights are not updated where a draft has embeddings of its own"),
)


class _Happening(Protocol):
    @property
    def happens(self) -> str: ...


def update_problems(setup: Setup) -> Iterator[str]:
    """Why no step of a case of this setup may update weights."""
    return refusals(_NEEDS, setup)


def version_of(steps: Sequence[_Happening], number: int) -> int:
    """The weights that the requests of a step should be served with: 0 are those that a scheduler starts with."""
    return sum(step.happens == UPDATE for step in steps[: number + 1]) % VERSIONS


def updates(steps: Sequence[_Happening]) -> bool:
    """True if any of these steps updates weights."""
    return any(step.happens == UPDATE for step in steps)
