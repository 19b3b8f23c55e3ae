"""Whether known issues explain a failing case: an experiment, on the same release with what mends them.

A case is explained if nothing of it fails any more there, or only what an issue that nothing is known to mend names in
full. What else is left is a failure of its own. What runs is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from repro.cases.case import Case, Target
from repro.cases.codec import digest
from repro.ledger.known import Issue
from repro.shrinking.replay import Outcome
from repro.traces.finding import ENDED, RAISED, Status, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """A target with known bugs mended. names: the backports that could be made there, in their order."""

    target: Target
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """issues: those that a failing case is put down to. left: what still fails, the failures of its own; empty if it
    is explained. mended: where it was run again, None if nowhere. doubt: why nothing could be said; then left is all
    that failed."""

    issues: tuple[Issue, ...] = ()
    left: tuple[Verdict, ...] = ()
    mended: Mended | None = None
    doubt: str = ""

    @property
    def holds(self) -> bool:
        """Whether known issues are all that is wrong."""
        return bool(self.issues) and not self.left and not self.doubt

    def __str__(self) -> str:
        """For a person, one line."""
        titles = "; ".join(map(str, self.issues))
        change = " where known bugs are mended" if self.mended else ""
        if self.holds:
            return f"passes{change}: {titles}" if self.mended else f"as is known: {titles}"
        if self.doubt:
            return f"not explained by a known issue: {self.doubt}"
        kinds = ", ".join(f"{v.oracle} at {v.where}" for v in self.left)
        return f"still fails{change}: {kinds}" if self.mended else f"no known issue explains {kinds}"


def to_json(explained: Explained) -> dict[str, object]:
    """All of it as plain dicts, lists and texts."""
    return {
        "explained": explained.holds,
        "line": str(explained),
        "issues": [issue.title for issue in explained.issues],
        "mended": list(explained.mended.names) if explained.mended else [],
        "left": [{"oracle": v.oracle, "where": v.where, "detail": v.detail} for v in explained.left],
    }


# The target with as many of these backports as can be made there; None if none can. OSError if the disk refuses.
Mend = Callable[[Target, Sequence[str]], Mended | None]
# Verdicts of so many runs of a case on a target, as many as took place; and why others did not.
Run = Callable[[Target, Case, int], tuple[Sequence[Sequence[Verdict]], str]]
# What the verdicts of a run come to.
Overall = Callable[[Sequence[Verdict]], Status]


@dataclass
class Explainer:
    """Mutable: it remembers each case on each target. release_of: what a target is a release of."""

    issues: Sequence[Issue]
    mend: Mend
    run: Run
    overall: Overall
    release_of: Callable[[Target], str]
    _mended: dict[Target, Mended | None] = field(default_factory=dict)
    _runs: dict[tuple[Target, str, int], tuple[Sequence[Sequence[Verdict]], str]] = field(default_factory=dict)

    def explain(self, case: Case, target: Target, failures: Sequence[Verdict], tries: int = 1) -> Explained:
        """failures: what failed on the target as it is."""
        setup = (case.setup.runner, case.setup.backend)
        issues = [issue for issue in self._holding(target) if issue.concerns(setup)]
        mended = self.mended(target)
        failing, doubt = tuple(failures), ""
        if mended:
            failing, doubt = self._left(case, mended, tries, {v.oracle for v in failures})
        mended_names = set(mended.names) if mended else set()
        applied = [issue for issue in issues if set(issue.mended_by) & mended_names]
        others = [issue for issue in issues if not set(issue.mended_by) & mended_names]
        named = {v: next((issue for issue in others if issue.names(setup, v)), None) for v in failing}
        by_name = [issue for issue in named.values() if issue]
        rest = tuple(v for v, issue in named.items() if issue is None)
        if doubt:
            return Explained(left=tuple(failures), mended=mended, doubt=doubt)
        spoken = _speaking_of(failures, setup, applied)
        return Explained(issues=tuple(dict.fromkeys([*spoken, *by_name])), left=rest, mended=mended)

    def of_outcome(self, outcome: Outcome) -> Explained | None:
        """The same of a stored case that was run; None if nothing failed."""
        failures = {(v.oracle, v.where): v for run in outcome.runs for v in run if v.status is Status.FAIL}
        if not failures:
            return None
        return self.explain(outcome.case, outcome.target, list(failures.values()), len(outcome.runs))

    def mended(self, target: Target) -> Mended | None:
        """Where cases are run to see what known issues leave, all of those that hold there being mended at once: one
        worker for a release. None where nothing is known to mend any."""
        wanted = dict.fromkeys(name for issue in self._holding(target) for name in issue.mended_by)
        if target not in self._mended:
            self._mended[target] = self.mend(target, tuple(wanted)) if wanted else None
        return self._mended[target]

    def _holding(self, target: Target) -> list[Issue]:
        release = self.release_of(target)
        return [issue for issue in self.issues if issue.holds_on(release, target.engine)]

    def _left(
        self, case: Case, mended: Mended, tries: int, oracles: Collection[str]
    ) -> tuple[tuple[Verdict, ...], str]:
        """The failures that are there with the changes made, each once; and why that cannot be said. oracles: what
        failed without them: where all of that passes, the rest may have nothing to judge, as of a case without a graph
        or of idle batches alone."""
        key = (mended.target, digest(case), tries)
        if key not in self._runs:
            self._runs[key] = self.run(mended.target, case, tries)
        runs, trouble = self._runs[key]
        failures = {(v.oracle, v.where): v for run in runs for v in run if v.status is Status.FAIL}
        if failures:
            return tuple(failures.values()), ""
        if trouble or not runs:
            return (), f"with known changes applied it cannot be run: {trouble}"
        if any(self.overall(run) is not Status.PASS and not _right_again(run, oracles) for run in runs):
            return (), "with known changes applied it cannot be judged"
        return (), ""


def _right_again(run: Sequence[Verdict], oracles: Collection[str]) -> bool:
    """Whether it ended well, what these oracles say is right, and none raised."""
    passed = {verdict.oracle for verdict in run if verdict.status is Status.PASS}
    return {ENDED, *oracles} <= passed and not any(verdict.where == RAISED for verdict in run)


def _speaking_of(failures: Sequence[Verdict], setup: tuple[str, str], applied: Sequence[Issue]) -> Sequence[Issue]:
    """Of issues that were mended together, those that name what failed, else those that name its oracle."""
    oracles = {f"{'/'.join(setup)} {v.oracle}" for v in failures}
    by_name = [issue for issue in applied if any(issue.names(setup, v) for v in failures)]
    by_oracle = [issue for issue in applied if oracles & {text.partition(": ")[0] for text in issue.explains}]
    return by_name or by_oracle or applied
