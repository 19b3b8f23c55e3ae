"""After the campaigns: whether a finding of one target is in another, and a summary in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fuzz.triage import Hooks
from repro.cases.case import Target
from repro.cases.words import sentence
from repro.ledger.known import Issue, explained
from repro.shrinking.confirm import failure
from repro.shrinking.replay import Outcome, outcome_of, trouble
from repro.traces.campaign import Campaign, CampaignFinding, Replay
from repro.traces.finding import Status


def replay_on(finding: CampaignFinding, target: Target, hooks: Hooks, tries: int) -> Replay:
    """Run a found case on another target, in fresh processes, and say whether the same failure is there."""
    outcome = outcome_of(Path(finding.seed), finding.case, target, hooks.run_fresh, hooks.judge, hooks.overall, tries)
    failed = sum(failure(run, finding.fingerprint) is not None for run in outcome.runs)
    return Replay(
        seed=finding.seed,
        fingerprint=finding.fingerprint,
        target=str(target),
        status=Status.UNKNOWN if outcome.status is None else outcome.status,
        failed=failed,
        tried=len(outcome.runs),
        line=_line(outcome, failed),
        errors=len(outcome.errors),
    )


def _line(outcome: Outcome, failed: int) -> str:
    target, tried = outcome.target, len(outcome.runs)
    if failed:
        return f"{target} has it too: failed {failed} of {tried} runs"
    others = Counter(f"{other.oracle}: {other.where}" for run in outcome.runs if (other := failure(run)))
    if others:
        name, count = others.most_common(1)[0]
        return f"{target} fails in another way: {name}, {count} of {tried} runs"
    if outcome.status is Status.PASS:
        return f"{target} does not have it: the same case passed {tried} of {tried} runs"
    return f"{target}: cannot tell, {'it could not be judged' if outcome.runs else trouble(outcome.ended)}"


def summary(campaigns: Sequence[Campaign], replays: Sequence[Replay], issues: Sequence[Issue] = ()) -> list[str]:
    """The findings of each target, one line each, and the known issue that each may be."""
    lines = []
    for finding in (finding for campaign in campaigns for finding in campaign.findings):
        sure = (
            f"failed {finding.failed} of {finding.tried} runs"
            if finding.failed
            else "did not fail again in a fresh process"
        )
        place = f"{finding.target} has {finding.oracle} ({finding.where})"
        lines.append(f"{place}: {sure}, done {finding.done_seconds:.0f} s after the start")
        lines.append(f"  smallest case: {sentence(finding.case)}; {finding.seed}")
        lines.append(f"  {finding.cell or finding.detail}")
        if finding.consequences:
            lines.append(f"  consequences: {'; '.join(finding.consequences)}")
        if issue := _known(finding, issues):
            lines.append(f"  known issue: {issue.title}")
        lines += [
            f"  {replay.line}"
            for replay in replays
            if (replay.seed, replay.fingerprint) == (finding.seed, finding.fingerprint)
        ]
    if not lines:
        lines.append("no oracle failed on " + ", ".join(str(campaign.target) for campaign in campaigns))
    return lines


def _known(finding: CampaignFinding, issues: Sequence[Issue]) -> Issue | None:
    target = Target.parse(finding.target)
    return explained(issues, target.sglang, target.engine, finding.case.setup, finding.oracle, finding.fingerprint)
