"""The news for a reader: findings that are new, fixed or regressed since the run before, and the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from reports.events import target_order
from reports.subjects import Subject, targets
from reports.wording import counted, listed, share
from repro.ledger.identities import FACT
from repro.ledger.read import History
from repro.ledger.rows import ERROR, Run
from repro.upstream.prove import NOT_HERE

# In the order of the report, with the sentence for each.
WORDS = (
    ("new", "No failure was seen for the first time."),
    ("regressed", "Nothing that passed fails."),
    ("fixed", "Nothing that failed passes."),
    ("flaky", "Nothing began to fail now and then."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A subject that became so in the last run, and on which targets."""

    anchor: str
    name: str
    about: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure of the whole. kind: "bad" where it wants attention, else ""."""

    name: str
    figure: str
    note: str
    kind: str = ""


def latest(history: History) -> Run | None:
    """The last run that measured something; None if none did."""
    measuring = {row.run for row in history.checks} | {row.run for row in history.findings}
    measuring |= {row.run for row in history.fixes} | {row.run for row in history.campaigns}
    measuring |= {row.run for row in history.cases}
    return next((run for run in reversed(history.runs) if run.id in measuring), None)


def changes(subjects: Sequence[Subject], run: Run | None) -> dict[str, list[Change]]:
    """The subjects whose state changed with this run, by word."""
    by_kind: dict[str, list[Change]] = {word: [] for word, _ in WORDS}
    for subject in subjects:
        for word, ones in by_kind.items():
            where = [
                target
                for target, square in subject.squares.items()
                if run and square.state == word and square.since == run.id
            ]
            if where:
                ones.append(Change(anchor=subject.anchor, name=subject.name, about=subject.about, targets=tuple(where)))
    return by_kind


def holding(subjects: Sequence[Subject]) -> tuple[int, int]:
    """The number of proofs of fixes that hold, and of those that were run; each engine counts by itself."""
    stops: dict[tuple[str, str], list[bool]] = {}
    for subject in subjects:
        for stop in subject.stops:
            if stop.role:
                stops.setdefault((subject.anchor, stop.engine), []).append(not stop.problem)
    return sum(all(proof) for proof in stops.values()), len(stops)


def not_here(subjects: Sequence[Subject]) -> list[str]:
    """The missing releases of each proof that this host could not make."""
    return [
        stop.detail
        for subject in subjects
        for stop in subject.stops
        if not stop.role and stop.detail.startswith(NOT_HERE)
    ]


def no_failures(history: History) -> str:
    """The sentence of a report that lists no failure. Cases of known issues fail, but are no findings of a campaign."""
    cases = sum(count for row in history.campaigns for count in row.campaign.known.values())
    besides = f" besides those of known issues, in {counted(cases, 'case')}" if cases else ""
    return f"No failure was measured{besides}."


def headline(history: History, subjects: Sequence[Subject]) -> list[str]:
    """A sentence each; the worst first."""
    if not history.runs:
        return ["Nothing is recorded here."]
    sentences = []
    news = {word: _targets(subjects, word) for word in ("regressed", "new", "flaky")}
    for word, pattern in (
        ("regressed", "Regressed on {}."),
        ("new", f"{_number(subjects, 'new')}, on {{}}."),
        ("flaky", "Fails now and then on {}."),
    ):
        if news[word]:
            sentences.append(pattern.format(listed(news[word])))
    if known := [subject for subject in subjects if subject.targets("known")]:
        verb = "is" if len(known) == 1 else "are"
        sentences.append(f"{_number(subjects, 'known')} {verb} still there, on {listed(_targets(subjects, 'known'))}.")
    elif not any(news.values()):
        sentences.append(no_failures(history))
    holds, proofs = holding(subjects)
    if proofs:
        some = f"{holds} of {counted(proofs, 'proof of a fix', 'proofs of fixes')} hold{'s' if holds == 1 else ''}."
        every = f"All {proofs} proofs of fixes hold." if proofs > 1 else "The proof of a fix holds."
        sentences.append(every if holds == proofs else some)
    if absent := not_here(subjects):
        proofs_were = "One proof of a fix was" if len(absent) == 1 else f"{len(absent)} proofs of fixes were"
        sentences.append(f"{proofs_were} {listed(list(dict.fromkeys(absent)))}.")
    if passing := [target for target in sorted(targets(history), key=target_order) if _passes(subjects, target)]:
        sentences.append(f"All measurements on {listed(passing)} pass.")
    errors = sorted({str(row.campaign.target) for row in history.campaigns if row.campaign.error}, key=target_order)
    if errors:
        sentences.append(f"A campaign stopped by an error: {listed(errors)}.")
    failures = Counter(row.target for row in history.checks if row.status == ERROR)
    for row in history.campaigns:
        failures[str(row.campaign.target)] += sum(row.campaign.errors.values())
    if where := [target for target in sorted(failures, key=target_order) if failures[target]]:
        runs = counted(failures.total(), "run")
        sentences.append(f"The harness itself failed in {runs}, which show nothing, on {listed(where)}.")
    if any(FACT in run.facts for run in history.runs):
        sentences.append("Some rows of earlier runs cannot be assigned to a runner and backend: see the runs.")
    return sentences


def _number(subjects: Sequence[Subject], word: str) -> str:
    """One new failure, 2 new failures."""
    number = sum(bool(subject.targets(word)) for subject in subjects)
    return f"One {word} failure" if number == 1 else f"{number:,} {word} failures"


def tiles(history: History, subjects: Sequence[Subject]) -> list[Tile]:
    """The figures on top."""
    holds, proofs = holding(subjects)
    findings = [subject for subject in subjects if subject.kind == "finding"]
    alarming = [subject for subject in subjects if subject.targets("new", "regressed")]
    everywhere = targets(history)
    cases, judged = case_counts(history)
    campaigns = [row.campaign for row in history.campaigns]
    replays = max(sum(row.replays for row in history.cases), sum(campaign.replays for campaign in campaigns))
    ran = f"{share(judged, cases)} judged, {counted(replays, 'replay')}" if cases else "no campaign ran"
    return [
        Tile(
            name="New or regressed",
            figure=str(len(alarming)),
            note="fix, seed or finding" if len(alarming) == 1 else "fixes, seeds and findings",
            kind="bad" if alarming else "",
        ),
        Tile(
            name="Proofs of fixes",
            figure=f"{holds} of {proofs}" if proofs else "-",
            note="hold" if proofs else "not run",
            kind="bad" if holds < proofs else "",
        ),
        Tile(name="Findings", figure=f"{len(findings):,}", note="kinds of failure seen by campaigns"),
        Tile(name="Cases", figure=f"{cases:,}", note=ran),
        Tile(name="Targets", figure=str(len(everywhere)), note=f"in {counted(len(history.runs), 'run')}"),
    ]


def case_counts(history: History) -> tuple[int, int]:
    """Cases run, and those of them that were judged. The ledger counts those of campaigns that were killed as well;
    a record of campaigns alone has no rows of cases."""
    if history.cases:
        counts = [(row.count, row.status) for row in history.cases]
        return sum(n for n, _ in counts), sum(n for n, status in counts if status in ("PASS", "FAIL"))
    campaigns = [row.campaign for row in history.campaigns]
    return sum(campaign.cases for campaign in campaigns), sum(campaign.judged for campaign in campaigns)


def _targets(subjects: Sequence[Subject], word: str) -> list[str]:
    return sorted({target for subject in subjects for target in subject.targets(word)}, key=target_order)


def _passes(subjects: Sequence[Subject], target: str) -> bool:
    states = {subject.squares[target].state for subject in subjects if target in subject.squares}
    return bool(states & {"passing", "fixed"}) and states <= {"passing", "fixed", "cannot run"}
