"""Functions that run, judge and patch, passed in by the command line: bisection, patch tests and exported
scripts know no runner and no oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from repro.cases.case import Case, Target
from repro.shrinking.confirm import Judge, Run, attempts
from repro.shrinking.replay import trouble
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Trace

# The text of a file of sglang by its path below the import path (sglang/srt/...); None: the file goes.
Contents = Mapping[str, str | None]


class Refused(Exception):
    """The request makes no sense here. The text, one line, says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """lacks: why a target cannot be used here, empty if it can. opened: runs cases on a target, each in a process of
    its own, while it is entered; noting: the same, with every write into an input buffer in the trace. judge: what all
    oracles say. overall: what their verdicts come to. source: a target's import path. overlay: the target that is this
    one with these files in place of its own, under that name; Refused if it cannot be made. releases: those that can
    be used with this engine, oldest first. alone: the interpreter and the environment in which a file finds this
    target's sglang and nothing of ours. patience: seconds that such a file may take. named: a target in words that
    name no folder of this machine. tell: one line of progress."""

    lacks: Callable[[Target], str]
    opened: Callable[[Target], AbstractContextManager[Run]]
    noting: Callable[[Target], AbstractContextManager[Run]]
    judge: Judge
    overall: Callable[[Sequence[Verdict]], Status]
    source: Callable[[Target], Path]
    overlay: Callable[[Target, str, Contents], Target]
    releases: Callable[[str], tuple[str, ...]]
    alone: Callable[[Target], tuple[Path, Mapping[str, str]]]
    patience: float
    named: Callable[[Target], str]
    tell: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The failure that is followed from target to target. where: empty if any place will do."""

    oracle: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.oracle} at {self.where}" if self.where else self.oracle


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The verdict of one run on the wanted failure. bad: None without a verdict: the case could not be run, or its
    oracle could not judge. why: then the reason. others: the failures besides it, as "oracle at where"."""

    bad: bool | None
    why: str = ""
    others: frozenset[str] = frozenset()
    verdict: Verdict | None = None


def sighting(trace: Trace, verdicts: Sequence[Verdict], failure: Wanted) -> Sighting:
    """The sighting of this run: it shows the failure, shows that it is not there, or says nothing.

    The wanted oracle itself must have said PASS, or have failed elsewhere, for a run to count as free of the failure:
    a run that ended before the oracle had something to judge is no good release.
    """
    if not took_place(trace):
        return Sighting(bad=None, why=trouble(trace.ended))
    failures = [verdict for verdict in verdicts if verdict.status is Status.FAIL]
    matching = [v for v in failures if v.oracle == failure.oracle and failure.where in ("", v.where)]
    others = frozenset(named(verdict) for verdict in failures if verdict not in matching)
    if matching:
        return Sighting(bad=True, others=others, verdict=matching[0])
    judged = [verdict for verdict in verdicts if verdict.oracle == failure.oracle]
    if any(verdict.status is not Status.UNKNOWN for verdict in judged):
        return Sighting(bad=False, others=others)
    doubt = (judged[0].detail or judged[0].where) if judged else "it is not among the oracles"
    more = f"; {', '.join(sorted(others))} failed" if others else ""
    return Sighting(bad=None, why=f"{failure.oracle} could not judge: {doubt}{more}", others=others)


def took_place(trace: Trace) -> bool:
    return trace.ended.how.took_place


def named(verdict: Verdict) -> str:
    return f"{verdict.oracle} at {verdict.where}" if verdict.where else verdict.oracle


def runs_of(rig: Rig, run: Run, case: Case, failure: Wanted, most: int, until_bad: bool = False) -> list[Sighting]:
    """Up to so many runs; one that says nothing ends it, as what cannot be run once cannot be run twice. until_bad:
    whether the first failure ends it too."""
    seen: list[Sighting] = []
    for attempt in attempts(run, rig.judge, case, most):
        seen.append(sighting(attempt.trace, attempt.verdicts, failure))
        if seen[-1].bad is None or (until_bad and seen[-1].bad):
            break
    return seen
