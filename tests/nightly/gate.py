"""The conclusion of a nightly run from its measurements: green or red, and why, in words for a person.

Green: everything is as expected. Red: a failure that is not a known issue; a known issue that is gone; a target that
could be measured before and cannot be now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from repro.cases.places import markdown
from repro.ledger.explain import Explained
from repro.ledger.known import Issue
from repro.ledger.read import History
from repro.ledger.rows import ERROR, STATUSES, UNSUPPORTED, CheckRow, FixRow
from repro.ledger.states import CANNOT_RUN, KNOWN, NEW, PASSING, State, measurements, states
from repro.ledger.unfinished import NOT_ENDED
from repro.traces.campaign import Campaign, CampaignFinding
from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Status

# Changes of state, from and to, that are no news; "": there was none before.
_NO_NEWS = frozenset({(NEW, KNOWN), (CANNOT_RUN, PASSING), ("", KNOWN), ("", PASSING), ("", CANNOT_RUN)})
FAIL, PASS, UNKNOWN = Status.FAIL.name, Status.PASS.name, Status.UNKNOWN.name


class Color(StrEnum):
    """GREEN: as it is to be. KNOWN: fails, and that is known. SKIPPED: could not be measured, and never could. RED."""

    GREEN = "green"
    KNOWN = "known"
    SKIPPED = "skipped"
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    color: Color
    text: str = ""


def judge_check(
    row: CheckRow, before: State | None, issue: Issue | None, explained: Explained | None = None
) -> Judgement:
    """The judgement on a stored seed, or a known finding, of tonight. before: its state before this run. issue: the
    known issue that it is the probe of on this target. explained: whether known issues explain how it fails, if it
    does."""
    what = f"{row.subject} on {row.target}"
    if row.status == ERROR:
        return Judgement(color=Color.RED, text=f"{what} could not be run: {row.reason}")
    if row.fingerprint and explained and explained.holds:
        return Judgement(color=Color.KNOWN, text=f"{what} fails, and {explained}")
    if row.fingerprint and issue:
        more = explained or "nothing was put to the test"
        return Judgement(color=Color.RED, text=f"{what} fails by more than the known issue {issue}: {more}")
    if row.status in (UNSUPPORTED, UNKNOWN):
        if row.status == UNKNOWN and row.fingerprint:
            return Judgement(color=Color.RED, text=f"{what} {row.reason}")
        if before and before.measured:
            return Judgement(color=Color.RED, text=f"{what} was measured before, and cannot be now: {row.reason}")
        return Judgement(color=Color.SKIPPED, text=f"{what} cannot be measured: {row.reason}")
    if row.status == FAIL:
        seen = f"{row.oracle} at {row.where}: {row.failed} of {row.tried} runs"
        if row.expected == FAIL:
            return Judgement(color=Color.GREEN)
        if row.expected == PASS:
            return Judgement(color=Color.RED, text=f"{what} fails, and must pass: {seen}")
        return Judgement(color=Color.RED, text=f"{what} fails, not a known issue: {seen}")
    if issue and row.subject in issue.probes:
        return Judgement(color=Color.RED, text=f"{what} passes now: take this target out of the known issue {issue}")
    if row.expected == FAIL:
        return Judgement(color=Color.RED, text=f"{what} passes, but its file says that it fails there")
    return Judgement(color=Color.GREEN)


def judge_campaign(done: Campaign, before: Sequence[Campaign]) -> Judgement:
    """The judgement of a campaign that ran with the known issues, so that its findings are what these do not explain.
    before: earlier campaigns of the same target, runner and backend."""
    what = f"{done.target} {done.runner}/{done.backend}"
    if done.error or done.stopped in ("interrupted", NOT_ENDED):
        return Judgement(color=Color.RED, text=f"{what}: {done.error or done.stopped}")

    if done.findings:
        return Judgement(color=Color.RED, text="\n".join(f"{what}: {_told(finding)}" for finding in done.findings))
    if done.errors:
        errors = (f"{what}: {count} x ERROR: {why}" for why, count in done.errors.items())
        return Judgement(color=Color.RED, text="\n".join(errors))
    if not done.judged:
        why = next(iter(done.unsupported or done.unknown), "no case was drawn")
        if any(campaign.judged for campaign in before):
            return Judgement(color=Color.RED, text=f"{what}: cases could be judged before, and none now: {why}")
        return Judgement(color=Color.SKIPPED, text=f"{what} cannot be run: {why}")
    if done.known:
        return Judgement(color=Color.KNOWN, text=f"{what}: known issues only: {'; '.join(done.known)}")
    return Judgement(color=Color.GREEN)


def _told(finding: CampaignFinding) -> str:
    again = f"failed {finding.failed} of {finding.tried} runs" if finding.failed else "seen once, and not again"
    return f"{finding.oracle} {finding.fingerprint} at {finding.where}: {again}; {finding.seed}"


def judge_fix(rows: Sequence[FixRow], code: int, error: str) -> Judgement:
    """The judgement on a fix. rows: those of its table, of all its proofs. code and error: what the command ended
    with, for when that is not in the table."""
    problems = [
        f"#{row.number} {row.runner}/{row.backend} on {row.target}: {row.problem}" for row in rows if row.problem
    ]
    if problems or code not in (ExitCode.PASS, ExitCode.UNKNOWN):
        return Judgement(color=Color.RED, text="\n".join(problems) or f"the command ended with {code}: {error}")
    missing = [f"#{row.number} {row.runner}/{row.backend}: {row.detail}" for row in rows if not row.role]
    if len(missing) == len(rows):
        return Judgement(color=Color.SKIPPED, text="; ".join(missing) or error or "there was nothing to prove")
    return Judgement(color=Color.GREEN)


def judge_issue(issue: Issue, today: date) -> Judgement:
    """Red if a known issue has expired, and somebody has to look at it again."""
    if issue.expired(today):
        return Judgement(color=Color.RED, text=f"the known issue has expired, look at it again: {issue}")
    return Judgement(color=Color.GREEN)


def changes(history: History, run: str) -> list[str]:
    """The states that changed in this run: what is new, fixed, regressed or flaky since the runs before it."""
    rows = measurements(history)
    now, before = states(rows), states(row for row in rows if row.run != run)
    lines = []
    for pair, state in now.items():
        old = before.get(pair)
        was = old.state if old else ""
        if state.since != run or was == state.state or (was, state.state) in _NO_NEWS:
            continue
        rate = f" ({state.rate:.0%} of the last runs failed)" if 0 < state.rate < 1 else ""
        lines.append(f"{state.state}: {state.subject} on {state.target}{rate}{', was ' * bool(was)}{was}")
    return sorted(lines)


def measured(history: History, run: str) -> bool:
    """True if anything was measured in this run: a run of nothing is not green."""
    checks = any(row.run == run and row.status in (PASS, FAIL) for row in history.checks)
    fixes = any(row.run == run and row.status in (PASS, FAIL) for row in history.fixes)
    return checks or fixes or any(row.run == run and row.campaign.judged for row in history.campaigns)


def summary(history: History, run: str, red: Sequence[str], skipped: Sequence[str]) -> Iterator[str]:
    """The run as Markdown, a line each, as a step summary of GitHub shows it."""
    yield f"## eagleeye nightly: {'red' if red else 'green'}"
    yield ""
    for title, texts in (("Red because", red), ("Since the last run", changes(history, run)), ("Skipped", skipped)):
        if texts:
            yield f"**{title}**"
            yield ""
            yield from (f"- {markdown(text)}" for text in texts)
            yield ""
    yield from _table("Stored seeds and known findings", ("target", *STATUSES), _checks(history, run))
    yield from _table("Fixes", ("fix", "runner", "engine", "holds"), _fixes(history, run))
    yield from _table(
        "Campaigns", ("target", "runner", "cases", "judged", "errors", "findings", "seconds"), _campaigns(history, run)
    )


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    if rows:
        yield f"**{title}**"
        yield ""
        yield f"| {' | '.join(heads)} |"
        yield f"|{'---|' * len(heads)}"
        for row in rows:
            yield f"| {' | '.join(markdown(str(cell)) for cell in row)} |"
        yield ""


def _checks(history: History, run: str) -> list[tuple[object, ...]]:
    counts: dict[str, Counter[str]] = {}
    for row in history.checks:
        if row.run == run:
            counts.setdefault(row.target, Counter())[row.status] += 1
    names = STATUSES
    return [(target, *(count[name] for name in names)) for target, count in sorted(counts.items())]


def _fixes(history: History, run: str) -> list[tuple[object, ...]]:
    proofs: dict[tuple[object, ...], bool | None] = {}
    for row in history.fixes:
        if row.run == run:
            key = (f"#{row.number} {row.title}", f"{row.runner}/{row.backend}", row.engine)
            proofs[key] = None if not row.role else proofs.get(key, True) is True and not row.problem
    words = {True: "yes", False: "no", None: "not covered"}
    return [(*key, words[holds]) for key, holds in proofs.items()]


def _campaigns(history: History, run: str) -> list[tuple[object, ...]]:
    return [
        (
            done.target,
            f"{done.runner}/{done.backend}",
            done.cases,
            done.judged,
            sum(done.errors.values()),
            len(done.findings),
            round(done.seconds),
        )
        for done in (row.campaign for row in history.campaigns if row.run == run)
    ]
