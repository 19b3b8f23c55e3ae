"""The KV rows of a draft's later layers that are made of draws: behind a request's last accepted token a layer goes on
from what the layers before it have drawn, and no later round makes these rows again."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from oracles.trace_index import Bools, Record
from repro.cases.case import Setup
from repro.cases.families import family_facts
from repro.traces.paths import Recorded

DRAFT = "draft_"


def layer_of(setup: Setup, cache: str) -> int:
    """The place among a draft's layers of the one that has this cache; 0 where there is one, and of the target's."""
    layered = family_facts(setup).layered and cache.startswith(DRAFT)
    return int(cache.removeprefix(DRAFT).lstrip("kv")) if layered else 0


class Drawn:
    """The draws of a case's rounds. Mutable: follow() takes each round in turn."""

    def __init__(self, setup: Setup, record: Record) -> None:
        self._setup, self._record = setup, record
        self._kept: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def follow(self, number: int) -> None:
        """Take note of which draws the target kept in a round: those with which it began, as its requests' last stages
        left them."""
        values = self._record.path(number, Recorded.ROUND_GRAPH)
        if not family_facts(self._setup).layered or "accepted" not in values:
            return
        for row, request in enumerate(values["requests"].tolist()):
            self._kept[request].append((int(values["seq_lens"][row]), int(values["accepted"][row]) - 1))

    def unsaid(self, request: int, layer: int, cached: int, count: int) -> Bools:
        """True of the rows, of so many, that hold what the target has not said. The last ones are a layer's draws, of
        which the next round tells, or those of the prefill to compare with; cached ones hold another request's."""
        rows = np.zeros(count, dtype=bool)
        if layer:
            rows[:cached] = True
            rows[max(0, count - layer) :] = True
            for start, kept in self._kept[request]:
                rows[max(0, start - layer + kept) : start] = True
        return rows
