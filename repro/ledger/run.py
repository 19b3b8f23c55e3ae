"""A command's part in the ledger: what it holds (traces, findings, outcomes, proofs) turned into rows of one run.

Without a ledger a LedgerRun accepts everything and stores nothing, so that no command has to ask.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from repro.cases import codec
from repro.cases.case import Case, Setup, Target
from repro.cases.codec import AboutValue, BadSeed
from repro.ledger.rows import ERROR, FINDING, SEED, UNSUPPORTED, CampaignRow, CaseRow, CheckRow, FindingRow, FixRow
from repro.ledger.unfinished import transitions_text, verdicts_text
from repro.ledger.write import RUN_VARIABLE, VARIABLE, Ledger
from repro.shrinking.replay import Outcome, trouble, wanted_oracle
from repro.shrinking.store import about
from repro.traces.campaign import Campaign, Replay, Transition
from repro.traces.finding import Finding, Status, Verdict
from repro.traces.trace import Trace
from repro.upstream.prove import ProofRow

# What is gathered of a run's facts: texts that the traces gave, at most so many of one name.
FACTS_MAX = 20


class LedgerRun:
    """One run under way. Mutable: it gathers facts. run: its id; empty without a ledger."""

    def __init__(self, ledger: Ledger | None = None, run: str = "") -> None:
        self.ledger = ledger
        self.run = run
        self._facts: dict[str, dict[str, None]] = {}

    @property
    def path(self) -> Path | None:
        return self.ledger.path if self.ledger else None

    def case(
        self,
        target: Target,
        case: Case,
        trace: Trace,
        verdicts: Sequence[Verdict],
        status: Status,
        transitions: Iterable[Transition] = (),
    ) -> None:
        """A drawn case was run and judged; transitions: what it exercised."""
        if self.ledger:
            self.ledger.case(judged_row(self.run, target, case, trace, verdicts, status, transitions))

    def case_row(self, row: CaseRow) -> None:
        """A case was run elsewhere, as a part of this run."""
        if self.ledger:
            self.ledger.case(row)

    def finding(self, finding: Finding) -> None:
        if self.ledger:
            self.ledger.finding(finding_row(self.run, finding))

    def campaign(self, campaign: Campaign) -> None:
        self.facts(campaign.facts)
        if self.ledger:
            self.ledger.campaign(CampaignRow(run=self.run, campaign=campaign))

    def outcome(self, outcome: Outcome, about: Mapping[str, AboutValue]) -> CheckRow:
        """A stored seed was run, which says this about itself. BadSeed if what it says of releases makes no sense."""
        self.facts(outcome.facts)
        return self.check(check_of_outcome(self.run, outcome, *wanted(about, outcome)))

    def found_again(self, outcome: Outcome, fingerprint: str) -> CheckRow:
        """A known finding was run."""
        self.facts(outcome.facts)
        return self.check(check_of_finding(self.run, outcome, fingerprint))

    def check(self, row: CheckRow) -> CheckRow:
        if self.ledger:
            self.ledger.check(row)
        return row

    def replay(self, replay: Replay, setup: Setup) -> None:
        """A finding was run on another target."""
        self.check(check_of_replay(self.run, replay, setup.runner, setup.backend))

    def proof(self, row: ProofRow) -> None:
        """A fix's proof was made, or could not be."""
        if self.ledger:
            for fix in fix_rows(self.run, row):
                self.ledger.fix(fix)

    def facts(self, facts: Mapping[str, str]) -> None:
        """Add facts about the place of this run."""
        for name, text in facts.items():
            texts = self._facts.setdefault(name, {})
            if len(texts) < FACTS_MAX:
                texts.update(dict.fromkeys(text.split(", ")))

    def gathered(self) -> dict[str, str]:
        return {name: ", ".join(texts) for name, texts in self._facts.items()}


def asked_for(option: Path | None) -> Path | None:
    """The ledger to write: the option's, or that of the environment."""
    return option or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)


@contextmanager
def new_run(path: Path | None, kind: str) -> Iterator[LedgerRun]:
    """A new run in this ledger, and its end, however it comes; nothing if there is no path. Where the environment names
    a run, all this is a part of that one. BadLedger."""
    if not path or os.environ.get(RUN_VARIABLE):
        with same_run(path, os.environ.get(RUN_VARIABLE, "")) as ledger_run:
            yield ledger_run
        return
    with Ledger.open(path) as ledger:
        ledger_run = LedgerRun(ledger, ledger.begin(kind))
        try:
            yield ledger_run
        finally:
            ledger.end(ledger_run.run, ledger_run.gathered())


@contextmanager
def same_run(path: Path | None, run: str) -> Iterator[LedgerRun]:
    """A run that another process has begun and will end."""
    if not path:
        yield LedgerRun()
        return
    with Ledger.open(path) as ledger:
        ledger_run = LedgerRun(ledger, run)
        try:
            yield ledger_run
        finally:
            ledger.facts(run, ledger_run.gathered())


def case_row(run: str, target: Target, case: Case, trace: Trace, status: Status) -> CaseRow:
    setup = case.setup
    return CaseRow(
        run=run,
        target=str(target),
        runner=setup.runner,
        backend=setup.backend,
        topk=setup.topk,
        num_steps=setup.num_steps,
        digest=codec.digest(case),
        status=status.name if trace.ended.how.took_place else trace.ended.how.name,
        replays=trace.replays,
        seconds=sum(trace.seconds.values()),
    )


def judged_row(
    run: str,
    target: Target,
    case: Case,
    trace: Trace,
    verdicts: Sequence[Verdict],
    status: Status,
    transitions: Iterable[Transition],
) -> CaseRow:
    """The same, with what the oracles said and what it exercised."""
    row = case_row(run, target, case, trace, status)
    return replace(row, verdicts=verdicts_text(verdicts), transitions=transitions_text(transitions))


def finding_row(run: str, finding: Finding) -> FindingRow:
    verdict = finding.verdict
    return FindingRow(
        run=run,
        target=str(finding.target),
        fingerprint=verdict.fingerprint,
        runner=finding.case.setup.runner,
        backend=finding.case.setup.backend,
        oracle=verdict.oracle,
        where=verdict.where,
        detail=verdict.detail,
        seed_text=codec.dumps(codec.Seed(about=about(finding), case=finding.case)),
        failed=finding.failed,
        tried=finding.tried,
        cell=verdict.cell,
    )


def wanted(about: Mapping[str, AboutValue], outcome: Outcome) -> tuple[str, str]:
    """The expectation of a seed for the release it was run on: PASS, FAIL or "" (none), and the oracle it fails by."""
    try:
        oracle = wanted_oracle(outcome, about, outcome.facts.get("sglang", outcome.target.sglang))
    except BadSeed:
        raise
    except ValueError:
        return "", ""  # a checkout that could not be run, or the toy: it has no release
    return ("", "") if oracle is None else (Status.FAIL.name if oracle else Status.PASS.name, oracle)


def check_of_outcome(run: str, outcome: Outcome, expects: str = "", oracle: str = "") -> CheckRow:
    """expects: PASS, FAIL, or "" where nothing is said. oracle: by which it is to fail, if by a certain one."""
    failures = [verdict for verdict in _failures(outcome) if verdict.oracle == oracle] if oracle else _failures(outcome)
    return _check(run, f"{SEED}{outcome.seed.name}", outcome, max(failures, key=outcome.failed, default=None), expects)


def check_of_finding(run: str, outcome: Outcome, fingerprint: str) -> CheckRow:
    """The check row that says if a finding is seen again, in this outcome of its case."""
    of_finding = next((verdict for verdict in _failures(outcome) if verdict.fingerprint == fingerprint), None)
    return _check(run, f"{FINDING}{fingerprint}", outcome, of_finding, "")


def _failures(outcome: Outcome) -> list[Verdict]:
    return [verdict for verdicts in outcome.runs for verdict in verdicts if verdict.status is Status.FAIL]


def _check(run: str, subject: str, outcome: Outcome, of_subject: Verdict | None, expects: str) -> CheckRow:
    """of_subject: the failure that the subject is about, if it was seen. Another failure alone leaves it UNKNOWN, with
    the other's fingerprint."""
    verdict = of_subject or outcome.verdict
    status, reason = outcome.word, ""
    if outcome.errors:
        status, reason = (
            ERROR,
            f"{len(outcome.errors)} of {len(outcome.errors) + len(outcome.runs)} runs: {outcome.errors[0]}",
        )
    elif outcome.status is None:
        reason = trouble(outcome.ended)
    elif outcome.status is Status.UNKNOWN:
        doubts = [v for verdicts in outcome.runs for v in verdicts if v.status is Status.UNKNOWN]
        reason = f"{doubts[0].oracle}: {doubts[0].where or doubts[0].detail}" if doubts else "nothing was judged"
    elif verdict and not of_subject:
        status, reason = Status.UNKNOWN.name, f"fails in another way: {verdict.oracle} at {verdict.where}"
    return CheckRow(
        run=run,
        target=str(outcome.target),
        subject=subject,
        runner=outcome.case.setup.runner,
        backend=outcome.case.setup.backend,
        status=status,
        expected=expects,
        fingerprint=verdict.fingerprint if verdict else "",
        oracle=verdict.oracle if verdict else "",
        where=verdict.where if verdict else "",
        failed=outcome.failed(verdict) if verdict else 0,
        tried=len(outcome.runs),
        reason=reason,
        seconds=sum(outcome.seconds.values()),
    )


def check_of_replay(run: str, replay: Replay, runner: str = "", backend: str = "") -> CheckRow:
    """FAIL only if the finding's own failure was seen."""
    status = Status.FAIL.name if replay.failed else replay.status.name
    other = replay.status is Status.FAIL and not replay.failed
    return CheckRow(
        run=run,
        target=replay.target,
        subject=f"{FINDING}{replay.fingerprint}",
        runner=runner,
        backend=backend,
        status=ERROR
        if replay.errors
        else UNSUPPORTED
        if not replay.tried
        else Status.UNKNOWN.name
        if other
        else status,
        fingerprint=replay.fingerprint if replay.failed else "",
        failed=replay.failed,
        tried=replay.tried,
        reason="" if not replay.errors and (replay.failed or replay.status is Status.PASS) else replay.line,
    )


def fix_rows(run: str, row: ProofRow) -> Iterator[FixRow]:
    """A row per stop; without stops one row that says why."""
    for stop in row.stops or (None,):
        yield FixRow(
            run=run,
            number=row.fix.number,
            title=row.fix.title,
            runner=row.proof.runner,
            backend=row.proof.backend,
            engine=row.engine,
            role=stop.checkpoint.name if stop else "",
            target=stop.target if stop else "",
            expected=stop.checkpoint.expected.name if stop else "",
            status=stop.answer.status.name
            if stop and stop.answer.status is not None
            else ERROR
            if stop
            else UNSUPPORTED,
            oracle=row.proof.oracle,
            seed=row.proof.seed,
            seconds=stop.answer.seconds if stop else 0.0,
            problem=stop.problem if stop else "",
            detail=stop.answer.text if stop else row.reason,
        )
