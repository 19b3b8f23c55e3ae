"""The parts of a row of OPTIONS (repro/cases/options.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from repro.cases.backend_facts import BACKEND_FACTS, BackendFacts
from repro.cases.families import family_facts
from repro.cases.key import Key
from repro.cases.runner_facts import RUNNER_FACTS, RunnerFacts
from repro.cases.setup import Setup

# The parts of a server that options are arguments of.
SERVER, TARGET, DRAFT, HARNESS = "server_args", "model", "draft_model", "harness"


@dataclass(frozen=True, slots=True)
class Need:
    """A condition of a valid setup. text: the refusal; {s.FIELD} is the setup's value, {r.FIELD} the runner's fact."""

    holds: Callable[[Setup, RunnerFacts, BackendFacts], bool]
    text: str


def of_llama(text: str) -> Need:
    """The need of Llama's models. text: the end of the refusal."""
    return Need(lambda s, r, b: family_facts(s).plain, "a family other than Llama" + text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option(Key):
    """One row of OPTIONS: a key of the setup in a file, named as in sglang's ServerArgs or in the model's
    configuration."""

    owner: type = Setup
    # The owner of the argument: SERVER, TARGET, DRAFT or HARNESS.
    part: str = SERVER
    # True for runners whose draft model has the option, and not the target.
    drafted: Callable[[RunnerFacts], bool] = lambda runner: False
    # Needs of every setup, and needs of a setup whose option is not at its default.
    needs: tuple[Need, ...] = ()
    if_set: tuple[Need, ...] = ()
    # The values that are drawn; of options that came later, where they are set.
    drawn: tuple[Any, ...] = ()
    # Came after the first seeds: written, and part of a case's digest, only where it is not at its default.
    later: bool = False
    # Words for people where it is set; {0} is the value.
    words: str = ""
    # The state of replays that it brings (fuzz/draw/states.py), and the fields of the smallest setup with it; empty:
    # the first value drawn. by_step: not every step of such a setup is in the state.
    state: str = ""
    by_step: bool = False
    example: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # The fields that go back to their defaults together when a case is shrunk; empty: the option by itself if it came
    # later, else it has a pass of its own.
    resets: tuple[str, ...] = ()

    @property
    def smallest(self) -> Mapping[str, Any]:
        """The fields of the smallest setup that has it."""
        return self.example or {self.field: self.drawn[0]}

    @property
    def sets_apart(self) -> bool:
        """True if setups with it are of another kind: it brings a state, or is a server's or a model's, came later and
        has values that are drawn."""
        return bool(self.state or (self.later and self.drawn and self.part != HARNESS))

    @property
    def is_switch(self) -> bool:
        """True of an option that is on or off by itself: no value is drawn for it, and no other option goes with it."""
        return len(self.drawn) == 1 and not self.example

    @property
    def reset(self) -> tuple[str, ...]:
        """The fields that are set back: those of `resets`, else its own if it came later."""
        return self.resets or ((self.field,) if self.later else ())

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which people mean it: its field's and sglang's; a draft model's option is draft_model.NAME, too,
        since the target may have one of the same name."""
        qualified = (f"{DRAFT}.{self.name}",) if self.part == DRAFT else ()
        return (self.field, self.name, *self.older, *qualified)

    def part_of(self, runner: str) -> str:
        """The owner of the argument on a server with this runner."""
        return DRAFT if self.drafted(RUNNER_FACTS.get(runner, RUNNER_FACTS["draft"])) else self.part

    def is_set(self, setup: Setup) -> bool:
        """True if the setup has another value than the default."""
        return bool(getattr(setup, self.field) != self.default)

    def problems(self, setup: Setup) -> Iterator[str]:
        """Why this option's value is refused."""
        value = getattr(setup, self.field)
        if self.bounds and not self.bounds[0] <= value <= self.bounds[1]:
            yield f"{self.name} {value} is outside {self.bounds[0]}..{self.bounds[1]}"
        if self.choices and value not in self.choices:
            choices = ", ".join(map(str, filter(None, self.choices)))
            yield f"{self.name} {value!r} is not one of {choices}"
        yield from refusals((*self.needs, *(self.if_set if self.is_set(setup) else ())), setup)


def refusals(needs: Iterable[Need], setup: Setup) -> Iterator[str]:
    """The texts of the needs that do not hold. An unknown runner or backend, whose name is refused already, has another
    one's facts here."""
    runner = RUNNER_FACTS.get(setup.runner, RUNNER_FACTS["draft"])
    backend = BACKEND_FACTS.get(setup.backend, BACKEND_FACTS["triton"])
    for need in needs:
        if not need.holds(setup, runner, backend):
            yield need.text.format(s=setup, r=runner, b=backend)
