"""The states of a campaign's setups: every two that can be together meet in a few rounds, and each comes
early.

Rows are made greedily, as AETG makes them (Cohen, Dalal, Fredman and Patton, IEEE Transactions on Software Engineering
1997): of some candidates around a pair that no row has yet, the one that has most such pairs. Only what is there is to
be met, and a row has few states: a covering array, in which each is absent as often as not, would leave half of all
setups without padding, where hardly anything can go stale.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import TypeVar

from fuzz.draw.states import can_be, smallest, with_states
from fuzz.draw.swarm import Swarm
from repro.cases.case import Setup
from repro.cases.options import OPTIONS

# Rounds in which all pairs meet; then others begin that do so anew. Of a cycle's rows about one in so many has a state,
# apart from those that a pair is missing for; a row has so many states at most besides those of its kind.
ROWS, ONE_IN, MOST = 32, 5, 4
CANDIDATES = 6
# Chains have the simplest trees, so that trees are drawn as often as this for each of them.
TREES = 2

T = TypeVar("T")
Pair = tuple[str, str]

# The states that a swarm can be asked for, with the options that bring them. Others are of a setup's kind, or are met
# on every setup.
FEATURES = {option.state: tuple(option.smallest) for option in OPTIONS if option.state}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The states of one setup. kind: the smallest setup of its kind; features: names of FEATURES."""

    kind: Setup
    features: frozenset[str] = frozenset()

    @property
    def pairs(self) -> frozenset[Pair]:
        """All pairs that it has, of features and of what says its kind."""
        kind = self.kind
        words = f"topk {kind.topk}", f"pages of {kind.page_size}", f"{kind.num_steps} steps", kind.algorithm
        return frozenset(itertools.combinations(sorted((*words, *self.features)), 2))

    def can_be(self) -> bool:
        return can_be(with_states(self.kind, self.features))

    def swarm(self, swarm: Swarm) -> Swarm:
        """The swarm whose setups have these states, and whose batches are otherwise as this one's."""
        kind = self.kind
        return replace(
            swarm.having(*(field for name in self.features for field in FEATURES[name])),
            branching=kind.topk > 1,
            paged=kind.page_size > 1,
            single=kind.num_steps == 1,
            algorithm=kind.algorithm,
        )


@lru_cache(maxsize=64)
def rows(runner: str, backend: str, name: str) -> tuple[Row, ...]:
    """ROWS rows, the same for the same name for ever."""
    random, having = Random(name), _having(runner, backend)
    # Sorted, as sets have another order in each process.
    missing = dict.fromkeys(sorted(having))
    plain = tuple(pair for pair in missing if not having[pair][0].features)
    # Options of other runners must change nothing here, so only these count.
    able = [feature for feature in FEATURES if any(feature in pair for pair in having)]
    used: Counter[str] = Counter()
    chosen: list[Row] = []
    for number in range(ROWS):
        rare = [feature for feature in able if used[feature] * ONE_IN < number]
        features, count = (tuple(missing), CANDIDATES) if missing else (plain, 1)
        candidates = [_with_more(_one(having[_one(features, random)], random), rare, random) for _ in range(count)]
        row = max(candidates, key=lambda row: len(row.pairs & missing.keys()))
        missing = {pair: None for pair in missing if pair not in row.pairs}
        used.update(row.features)
        chosen.append(row)
    return tuple(chosen)


@lru_cache(maxsize=64)
def _having(runner: str, backend: str) -> Mapping[Pair, Sequence[Row]]:
    """Each pair that some setup has, with the rows of no more features than it takes that have it."""
    having: dict[Pair, list[Row]] = {}
    for count, kind in itertools.product((0, 1, 2), smallest(runner, backend)):
        able = [name for name in FEATURES if Row(kind=kind, features=frozenset((name,))).can_be()]
        for features in itertools.combinations(able, count):
            row = Row(kind=kind, features=frozenset(features))
            if row.can_be():
                for pair in row.pairs:
                    same = having.setdefault(pair, [])
                    if not same or len(same[0].features) == count:
                        same += [row] * (TREES if kind.topk > 1 else 1)
    return having


def _with_more(row: Row, features: Sequence[str], random: Random) -> Row:
    """The row with as many of these features as can be, up to MOST."""
    for feature in _shuffled(features, random)[: MOST - len(row.features)]:
        more = Row(kind=row.kind, features=row.features | {feature})
        row = more if more.can_be() else row
    return row


# Only a generator's random() is the same in all versions of Python.
def _one(choices: Sequence[T], random: Random) -> T:
    return choices[int(random.random() * len(choices))]


def _shuffled(choices: Iterable[str], random: Random) -> list[str]:
    return [choice for _, choice in sorted((random.random(), choice) for choice in choices)]
