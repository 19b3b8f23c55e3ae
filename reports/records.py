"""A campaign's JSON record in the form of a ledger's history, so that both are reported in one way."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from repro.cases.bounded_file import read_text
from repro.cases.case import problems
from repro.cases.codec import Seed, dumps
from repro.ledger.read import History
from repro.ledger.rows import SEED, CampaignRow, CheckRow, FindingRow, Run
from repro.ledger.run import check_of_replay
from repro.traces.campaign import Campaign, CampaignFinding, Replay, loads
from repro.traces.typed import BadRecord

# A campaign's record: its counts and its findings, with their cases.
_BYTES_MAX = 256 << 20


def read_records(paths: Sequence[Path]) -> History:
    """The campaigns and replays of all files together. BadRecord, naming the file, if one is not a record."""
    campaigns: list[Campaign] = []
    replays: list[Replay] = []
    for path in paths:
        try:
            more_campaigns, more_replays = loads(read_text(path, _BYTES_MAX))
        except OSError as error:
            raise BadRecord(f"{path}: {error.strerror or error}") from error
        except BadRecord as error:
            raise BadRecord(f"{path}: {error}") from error
        campaigns += more_campaigns
        replays += more_replays
    return history_of(campaigns, replays)


def history_of(campaigns: Sequence[Campaign], replays: Sequence[Replay]) -> History:
    """One run, in which all of this was done."""
    run = Run(
        id=_id(campaigns, replays),
        kind="campaign",
        started=min((campaign.started for campaign in campaigns), default=""),
        ended=max((campaign.ended for campaign in campaigns), default=""),
    )
    findings = [(campaign, finding) for campaign in campaigns for finding in campaign.findings]
    known = {finding.fingerprint for _, finding in findings}
    return History(
        path=Path(),
        runs=(run,) if campaigns or replays else (),
        campaigns=tuple(CampaignRow(run=run.id, campaign=campaign, at=campaign.ended) for campaign in campaigns),
        findings=tuple(_finding(run, campaign, finding) for campaign, finding in findings),
        checks=tuple(_check(run, replay, replay.fingerprint in known) for replay in replays),
    )


def _id(campaigns: Sequence[Campaign], replays: Sequence[Replay]) -> str:
    """The same for the same content, as the page must be."""
    texts = [f"{record.target} {record.seed} {record.started}" for record in campaigns] + [
        repr(asdict(record)) for record in replays
    ]
    return hashlib.sha256("\n".join(texts).encode(errors="replace")).hexdigest()[:32]


def _finding(run: Run, campaign: Campaign, finding: CampaignFinding) -> FindingRow:
    return FindingRow(
        run=run.id,
        target=finding.target,
        fingerprint=finding.fingerprint,
        runner=finding.case.setup.runner,
        backend=finding.case.setup.backend,
        oracle=finding.oracle,
        where=finding.where,
        detail=finding.detail,
        # A case that is not valid has no seed file; the page says why it is not valid.
        seed_text="" if problems(finding.case) else dumps(Seed(case=finding.case)),
        failed=finding.failed,
        tried=finding.tried,
        cell=finding.cell,
        at=campaign.ended,
    )


def _check(run: Run, replay: Replay, is_finding: bool) -> CheckRow:
    """A replay of a case that these campaigns did not find is one of a stored seed."""
    row = check_of_replay(run.id, replay)
    return replace(row, at=run.ended, subject=row.subject if is_finding else f"{SEED}{replay.seed}")
