"""The requests of a case as they arrive: its clock, which an event loop asks at the beginning of each iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repro.cases.case import Case, Setup
from repro.cases.layout import Ints
from repro.cases.payload import integers
from repro.cases.rows.adapters import adapter_of
from repro.cases.rows.requests import biases, has_grammar, stop_tokens, text_tokens
from repro.cases.rows.serving import asks_logprobs, asks_states, prompt_start, samples
from repro.cases.updates import UPDATE
from repro.traces.paths import Recorded
from runners.recording.observer import Watch
from runners.releases.adapters.round import messages, updating
from runners.releases.adapters.round import scheduler as serving
from runners.releases.adapters.round.family import EndOfLoop, Wire
from runners.releases.options.images import Images
from runners.sessions.iterations import BESIDES, iterations_max
from runners.sessions.versions import Versions

# Idle iterations behind the last end: the overlap loop is one late, and an idle scheduler checks itself.
IDLE = 3
# Iterations before these in which another rank is still busy, so that this one runs without requests.
BUSY_ELSEWHERE = 3
NO_TOKEN = -1
# Tokens of each prompt on another rank.
PROMPT_ELSEWHERE = 5


def name_of(number: int, row: int) -> str:
    """A request's, by its place in the case."""
    return f"{number}.{row}"


def prompt(setup: Setup, data: int, length: int) -> Ints:
    """Token ids, by the request's data."""
    return integers(data, "prompt", (length,), setup.vocab_size)


def rows(lists: Sequence[Any], dtype: Any = np.int64) -> Any:
    """One row a list, [n, longest], filled up with NO_TOKEN, or with NaN."""
    table = np.full((len(lists), max(map(len, lists), default=0)), NO_TOKEN if dtype is np.int64 else np.nan, dtype)
    for row, values in enumerate(lists):
        table[row, : len(values)] = values
    return table


@dataclass(slots=True)
class Clock:
    """Called at the beginning of each iteration of the event loop. Mutable: it counts them."""

    case: Case
    prompts: Sequence[Sequence[Ints]]
    images: Images
    wire: Wire
    watch: Watch
    flush: Callable[[], object]
    is_idle: Callable[[], bool]
    versions: Versions
    iteration: int = 0
    idle: int = 0
    arrived: int = 0  # steps
    aborted: list[str] = field(default_factory=list)
    updated: int = -1  # the last step that has updated weights
    refusals: dict[int, str] = field(default_factory=dict)  # of an update, by its step
    _answers: int = 0  # the place of the first answer to it among what was sent
    due: int = field(init=False)
    limit: int = field(init=False)

    def __post_init__(self) -> None:
        self.due = self.case.steps[0].wait
        self.limit = iterations_max(self.case)

    def __call__(self) -> list[Any]:
        self.idle = self.idle + 1 if not self.left() else 0
        if self.idle > IDLE + self._beside() or self.iteration >= self.limit:
            raise EndOfLoop
        serving.retract(now=False)
        arriving: list[Any] = []
        self._go_on_elsewhere(arrives=False)
        while self.arrived < len(self.case.steps) and self.iteration >= self.due:
            if self.case.steps[self.arrived].happens == UPDATE and self.updated < self.arrived:
                # The requests behind it come when it is done, and it comes when those before it have ended.
                arriving += self._updating() if not arriving and self.is_idle() else []
                break
            arriving += self._happening(self.case.steps[self.arrived].happens)
            arriving += self._arriving(self.arrived)
            self.arrived += 1
            self._go_on_elsewhere(arrives=True)
            if self.arrived < len(self.case.steps):
                self.due = self.iteration + self.case.steps[self.arrived].wait
        self.iteration += 1
        return arriving

    def _go_on_elsewhere(self, *, arrives: bool) -> None:
        """Tell the other rank of its requests, which came with the last step. arrives: they come now."""
        busy = self.arrived and self.idle <= self._beside()
        count = self.case.steps[self.arrived - 1].elsewhere if busy else 0
        self.wire.others.begin(count, tokens=count * PROMPT_ELSEWHERE if arrives else 0)

    def _beside(self) -> int:
        return BUSY_ELSEWHERE if self.case.setup.dp_attention else 0

    def left(self) -> int:
        """The number of requests that have not ended, those that are still to come included."""
        _, ended = serving.outputs(self.wire.sent)
        return sum(len(step.requests) for step in self.case.steps) - len(ended)

    def _updating(self) -> list[Any]:
        self.updated, self._answers = self.arrived, len(self.wire.sent)
        return self.versions.messages()

    def _happening(self, kind: str) -> list[Any]:
        """The messages that it is made of. Retraction lasts for an iteration."""
        match kind:
            case "retract":
                serving.retract(now=True)
            case "flush":
                self.flush()
            case kind if kind == UPDATE:
                self.versions.updated()
                if refusals := updating.refusals(self.wire.sent[self._answers :]):
                    self.refusals[self.updated] = "; ".join(refusals)
            case "abort":
                _, ended = serving.outputs(self.wire.sent)
                steps = enumerate(self.case.steps[: self.arrived])
                names = (name_of(number, row) for number, step in steps for row in range(len(step.requests)))
                oldest = next((name for name in names if name not in ended and name not in self.aborted), None)
                if oldest is not None:
                    self.aborted.append(oldest)
                    return [messages.aborting(oldest)]
        return []

    def _arriving(self, number: int) -> list[Any]:
        self.watch.at(number, Recorded.SERVED)
        requests = enumerate(self.case.steps[number].requests)
        return [
            messages.request(
                name_of(number, row),
                self.prompts[number][row].tolist(),
                1 + request.further,
                logprobs=asks_logprobs(self.case.setup, row),
                logprob_start_len=prompt_start(self.case.setup, row, request.seq_len),
                states=asks_states(self.case.setup, row),
                sampled=samples(self.case.setup, row),
                heeds_eos=self.case.setup.heeds_eos,
                stops=stop_tokens(self.case.setup, number, row),
                biases=biases(self.case.setup, number, row),
                grammar=self._grammar(number, row, request.further),
                image=self.images.get((number, row)),
                adapter=adapter_of(self.case.setup, number, row, request.data),
            )
            for row, request in requests
        ]

    def _grammar(self, number: int, row: int, further: int) -> int | None:
        """The number of tokens by which a request's grammar ends its text, 0 if it does not; None without a grammar."""
        setup = self.case.setup
        if not has_grammar(setup, number, row):
            return None
        most = text_tokens(setup, number, row, further)
        return most if most <= further else 0


@dataclass(slots=True)
class Aborting:
    """The same, to abort all. Mutable."""

    iteration: int = 0

    def __call__(self) -> list[Any]:
        self.iteration += 1
        if self.iteration > BESIDES:
            raise EndOfLoop
        return [messages.aborting()] if self.iteration == 1 else []
