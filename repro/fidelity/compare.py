"""How far two targets agree on the same cases: verdict by verdict, and output by output.

Outputs are compared path by path, request by request. Trees are equal, or differ where rounding noise turns them over
on one of the targets by itself: a tie. KV values of equal trees lie within a tolerance, or as far apart as noise moves
them. Everything else is a disagreement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from repro.cases.codec import digest
from repro.fidelity.observation import INTEGERS, PATHS, Observation, Outputs, Seen, distance, turned
from repro.traces.finding import Status, Verdict

OVERALL, TREE, SLOTS, VALUES = "overall", "draft tree", "KV slots written", "KV values"
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
        place = f" in step {self.step} {self.path} row {self.row}" if self.step >= 0 else ""
        return f"case {self.case}: {self.kind}{place}: {self.detail}"


def summary(found: Sequence[Disagreement]) -> list[str]:
    """One line for each kind among the disagreements of one case: the first, and how many more."""
    kinds: dict[str, list[Disagreement]] = {}
    for one in found:
        kinds.setdefault(one.kind, []).append(one)
    return [f"{alike[0]}" + (f" (and {len(alike) - 1} more)" if len(alike) > 1 else "") for alike in kinds.values()]


@dataclass
class Agreement:
    """The running count. Mutable. ways: by kind and way (agree, tie, differ, not recorded), how often. farthest: the
    largest distance of KV values, as a part of what is allowed."""

    names: tuple[str, str]
    limit: Limit
    ways: dict[str, Counter[str]] = field(default_factory=dict)
    disagreements: list[Disagreement] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    compared: int = 0
    farthest: float = 0.0

    def add(self, one: Observation, other: Observation) -> list[Disagreement]:
        """Compare one case; what they disagree in."""
        case = digest(one.case)
        unfit = [
            f"{name}: {seen.what}" for name, seen in zip(self.names, (one, other), strict=True) if not seen.took_place
        ]
        if unfit:
            self.not_compared.append(f"case {case}: {'; '.join(unfit)}")
            return []
        self.compared += 1
        found = [*self._verdicts(case, one, other), *self._outputs(case, one, other)]
        self.disagreements += found
        return found

    def _count(self, kind: str, way: str) -> None:
        self.ways.setdefault(kind, Counter())[way] += 1

    def _verdicts(self, case: str, one: Observation, other: Observation) -> Iterator[Disagreement]:
        others = {verdict.oracle: verdict for verdict in other.verdicts}
        for mine in one.verdicts:
            theirs = others.get(mine.oracle)
            if theirs and _same_verdict(mine, theirs):
                self._count(mine.oracle, "agree")
                continue
            self._count(mine.oracle, "differ")
            yield Disagreement(case=case, kind=mine.oracle, detail=self._versus(_said(mine), _said(theirs)))
        same = one.overall is other.overall
        self._count(OVERALL, "agree" if same else "differ")
        if not same:
            names = (status.name if status is not None else "nothing" for status in (one.overall, other.overall))
            yield Disagreement(case=case, kind=OVERALL, detail=self._versus(*names))

    def _versus(self, one: str, other: str) -> str:
        return f"{one} on {self.names[0]}, {other} on {self.names[1]}"

    def _outputs(self, case: str, one: Observation, other: Observation) -> Iterator[Disagreement]:
        for number in sorted(one.steps.keys() & other.steps.keys()):
            mine, theirs = one.steps[number], other.steps[number]
            for path in PATHS:
                if path in mine.paths and path in theirs.paths:
                    for row in range(len(one.case.steps[number].requests)):
                        for kind, detail in self._row(one.case.setup.dtype, mine, theirs, path, row):
                            yield Disagreement(case=case, kind=kind, detail=detail, step=number, path=path, row=row)

    def _row(self, dtype: str, mine: Seen, theirs: Seen, path: str, row: int) -> Iterator[tuple[str, str]]:
        a, b = mine.paths[path], theirs.paths[path]
        if turned(a, b, row):
            tie = mine.turned[row] or theirs.turned[row]
            self._count(TREE, "tie" if tie else "differ")
            if not tie:
                yield TREE, self._versus(*_first_difference(a, b, row))
            return
        self._count(TREE, "agree")
        given = mine.given[row]
        wrong = sorted((a.slots ^ b.slots) & given)
        self._count(SLOTS, "differ" if wrong else "agree")
        if wrong:
            states = ("written", "untouched") if wrong[0] in a.slots else ("untouched", "written")
            yield SLOTS, f"slot {wrong[0]} {self._versus(*states)}"
        if not (given & a.kv.keys() & b.kv.keys()):
            self._count(VALUES, "not recorded")
            return
        yield from self._values(dtype, a, b, given, max(mine.noise[row], theirs.noise[row]))

    def _values(
        self, dtype: str, a: Outputs, b: Outputs, given: frozenset[int], noise: float
    ) -> Iterator[tuple[str, str]]:
        off, scale = distance(a.kv, b.kv, given)
        # What noise moves by a whole choice inside the draft says nothing of rounding: a distance as large is a tie.
        calm = self.limit(0.0, scale, dtype)
        allowed = self.limit(noise, scale, dtype) if noise <= calm else calm
        if off <= allowed:
            self._count(VALUES, "agree")
            self.farthest = max(self.farthest, off / allowed) if allowed else self.farthest
        elif noise > calm:
            self._count(VALUES, "tie")
        else:
            self._count(VALUES, "differ")
            yield VALUES, f"up to {off:.3g} apart, {allowed:.3g} allowed, on values up to {scale:.3g}"


def _same_verdict(one: Verdict, other: Verdict) -> bool:
    """The same status; of failures, the same failure."""
    return one.status is other.status and (one.status is not Status.FAIL or one.where == other.where)


def _said(verdict: Verdict | None) -> str:
    if verdict is None:
        return "nothing"
    return f"{verdict.status.name} ({verdict.where})" if verdict.where else verdict.status.name


def _first_difference(a: Outputs, b: Outputs, row: int) -> tuple[str, str]:
    for name in INTEGERS:
        mine, theirs = (one.integers[name][row].tolist() if len(one.integers[name]) > row else None for one in (a, b))
        if mine != theirs:
            return f"{name} {_short(mine)}", _short(theirs)
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
        "farthest": agreement.farthest,
        "disagreements": [
            {
                "case": one.case,
                "kind": one.kind,
                "step": one.step,
                "path": one.path,
                "row": one.row,
                "detail": one.detail,
            }
            for one in agreement.disagreements
        ],
        "not_compared": agreement.not_compared,
    }
