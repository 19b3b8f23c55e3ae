"""The rows of the ledger: what was run, what came of it, as frozen values. ledger.py writes them, ledger_read.py reads
them, states.py draws conclusions from them.

Times are UTC, ISO 8601 with microseconds, so that they sort as texts. A target is in its text form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from repro.traces.campaign import Campaign
from repro.traces.finding import Cell

# What a run of a case comes to. UNSUPPORTED: declared before it was tried. ERROR: an error of the harness.
STATUSES = ("PASS", "UNKNOWN", "FAIL", "UNSUPPORTED", "ERROR")
UNSUPPORTED, ERROR = "UNSUPPORTED", "ERROR"
SEED, FINDING = "seed:", "finding:"  # what a check's subject begins with


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One command, or one pytest session with all its workers. id: uuid4 in hex. kind: campaign, seeds, fixes,
    nightly, hunt. ended: empty while it is under way, and for ever if it was killed. facts: python, torch, device,
    releases, ... as far as it knew them."""

    id: str
    kind: str
    started: str
    ended: str = ""
    command: str = ""
    host: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRow:
    """One run of a drawn case. digest: repro.cases.codec.digest. replays: steps whose graph path was recorded. seconds:
    that the run took, without judging it. verdicts and transitions: what a campaign that is killed leaves of these
    (unfinished.py writes and reads them); empty in rows from before there were any."""

    run: str
    target: str
    runner: str
    backend: str
    topk: int
    num_steps: int
    digest: str
    status: str
    replays: int
    seconds: float
    at: str = ""
    verdicts: str = ""
    transitions: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseCount:
    """The number of case rows that agree in all of these fields, and their sums."""

    run: str
    target: str
    runner: str
    backend: str
    topk: int
    num_steps: int
    status: str
    count: int
    replays: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignRow:
    """A campaign that came to its end, however it did: transitions, stages, verdicts per oracle."""

    run: str
    campaign: Campaign
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """A failure that a campaign found, in its best known form: seed_text is the whole seed file. fingerprint: of
    runner, backend, oracle and where. failed of tried runs in fresh processes; 0 of 0: not confirmed yet, or the
    campaign was killed before it was."""

    run: str
    target: str
    fingerprint: str
    runner: str
    backend: str
    oracle: str
    where: str
    detail: str
    seed_text: str
    failed: int
    tried: int
    cell: Cell | None = None
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """A stored seed or a known finding, run on a target.

    subject: "seed:<file name>" or "finding:<fingerprint>". expected: "PASS", "FAIL", or "" where nothing is said.
    fingerprint, oracle, where: of the failure that most runs showed. failed: in so many of the tried runs that took
    place. reason: why it could not be run, or came to UNKNOWN. backend: empty in rows from before it was stored.
    """

    run: str
    target: str
    subject: str
    runner: str
    status: str
    expected: str = ""
    fingerprint: str = ""
    oracle: str = ""
    where: str = ""
    failed: int = 0
    tried: int = 0
    reason: str = ""
    seconds: float = 0.0
    backend: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixRow:
    """One stop of a proof that an upstream fix makes the difference.

    role: buggy, fixed, without (the fixed release, without the fix), newest; "" where the proof was not run at all, for
    which detail says why. target: where it ran. expected and status: PASS, FAIL, ... problem: why the stop does not
    hold; empty if it does. detail: for a person.
    """

    run: str
    number: int
    title: str
    runner: str
    engine: str
    role: str
    target: str
    expected: str
    status: str
    oracle: str
    seed: str
    seconds: float = 0.0
    problem: str = ""
    detail: str = ""
    backend: str = "triton"
    at: str = ""


Row = CaseRow | CampaignRow | FindingRow | CheckRow | FixRow
