"""Explains a failing case by known issues: an experiment, on the same release with what mends them.

A failure is explained if it goes away there, or if an issue that nothing is known to mend names it in full. What else
is left is a failure of its own. What runs is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from repro.cases.case import Case, Setup, Target
from repro.cases.codec import digest
from repro.ledger.known import Issue
from repro.shrinking.replay import Outcome
from repro.traces.finding import ENDED, RAISED, TIE, Status, Verdict

# How many runs may be spent on which of several issues it is, each on a target of its own that must be imported.
SINGLE_RUNS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """A target with known bugs mended. names: the backports that could be made there, in their order."""

    target: Target
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """issues: those that failures are put down to. left: the other failures, in the form in which the target shows
    them; empty if all is explained. only_mended: failures that the case has only where it was run again: a patch
    makes them, or the known issue hides them; without those that an issue that nothing mends names in full. mended:
    where that was, None if nowhere. doubt: why nothing could be said; then left is all that failed."""

    issues: tuple[Issue, ...] = ()
    left: tuple[Verdict, ...] = ()
    only_mended: tuple[Verdict, ...] = ()
    mended: Mended | None = None
    doubt: str = ""

    @property
    def holds(self) -> bool:
        """True if known issues are all that is wrong."""
        return bool(self.issues) and not self.left and not self.doubt

    def __str__(self) -> str:
        """For a person, one line."""
        titles = "; ".join(map(str, self.issues))
        change = " where known bugs are mended" if self.mended else ""
        others = f"; fails there alone: {_kinds(self.only_mended)}" if self.only_mended else ""
        if self.holds:
            made = set(self.mended.names) if self.mended else set()
            by_experiment = all(made & {*issue.mended_by} for issue in self.issues)
            passes = f"{'does not fail so' if others else 'passes'}{change}" if by_experiment else "as is known"
            return f"{passes}: {titles}{others}"
        if self.doubt:
            return f"not explained by a known issue: {self.doubt}"
        left = _kinds(self.left)
        return f"still fails{change}: {left}{others}" if self.mended else f"no known issue explains {left}"


def _kinds(failures: Sequence[Verdict]) -> str:
    return ", ".join(f"{verdict.oracle} at {verdict.where}" for verdict in failures)


def to_json(explained: Explained) -> dict[str, object]:
    """All of it as plain dicts, lists and texts."""

    def forms(failures: Sequence[Verdict]) -> list[dict[str, str]]:
        return [{"oracle": v.oracle, "where": v.where, "detail": v.detail} for v in failures]

    return {
        "explained": explained.holds,
        "line": str(explained),
        "issues": [issue.title for issue in explained.issues],
        "mended": list(explained.mended.names) if explained.mended else [],
        "left": forms(explained.left),
        "only_mended": forms(explained.only_mended),
    }


# The target with as many of these backports as can be made there; None if none can. OSError if the disk refuses.
Mend = Callable[[Target, Sequence[str]], Mended | None]
# Verdicts of so many runs of a case on a target, as many as took place; and why others did not.
Run = Callable[[Target, Case, int], tuple[Sequence[Sequence[Verdict]], str]]
# The merged status of the verdicts of a run.
Overall = Callable[[Sequence[Verdict]], Status]


@dataclass
class Explainer:
    """Mutable: it remembers each case on each target. release_of: the release that a target counts as. foresee: told
    which cases will be run on a target next, has them run ahead."""

    issues: Sequence[Issue]
    mend: Mend
    run: Run
    overall: Overall
    release_of: Callable[[Target], str]
    foresee: Callable[[Target, Sequence[Case]], None] = lambda target, cases: None
    _mended: dict[tuple[Target, tuple[str, ...]], Mended | None] = field(default_factory=dict)
    _runs: dict[tuple[Target, str, int], tuple[Sequence[Sequence[Verdict]], str]] = field(default_factory=dict)
    _single: dict[tuple[Target, frozenset[str]], Issue | None] = field(default_factory=dict)
    _single_runs: int = 0

    def explain(self, case: Case, target: Target, failures: Sequence[Verdict], tries: int = 1) -> Explained:
        """failures: what failed on the target as it is."""
        issues = [issue for issue in self._holding(target) if issue.concerns(case.setup)]
        mended = self.mended(target)
        there, doubt = tuple(failures), ""
        if mended:
            there, doubt = self._failing(case, mended, tries, {v.oracle for v in failures})
        if doubt:
            return Explained(left=tuple(failures), mended=mended, doubt=doubt)
        applied = [issue for issue in issues if mended and set(issue.mended_by) & set(mended.names)]
        others = [issue for issue in issues if issue not in applied]
        seen, still = {v.fingerprint for v in failures}, {v.fingerprint for v in there}
        gone = [v for v in failures if v.fingerprint not in still] if applied else []
        cut_off: list[Verdict] = []
        if mended and any(v.oracle == ENDED and v.fingerprint not in seen for v in there):
            # The patches end the run early: what it did not come to is asked of each of them alone.
            runs, _ = self._ran(mended.target, case, tries)
            cut_off = [v for v in gone if not _is_judged(v, runs)]
            gone = [v for v in gone if v not in cut_off]
        by_experiment = [self._responsible(case, target, gone, applied)] if gone else []
        if cut_off and (alone := self._mending(case, target, cut_off, _speaking_of(cut_off, case.setup, applied))):
            by_experiment.append(alone)
            gone += cut_off
        named = {v: _unmended(v, case.setup, others) for v in failures if v not in gone}
        return Explained(
            issues=tuple(dict.fromkeys([*by_experiment, *filter(None, named.values())])),
            left=tuple(v for v, issue in named.items() if issue is None),
            only_mended=tuple(v for v in there if v.fingerprint not in seen and not _unmended(v, case.setup, others)),
            mended=mended,
        )

    def of_outcome(self, outcome: Outcome) -> Explained | None:
        """The same of a stored case that was run; None if nothing failed."""
        failures = {v.fingerprint: v for run in outcome.runs for v in run if v.status is Status.FAIL}
        if not failures:
            return None
        return self.explain(outcome.case, outcome.target, list(failures.values()), len(outcome.runs))

    def mended(self, target: Target, issue: Issue | None = None) -> Mended | None:
        """The target on which cases are run to see what known issues leave, all of those that hold there being mended
        at once, or this one alone. None where nothing is known to mend any."""
        issues = [issue] if issue else self._holding(target)
        backports = tuple(dict.fromkeys(name for issue in issues for name in issue.mended_by))
        if (target, backports) not in self._mended:
            self._mended[target, backports] = self.mend(target, backports) if backports else None
        return self._mended[target, backports]

    def _holding(self, target: Target) -> list[Issue]:
        release = self.release_of(target)
        return [issue for issue in self.issues if issue.holds_on(release, target.engine)]

    def _failing(
        self, case: Case, mended: Mended, tries: int, oracles: Collection[str]
    ) -> tuple[tuple[Verdict, ...], str]:
        """The failures that are there with the changes made, each once; and why that cannot be said. oracles: what
        failed without them: where all of that passes, the rest may have nothing to judge, as of a case without a graph
        or of idle batches alone."""
        runs, trouble = self._ran(mended.target, case, tries)
        failures = {v.fingerprint: v for run in runs for v in run if v.status is Status.FAIL}
        if failures:
            return tuple(failures.values()), ""
        if trouble or not runs:
            return (), f"with known changes applied it cannot be run: {trouble}"
        if any(self.overall(run) is not Status.PASS and not _right_again(run, oracles) for run in runs):
            return (), "with known changes applied it cannot be judged"
        return (), ""

    def _ran(self, target: Target, case: Case, tries: int) -> tuple[Sequence[Sequence[Verdict]], str]:
        key = (target, digest(case), tries)
        if key in self._runs:
            return self._runs[key]
        runs, trouble = self.run(target, case, tries)
        if trouble:  # as on a loaded host; a known failure would stay a finding for it
            runs, trouble = self.run(target, case, tries)
        if not trouble:
            self._runs[key] = runs, trouble
        return runs, trouble

    def _responsible(self, case: Case, target: Target, gone: Sequence[Verdict], applied: Sequence[Issue]) -> Issue:
        """The issue, of those mended together, to which these failures are put down: one that names them, else
        the first that makes them go away alone. What fails alike is asked for once."""
        likely = _speaking_of(gone, case.setup, applied)
        if len(likely) == 1:
            return likely[0]
        return self._mending(case, target, gone, likely) or likely[0]

    def _mending(self, case: Case, target: Target, gone: Sequence[Verdict], issues: Sequence[Issue]) -> Issue | None:
        """The first of these issues that makes the failures go away alone."""
        key = (target, frozenset(verdict.fingerprint for verdict in gone))
        if key not in self._single:
            self._single[key] = next((i for i in issues if self._goes_away(case, target, gone, i)), None)
        return self._single[key]

    def _goes_away(self, case: Case, target: Target, gone: Sequence[Verdict], issue: Issue) -> bool:
        mended = self.mended(target, issue)
        if mended is None or self._single_runs >= SINGLE_RUNS:
            return False
        self._single_runs += 1
        runs, _ = self._ran(mended.target, case, 1)
        still = {verdict.fingerprint for run in runs for verdict in run if verdict.status is Status.FAIL}
        gone_there = not still & {verdict.fingerprint for verdict in gone}
        return bool(runs) and gone_there and all(_is_judged(verdict, runs) for verdict in gone)


def _unmended(failure: Verdict, setup: Setup, issues: Sequence[Issue]) -> Issue | None:
    """The first of these issues that names the failure in full."""
    return next((issue for issue in issues if issue.explains_unmended(setup, failure)), None)


def _is_judged(failure: Verdict, runs: Sequence[Sequence[Verdict]]) -> bool:
    """True if a run came to its end, or so far that this oracle could say something else."""
    answers = [(v.oracle, v.status) for run in runs for v in run if v.status is not Status.UNKNOWN]
    return failure.oracle in dict(answers) or (ENDED, Status.PASS) in answers


def _right_again(run: Sequence[Verdict], oracles: Collection[str]) -> bool:
    """True if the run ended well, these oracles passed, and none raised. Of several, some may tie: that is no failure,
    and those that passed show that what was wrong is right."""
    passed = {verdict.oracle for verdict in run if verdict.status is Status.PASS}
    tied = {verdict.oracle for verdict in run if verdict.status is Status.UNKNOWN and verdict.where == TIE}
    right = ENDED in passed and {*oracles} <= passed | tied and not passed.isdisjoint(oracles)
    return right and not any(verdict.where == RAISED for verdict in run)


def _speaking_of(failures: Sequence[Verdict], setup: Setup, applied: Sequence[Issue]) -> Sequence[Issue]:
    """The issues, of those mended together, that name what failed, else those that name its oracle; those that name
    the most oracles first."""
    oracles = {f"{v.runner or setup.runner}/{setup.backend} {v.oracle}" for v in failures}

    def named(issue: Issue) -> int:
        return len(oracles & {text.partition(": ")[0] for text in issue.explains})

    by_name = [issue for issue in applied if any(issue.names(setup, v) for v in failures)]
    by_oracle = [issue for issue in applied if named(issue)]
    return sorted(by_name or by_oracle or applied, key=named, reverse=True)
