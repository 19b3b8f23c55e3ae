"""The agreement of two targets on the same cases, verdict by verdict and output by output.

Outputs are compared path by path, request by request. Integers (trees, tokens) are equal, or differ where rounding
noise turns them over on one of the targets by itself, or the reference in float64 says that it may, or that both are
right as far as rounding goes: a tie. A request
whose tokens an eager draft chose otherwise before the call was another call, and is counted as such. Other outputs and
KV values of requests with equal integers lie within a tolerance, or as far apart as noise moves them; outputs may also
both lie as near to the reference as rounding explains. What a runner without a graph records is equal.

What a kernel does outside its memory is another thing on each engine, and so are the rows of a graph that are wrong on
both targets: the verdicts say so, and neither is compared further. Everything else is a disagreement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from repro.cases.case import Setup
from repro.cases.codec import digest
from repro.fidelity.observation import KV, Observation, Outputs, StepOutputs, apart, distance, turned, unlike
from repro.traces.finding import TIE, Status, Verdict
from repro.traces.paths import BOTH, Recorded

OVERALL, CHOICES, SLOTS, VALUES = "overall", "trees and tokens", "KV slots written", "KV values"
OUTPUT, LISTED = "other outputs", "lists and events"
DRAFTED = "drafted before the call"
# In Agreement.pairs, beside the kinds.
CASES = "cases"
# The oracle of accesses outside their memory.
_OUTSIDE = "memory"
# The `where` of an oracle's doubt about what noise turns over on one target by itself.
# How the limit of what two engines may be apart is computed: of noise, scale and dtype.
Limit = Callable[[float, float, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """kind: an oracle, or one of the names above. step: -1 where it is about the whole run."""

    case: str
    kind: str
    detail: str
    step: int = -1
    path: str = ""
    row: int = -1

    def __str__(self) -> str:
        row = f" {self.path} row {self.row}" if self.row >= 0 else ""
        place = f" in step {self.step}{row}" if self.step >= 0 else ""
        return f"case {self.case}: {self.kind}{place}: {self.detail}"


def summary(disagreements: Sequence[Disagreement]) -> list[str]:
    """One line for each kind among the disagreements of one case: the first, and how many more."""
    kinds: dict[str, list[Disagreement]] = {}
    for disagreement in disagreements:
        kinds.setdefault(disagreement.kind, []).append(disagreement)
    return [f"{alike[0]}" + (f" (and {len(alike) - 1} more)" if len(alike) > 1 else "") for alike in kinds.values()]


@dataclass
class Agreement:
    """The running count. Mutable. overall: what verdicts come to. of_some: oracles that some engines alone have
    something for. ways: by kind and way (agree, tie, differ, undefined, not recorded), how often; pairs: the same
    by runner and backend, "draft/triton", with a kind of cases (compared, not compared). farthest: the largest
    distance of values, as a part of what is allowed."""

    names: tuple[str, str]
    limit: Limit
    overall: Callable[[Iterable[Verdict]], Status]
    of_some: frozenset[str]
    ways: dict[str, Counter[str]] = field(default_factory=dict)
    pairs: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)
    disagreements: list[Disagreement] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    compared: int = 0
    farthest: float = 0.0

    def add(self, left: Observation, right: Observation) -> list[Disagreement]:
        """Compare one case; what they disagree in."""
        case = digest(left.case)
        counts = self.pairs.setdefault(pair_of(left.case.setup), {CASES: Counter()})
        not_run = [
            f"{name}: {seen.what}" for name, seen in zip(self.names, (left, right), strict=True) if not seen.took_place
        ]
        if not_run:
            self.not_compared.append(f"case {case}: {'; '.join(not_run)}")
            counts[CASES]["not compared"] += 1
            return []
        self.compared += 1
        counts[CASES]["compared"] += 1
        differing = list(_Comparison(self, case, left, right).all())
        self.disagreements += differing
        return differing

    def count(self, setup: Setup, kind: str, way: str) -> None:
        for ways in (self.ways, self.pairs[pair_of(setup)]):
            ways.setdefault(kind, Counter())[way] += 1


class _Comparison:
    """One case on both targets."""

    def __init__(self, agreement: Agreement, case: str, left: Observation, other: Observation) -> None:
        self.agreement, self.case, self.one, self.other = agreement, case, left, other
        self.setup = left.case.setup
        outside = any(v.oracle == _OUTSIDE and v.status is Status.FAIL for seen in (left, other) for v in seen.verdicts)
        # What a difference counts as.
        self.apart = "undefined" if outside else "differ"

    def all(self) -> Iterator[Disagreement]:
        yield from self._verdicts()
        for number in sorted(self.one.steps.keys() & self.other.steps.keys()):
            mine, theirs = self.one.steps[number], self.other.steps[number]
            yield from self._listed(number, mine, theirs)
            for path in BOTH:
                if path in mine.paths and path in theirs.paths:
                    for row in range(len(self.one.case.steps[number].requests)):
                        for kind, detail in self._row(mine, theirs, path, row):
                            yield self._disagreement(kind, detail, step=number, path=path, row=row)

    def _disagreement(self, kind: str, detail: str, **place: Any) -> Disagreement:
        return Disagreement(case=self.case, kind=kind, detail=detail, **place)

    def _count(self, kind: str, way: str) -> None:
        self.agreement.count(self.setup, kind, way)

    def _versus(self, first: str, second: str) -> str:
        return f"{first} on {self.agreement.names[0]}, {second} on {self.agreement.names[1]}"

    def _verdicts(self) -> Iterator[Disagreement]:
        first, second = _by_oracle(self.one.verdicts), _by_oracle(self.other.verdicts)
        ways = set()
        for oracle in dict.fromkeys([*first, *second]):
            mine, theirs = first.get(oracle), second.get(oracle)
            way = self._way_of_verdicts(oracle, mine, theirs)
            ways.add(way)
            self._count(oracle, way)
            if way == "differ":
                yield self._disagreement(oracle, self._versus(_said(mine), _said(theirs)))
        # Of what both engines have something for: `memory`, say, is emulated.
        statuses = [
            self.agreement.overall(v for v in seen.verdicts if v.oracle in first.keys() & second.keys())
            for seen in (self.one, self.other)
        ]
        way = "agree" if statuses[0] is statuses[1] else "tie" if "tie" in ways and "differ" not in ways else self.apart
        self._count(OVERALL, way)
        if way == "differ":
            yield self._disagreement(OVERALL, self._versus(*(status.name for status in statuses)))

    def _way_of_verdicts(self, oracle: str, first: Verdict | None, second: Verdict | None) -> str:
        """agree: the same status, and of failures the same failure. tie: noise turned a choice over on one target
        alone."""
        if first is None or second is None:
            return "not recorded" if oracle in self.agreement.of_some else "differ"
        if first.status is second.status:
            return "agree" if first.status is not Status.FAIL or first.where == second.where else self.apart
        ties = [v.status is Status.UNKNOWN and v.where == TIE for v in (first, second)]
        return "tie" if any(ties) and Status.FAIL not in (first.status, second.status) else self.apart

    def _listed(self, number: int, mine: StepOutputs, other: StepOutputs) -> Iterator[Disagreement]:
        for name in sorted(mine.listed.keys() | other.listed.keys()):
            a, b = mine.listed.get(name), other.listed.get(name)
            same = a is not None and b is not None and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            self._count(LISTED, "agree" if same else self.apart)
            if not same and self.apart == "differ":
                lists = ("nothing" if array is None else _short(array.tolist()) for array in (a, b))
                yield self._disagreement(LISTED, f"{name} {self._versus(*lists)}", step=number)

    def _row(self, mine: StepOutputs, other: StepOutputs, path: str, row: int) -> Iterator[tuple[str, str]]:
        a, b = mine.paths[path], other.paths[path]
        if mine.drafted and other.drafted:
            other_call = unlike(mine.drafted, other.drafted, row)
            self._count(DRAFTED, "not recorded" if other_call else "agree")
            if other_call:
                return
        if path == Recorded.GRAPH and all(self._own_paths_apart(seen, row) for seen in (mine, other)):
            self._count(OUTPUT, "undefined")
            return
        if turned(a, b, row):
            tie = mine.turned[row] or other.turned[row]
            tie = tie or (bool(a.integers) and all(seen.grants(path, a.integers, row) for seen in (mine, other)))
            self._count(CHOICES, "tie" if tie else self.apart)
            if not tie and self.apart == "differ":
                yield CHOICES, self._versus(*_first_difference(a, b, row))
            return
        if a.integers:
            self._count(CHOICES, "agree")

        def noise(name: str) -> float:
            return max(seen.noise[name][row] if name in seen.noise else 0.0 for seen in (mine, other))

        for name in sorted(a.values.keys() | b.values.keys()):
            granted = all(seen.grants(path, [name], row) for seen in (mine, other))
            yield from self._values(OUTPUT, f"{name} ", apart(a, b, name, row), noise(name), granted)
        own_slots = mine.allocated[row]
        if not own_slots:
            return
        wrong = sorted((a.slots ^ b.slots) & own_slots)
        self._count(SLOTS, self.apart if wrong else "agree")
        if wrong and self.apart == "differ":
            states = ("written", "untouched") if wrong[0] in a.slots else ("untouched", "written")
            yield SLOTS, f"slot {wrong[0]} {self._versus(*states)}"
        if own_slots & a.kv.keys() & b.kv.keys():
            yield from self._values(VALUES, "", distance(a.kv, b.kv, own_slots), noise(KV))
        else:
            self._count(VALUES, "not recorded")

    def _own_paths_apart(self, seen: StepOutputs, row: int) -> bool:
        """True if graph and eager gave this request different results on one and the same target, beyond rounding."""
        graph, eager = (seen.paths.get(path) for path in BOTH)
        if graph is None or eager is None or seen.turned[row]:
            return False
        between = (apart(graph, eager, name, row) for name in graph.values.keys() & eager.values.keys())
        far = any(off > self.agreement.limit(0.0, scale, self.setup.dtype) for off, scale in between)
        return (far or turned(graph, eager, row)) and not seen.grants(
            Recorded.GRAPH, (*graph.integers, *graph.values), row
        )

    def _values(
        self, kind: str, what: str, between: tuple[float, float], noise: float, granted: bool = False
    ) -> Iterator[tuple[str, str]]:
        off, scale = between
        limit, dtype = self.agreement.limit, self.setup.dtype
        # What noise moves by a whole choice inside the draft says nothing of rounding: a distance as large is a tie.
        calm = limit(0.0, scale, dtype)
        allowed = limit(noise, scale, dtype) if noise <= calm else calm
        if off <= allowed:
            self._count(kind, "agree")
            self.agreement.farthest = max(self.agreement.farthest, off / allowed if allowed else 0.0)
        elif noise > calm or granted:
            self._count(kind, "tie")
        else:
            self._count(kind, self.apart)
            if self.apart == "undefined":
                return
            yield kind, f"{what}up to {off:.3g} apart, {allowed:.3g} allowed, on values up to {scale:.3g}"


def pair_of(setup: Setup) -> str:
    """The pair that a setup drives: "draft/triton"."""
    return f"{setup.runner}/{setup.backend}"


def _by_oracle(verdicts: Iterable[Verdict]) -> dict[str, Verdict]:
    """The verdicts of each oracle as one: the worst status, with all its places."""
    grouped: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        grouped.setdefault(verdict.oracle, []).append(verdict)
    return {
        oracle: replace(
            max(some, key=lambda verdict_of: verdict_of.status),
            where="; ".join(verdict_of.where for verdict_of in some),
        )
        for oracle, some in grouped.items()
    }


def _said(verdict: Verdict | None) -> str:
    if verdict is None:
        return "nothing"
    return f"{verdict.status.name} ({verdict.where})" if verdict.where else verdict.status.name


def _first_difference(a: Outputs, b: Outputs, row: int) -> tuple[str, str]:
    for name in sorted(a.integers.keys() | b.integers.keys()):
        arrays = (outputs.integers.get(name) for outputs in (a, b))
        mine, others = (None if array is None or len(array) <= row else array[row].tolist() for array in arrays)
        if mine != others:
            return f"{name} {_short(mine)}", _short(others)
    return "", ""


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def conclusion(agreement: Agreement) -> Status:
    """FAIL if they disagree anywhere, UNKNOWN if nothing was compared."""
    if agreement.disagreements:
        return Status.FAIL
    return Status.PASS if agreement.compared else Status.UNKNOWN


def to_json(agreement: Agreement) -> Mapping[str, object]:
    """All of it as plain dicts, lists, texts and numbers."""
    return {
        "targets": list(agreement.names),
        "compared": agreement.compared,
        "agree": not agreement.disagreements,
        "ways": {kind: dict(counts) for kind, counts in agreement.ways.items()},
        "pairs": {
            pair: {kind: dict(counts) for kind, counts in kinds.items()} for pair, kinds in agreement.pairs.items()
        },
        "farthest": agreement.farthest,
        "disagreements": [
            {
                "case": disagreement.case,
                "kind": disagreement.kind,
                "step": disagreement.step,
                "path": disagreement.path,
                "row": disagreement.row,
                "detail": disagreement.detail,
            }
            for disagreement in agreement.disagreements
        ],
        "not_compared": agreement.not_compared,
    }
