"""The last lines of a hunt: what was found, what it means, where to look, how to replay it; twelve at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from reports.wording import counted, listed, replay_command, shortened
from repro.cases.case import Target
from repro.ledger.known import Issue, explained
from repro.traces.campaign import Campaign, CampaignFinding, Replay
from repro.traces.finding import Status
from repro.upstream.findings import PublishedBug, of_seed

SHOWN = 2
LINE_CHARS = 200


def closing(
    campaigns: Sequence[Campaign],
    replays: Sequence[Replay],
    issues: Sequence[Issue],
    bugs: Sequence[PublishedBug],
    report: Path,
    python: str,
) -> list[str]:
    """The lines of a hunt that has ended. issues, bugs: the known ones. report: its file. python: the interpreter of
    this checkout, as a person here types it."""
    findings = [finding for campaign in campaigns for finding in campaign.findings]
    sure = [finding for finding in findings if finding.failed]
    cases = counted(sum(campaign.cases for campaign in campaigns), "case")
    places = listed([str(campaign.target) for campaign in campaigns])
    lines = [f"{counted(len(sure), 'failure')} found in {cases} on {places}."]
    for number, finding in enumerate(sure[:SHOWN], start=1):
        lines += _about(number, finding, findings, replays, issues, bugs)
        lines.append(f"   replay: {replay_command(finding.seed, finding.target, python)}")
    more = [f"{counted(len(sure) - SHOWN, 'more failure')} in the report"] if len(sure) > SHOWN else []
    if unsure := sum(finding.tried > 0 for finding in findings) - len(sure):
        more.append(f"{unsure} seen once and never again in a fresh process")
    if untried := sum(not finding.tried for finding in findings):
        more.append(f"{untried} seen once and not tried again, as the time was up")
    return [*(shortened(line, LINE_CHARS) for line in lines), *filter(None, ["; ".join(more)]), f"report: {report}"]


def _about(
    number: int,
    finding: CampaignFinding,
    findings: Sequence[CampaignFinding],
    replays: Sequence[Replay],
    issues: Sequence[Issue],
    bugs: Sequence[PublishedBug],
) -> Iterator[str]:
    place = f"{finding.where or finding.oracle} ({finding.oracle})"
    runs = f"failed {finding.failed} of {finding.tried} runs"
    yield "; ".join([f"{number}. {finding.target}: {place}, {runs}", *_elsewhere(finding, findings, replays)])
    target = Target.parse(finding.target)
    issue = explained(issues, target.sglang, target.engine, finding.case.setup, finding.oracle, finding.fingerprint)
    seeds = [probe.removeprefix("seed:") for probe in issue.probes if probe.startswith("seed:")] if issue else []
    bug = next(filter(None, (of_seed(bugs, seed) for seed in seeds)), None)
    if bug:
        yield f"   means: {bug.symptom}: {bug.title}"
    else:
        yield f"   means: {issue.title if issue else 'no known bug of sglang explains it'}"
    page = f"; docs/findings/{bug.name}.md" if bug else ""
    yield f"   look at: {finding.cell or finding.detail}{page}"


def _elsewhere(
    finding: CampaignFinding, findings: Sequence[CampaignFinding], replays: Sequence[Replay]
) -> Iterator[str]:
    for other in findings:
        if other.fingerprint == finding.fingerprint and other.target != finding.target:
            yield f"{other.target} has it, too"
    for replay in replays:
        if (replay.seed, replay.fingerprint) == (finding.seed, finding.fingerprint):
            if replay.failed:
                yield f"{replay.target} has it, too"
            elif replay.status is Status.PASS:
                yield f"{replay.target} does not have it"
            else:
                yield f"{replay.target} cannot tell"
