"""The summary of a run of mutants: figures, oracles that alone kill some, survivors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from fuzz.mutation.trial import EQUIVALENT, KILLED, SURVIVED, UNTRIED, Outcome
from repro.traces.exit_codes import ExitCode

TEXT_MAX = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """wrongly_claimed: kept as equivalent, and killed all the same. cpu_seconds: of all processes together."""

    target: str
    seed: int
    sites: Mapping[str, int]
    outcomes: tuple[Outcome, ...]
    seconds: float
    cpu_seconds: float
    workers: int
    wrongly_claimed: tuple[Outcome, ...] = ()

    def of(self, state: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.state == state]

    @property
    def kill_rate(self) -> float:
        """The share of killed mutants among those that are not equivalent and could be tried."""
        killed, survived = len(self.of(KILLED)), len(self.of(SURVIVED))
        return killed / (killed + survived) if killed + survived else 0.0

    @property
    def exit_code(self) -> ExitCode:
        """A survivor without an explanation is a FAIL, as is a claimed equivalence that was killed."""
        if self.of(SURVIVED) or self.wrongly_claimed:
            return ExitCode.FAIL
        return ExitCode.PASS if self.of(KILLED) else ExitCode.UNKNOWN

    def to_json(self) -> str:
        """`mutants` and what they come to."""
        record = {
            "target": self.target,
            "seed": self.seed,
            "workers": self.workers,
            "seconds": round(self.seconds, 1),
            "cpu_seconds": round(self.cpu_seconds, 1),
            "sites": dict(self.sites),
            "killed": len(self.of(KILLED)),
            "survived": len(self.of(SURVIVED)),
            "equivalent": len(self.of(EQUIVALENT)),
            "untried": len(self.of(UNTRIED)),
            "kill_rate": round(self.kill_rate, 4),
            "median_seconds": _median(self.of(KILLED)),
            "alone": dict(alone(self.outcomes)),
            "mutants": [outcome.to_json() for outcome in self.outcomes],
        }
        return json.dumps(record, indent=1) + "\n"

    def to_markdown(self) -> str:
        return "\n".join(_markdown(self)) + "\n"


def alone(outcomes: Sequence[Outcome]) -> Counter[str]:
    """The number of mutants that each oracle alone kills: no other one fails in the same case."""
    return Counter(outcome.oracle for outcome in outcomes if len(outcome.oracles) == 1)


def headline(report: Report) -> str:
    counts = ", ".join(f"{len(report.of(s))} {s}" for s in (KILLED, SURVIVED, EQUIVALENT, UNTRIED))
    return (
        f"{report.target}: {len(report.outcomes)} mutants: {counts}; {100 * report.kill_rate:.1f} % of those that are "
        f"not equivalent killed, median {_median(report.of(KILLED)):.1f} s; {report.seconds:.0f} s on {report.workers} "
        f"workers, {report.cpu_seconds:.0f} CPU s"
    )


def _median(outcomes: Sequence[Outcome]) -> float:
    return round(median([outcome.seconds for outcome in outcomes]), 2) if outcomes else 0.0


def _markdown(report: Report) -> Iterator[str]:
    yield f"## Mutants of {report.target}"
    yield ""
    yield headline(report) + "."
    yield ""
    yield from _table("operator", report, lambda outcome: outcome.operator)
    yield from _table("runner", report, lambda outcome: outcome.runner)
    first, any_of = Counter(o.oracle for o in report.of(KILLED)), Counter(n for o in report.outcomes for n in o.oracles)
    only = alone(report.outcomes)
    yield "| oracle | fails on | first of several | alone |"
    yield "|---|---|---|---|"
    for oracle, count in any_of.most_common():
        yield f"| `{oracle}` | {count} | {first[oracle]} | {only[oracle]} |"
    yield ""
    for title, outcomes in (
        ("Survivors without an explanation", report.of(SURVIVED)),
        ("Kept as equivalent, and killed", report.wrongly_claimed),
        ("Not tried", report.of(UNTRIED)),
    ):
        if outcomes:
            yield f"### {title}"
            yield ""
            for outcome in outcomes:
                mutant = outcome.mutant
                yield f"- `{mutant.file}:{mutant.line}` {mutant.function} ({mutant.operator}; {outcome.runner})"
                yield f"  `{_short(mutant.old)}` -> `{_short(mutant.new)}` {outcome.reason or outcome.where}".rstrip()
            yield ""


def _table(title: str, report: Report, of: Callable[[Outcome], str]) -> Iterator[str]:
    names = sorted({of(outcome) for outcome in report.outcomes})
    yield f"| {title} | killed | survived | equivalent |"
    yield "|---|---|---|---|"
    for name in names:
        outcomes = [outcome for outcome in report.outcomes if of(outcome) == name]
        counts = " | ".join(str(sum(o.state == state for o in outcomes)) for state in (KILLED, SURVIVED, EQUIVALENT))
        yield f"| {name} | {counts} |"
    yield ""


def _short(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."
