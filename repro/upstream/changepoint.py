"""The place in a row of releases or commits where a failure begins and ends, from runs that may be flaky: the posterior
over all places, and where to look next.

The failing ones are taken to be one stretch. How often a run fails inside it is not known: the likelihood integrates
over that, with a mixture of "always" and "any rate" as its prior. Outside it a failure all but never shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Chance that a run without the bug shows it: oracles compare bits, so this is a reserve for the unexpected.
_FALSE_ALARM = 1e-4
# Weight and Beta parameters of the failure rate's prior: bugs that always show, and those that show at any rate.
_RATES = ((0.9, 1000.0, 1.0), (0.1, 1.0, 1.0))
# A look is to miss a bug that is there no more often than this; more runs than that a look does not have.
_MISSED = 0.15
_LOOK_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The stretch of candidates start..stop-1 fails; stop is their number if it reaches the end. chance: its share of
    the posterior. rate: how often a run inside it is expected to fail."""

    start: int
    stop: int
    chance: float
    rate: float


def posterior(failed: Sequence[int], passed: Sequence[int], *, to_the_end: bool = False) -> list[Place]:
    """Every stretch with its chance, likeliest first. failed, passed: runs of each candidate. to_the_end: whether the
    stretch is known to reach the last candidate, as it does between a good and a bad commit."""
    count = len(failed)
    starts, stops = _stretches(count, to_the_end)
    fails, passes = (np.concatenate(([0], np.cumsum(runs))) for runs in (failed, passed))
    inside = fails[stops] - fails[starts], passes[stops] - passes[starts]
    outside = fails[-1] - inside[0], passes[-1] - inside[1]
    likelihood, rates = _integrated(*inside)
    log = likelihood + outside[0] * math.log(_FALSE_ALARM) + outside[1] * math.log1p(-_FALSE_ALARM)
    chances = np.exp(log - log.max())
    chances /= chances.sum()
    order = np.argsort(-chances, kind="stable")
    return [
        Place(start=int(starts[n]), stop=int(stops[n]), chance=float(chances[n]), rate=float(rates[n])) for n in order
    ]


def _stretches(count: int, to_the_end: bool) -> tuple[Ints, Ints]:
    if to_the_end:
        return np.arange(count), np.full(count, count)
    pairs = [(start, stop) for start in range(count) for stop in range(start + 1, count + 1)]
    return np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])


def _integrated(failed: Ints, passed: Ints) -> tuple[Floats, Floats]:
    """Log likelihood of these runs over all rates, and the rate that is expected after them."""
    logs = np.stack([math.log(w) + _log_beta(a + failed, b + passed) - _log_beta(a, b) for w, a, b in _RATES])
    means = np.stack([(a + failed) / (a + b + failed + passed) for _, a, b in _RATES])
    top = logs.max(axis=0)
    weights = np.exp(logs - top)
    total = weights.sum(axis=0)
    return top + np.log(total), (weights * means).sum(axis=0) / total


def _log_beta(a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
    gamma = np.vectorize(math.lgamma, otypes=[np.float64])
    return np.asarray(gamma(a) + gamma(b) - gamma(np.add(a, b)), dtype=np.float64)


def look(rate: float) -> int:
    """The number of runs of one look at a candidate, if a run of a bad one fails at this rate."""
    if rate >= 1 - _MISSED:
        return 1
    return min(_LOOK_MAX, math.ceil(math.log(_MISSED) / math.log1p(-max(rate, 0.01))))


def next_look(places: Sequence[Place], count: int) -> tuple[int, int, float]:
    """The candidate that is expected to tell most, how many runs to have there, and how many bits they tell."""
    runs = look(places[0].rate)
    chances = np.array([place.chance for place in places])
    starts, stops = (np.array([getattr(place, name) for place in places]) for name in ("start", "stop"))
    shown = 1 - (1 - np.array([place.rate for place in places])) ** runs
    # By prefix sums: of each candidate, what belongs to the stretches that hold it.
    certain = _entropy(shown) * chances
    inside, shows, known = (_held(values, starts, stops, count) for values in (chances, chances * shown, certain))
    alarm = 1 - (1 - _FALSE_ALARM) ** runs
    bits = _entropy(shows + (1 - inside) * alarm) - known - (1 - inside) * _entropy(np.array(alarm))
    best = int(np.argmax(bits))
    return best, runs, float(bits[best])


def _held(values: Floats, starts: Ints, stops: Ints, count: int) -> Floats:
    edges = np.zeros(count + 1)
    np.add.at(edges, starts, values)
    np.add.at(edges, stops, -values)
    return np.clip(np.cumsum(edges)[:count], 0, 1)


def _entropy(chance: Floats) -> Floats:
    p = np.clip(chance, 1e-12, 1 - 1e-12)
    return np.asarray(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)), dtype=np.float64)
