"""Campaigns that were killed before they could say what they came to: put together from the cases that they stored."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from repro.cases import codec
from repro.cases.case import Target
from repro.cases.codec import BadSeed
from repro.ledger.rows import ERROR, UNSUPPORTED, FindingRow
from repro.traces.campaign import Campaign, CampaignFinding, Covered, Transition
from repro.traces.finding import Finding, Status, Verdict, by_oracle
from repro.traces.trace import Termination

NOT_ENDED = "not ended"


def verdicts_text(verdicts: Iterable[Verdict]) -> str:
    """The oracles by status: PASS bucket staged; UNKNOWN slot0_padding."""
    names: defaultdict[Status, list[str]] = defaultdict(list)
    for oracle, status in by_oracle(verdicts).items():
        names[status].append(oracle)
    return "; ".join(" ".join([status.name, *oracles]) for status, oracles in sorted(names.items()))


def transitions_text(transitions: Iterable[Transition]) -> str:
    """The pairs of buckets that followed each other, with * if the last one was padded: 0>4 4>2*."""
    return " ".join(f"{transition.before}>{transition.after}{'*' * transition.padded}" for transition in transitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Cases of one campaign that differ in nothing but what they were: how many, their replays, the first and the last
    time of them. A night has a million cases and a few hundred of these."""

    run: str
    target: str
    runner: str
    backend: str
    topk: int
    num_steps: int
    status: str
    verdicts: str
    transitions: str
    cases: int
    replays: int
    first: str
    last: str


def unfinished(groups: Sequence[Alike], findings: Iterable[FindingRow]) -> Campaign:
    """The campaign that these cases, of which there is at least one, and findings of its run and target belong to.
    ValueError if a row makes no sense."""
    first = groups[0]
    started, ended = min(group.first for group in groups), max(group.last for group in groups)
    verdicts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    transitions: Counter[Transition] = Counter()
    statuses: Counter[str] = Counter()
    for group in groups:
        statuses[group.status] += group.cases
        for oracle, status in _verdicts(group.verdicts):
            verdicts[oracle][status.name.lower()] += group.cases
        for transition in _transitions(group):
            transitions[transition] += group.cases
    refused, errors = statuses[UNSUPPORTED], statuses[ERROR]
    rows_of_setup = (row for row in findings if (row.runner, row.backend) == (first.runner, first.backend))
    return Campaign(
        target=Target.parse(first.target),
        runner=first.runner,
        backend=first.backend,
        seed=0,
        started=started,
        ended=ended,
        stopped=NOT_ENDED,
        seconds=(datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds(),
        cases=statuses.total(),
        judged=statuses[Status.PASS.name] + statuses[Status.FAIL.name],
        replays=sum(group.replays for group in groups),
        setups=len({(group.topk, group.num_steps) for group in groups}),
        verdicts={oracle: dict(counts) for oracle, counts in sorted(verdicts.items())},
        endings={
            how.value: count
            for how, count in ((Termination.UNSUPPORTED, refused), (Termination.ERROR, errors))
            if count
        },
        errors={"no reason stored": errors} if errors else {},
        transitions=tuple(Covered(transition=move, count=count) for move, count in sorted(transitions.items())),
        transitions_possible=len(transitions),
        findings=tuple(map(_found, rows_of_setup)),
    )


def _verdicts(text: str) -> list[tuple[str, Status]]:
    verdicts = []
    for part in filter(None, text.split("; ")):
        name, *oracles = part.split(" ")
        verdicts += [(oracle, Status[name]) for oracle in oracles]
    return verdicts


def _transitions(row: Alike) -> list[Transition]:
    transitions = []
    for text in row.transitions.split():
        before, _, after = text.removesuffix("*").partition(">")
        transitions.append(
            Transition(
                runner=row.runner,
                backend=row.backend,
                topk=row.topk,
                num_steps=row.num_steps,
                before=int(before),
                after=int(after),
                padded=text.endswith("*"),
            )
        )
    return transitions


def _found(row: FindingRow) -> CampaignFinding:
    try:
        case = codec.loads(row.seed_text).case
    except BadSeed as error:
        raise ValueError(f"the seed of finding {row.fingerprint}: {error}") from error
    verdict = Verdict(
        oracle=row.oracle,
        status=Status.FAIL,
        where=row.where,
        detail=row.detail,
        cell=row.cell,
        runner=row.runner,
        backend=row.backend,
    )
    target = Target.parse(row.target)
    recorded = CampaignFinding.of(
        Finding(case=case, target=target, verdict=verdict, failed=row.failed, tried=row.tried)
    )
    # By its name in the ledger, under which it is looked up.
    return replace(recorded, fingerprint=row.fingerprint)
