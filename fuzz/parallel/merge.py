"""One campaign out of those of several members who worked on it at the same time."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from repro.cases.case import Target
from repro.cases.sort_key import sort_key
from repro.traces.campaign import Campaign, Covered, Found, Transition
from repro.traces.finding import Finding, Status, Verdict

# Why campaigns stopped, by how much it says about the whole: one member's error is the campaign's.
_TOLD_FIRST = ("error", "interrupted", "first finding", "time", "cases", "cannot run")


def merged(parts: Sequence[Campaign]) -> Campaign:
    """Counts are added, findings are one per fingerprint, and the time is that of the one who took longest."""
    first = parts[0]
    covered: Counter[Transition] = Counter()
    for part in parts:
        covered.update({one.transition: one.count for one in part.transitions})
    # What a member can make and has not made, another may have.
    missing = {transition for part in parts for transition in part.transitions_missing} - covered.keys()
    stopped = [part.stopped for part in parts]
    if "first finding" in stopped:
        # The others were interrupted for it, not by a person.
        stopped = [reason for reason in stopped if reason != "interrupted"]
    return dataclasses.replace(
        first,
        started=min(part.started for part in parts),
        ended=max(part.ended for part in parts),
        stopped=min(stopped, key=lambda reason: _TOLD_FIRST.index(reason) if reason in _TOLD_FIRST else 0),
        error="; ".join(dict.fromkeys(part.error for part in parts if part.error)),
        seconds=max(part.seconds for part in parts),
        workers=sum(part.workers for part in parts),
        cases=sum(part.cases for part in parts),
        judged=sum(part.judged for part in parts),
        replays=sum(part.replays for part in parts),
        setups=sum(part.setups for part in parts),
        skipped=sum(part.skipped for part in parts),
        verdicts=_verdicts(parts),
        endings=_added(part.endings for part in parts),
        unknown=_most_first(_added(part.unknown for part in parts)),
        unsupported=_most_first(_added(part.unsupported for part in parts)),
        errors=_most_first(_added(part.errors for part in parts)),
        transitions=tuple(Covered(transition=t, count=n) for t, n in sorted(covered.items())),
        transitions_possible=len(missing) + len(covered),
        transitions_missing=tuple(sorted(missing)),
        findings=_findings(found for part in parts for found in part.findings),
        known=_most_first(_added(part.known for part in parts)),
        stages={name: sum(part.stages.get(name, 0.0) for part in parts) for part in parts for name in part.stages},
        facts=_facts(parts),
    )


def with_seeds(whole: Campaign, keep: Callable[[Finding], str]) -> Campaign:
    """Store what nobody has stored: the member that was to do it may have died before."""
    return dataclasses.replace(whole, findings=tuple(_stored(found, whole, keep) for found in whole.findings))


def _stored(found: Found, whole: Campaign, keep: Callable[[Finding], str]) -> Found:
    return found if found.seed else dataclasses.replace(found, seed=keep(finding_of(found, whole.target)))


def finding_of(found: Found, target: Target) -> Finding:
    """What is stored of it."""
    verdict = Verdict(
        oracle=found.oracle,
        status=Status.FAIL,
        where=found.where,
        detail=found.detail,
        cell=found.cell,
        runner=found.case.setup.runner,
        backend=found.case.setup.backend,
    )
    return Finding(case=found.case, target=target, verdict=verdict, failed=found.failed, tried=found.tried)


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(counts).most_common())


def _verdicts(parts: Sequence[Campaign]) -> dict[str, dict[str, int]]:
    oracles = sorted({oracle for part in parts for oracle in part.verdicts})
    return {oracle: _added(part.verdicts.get(oracle, {}) for part in parts) for oracle in oracles}


def _findings(found: Iterable[Found]) -> tuple[Found, ...]:
    """Of each fingerprint the form that most is known of; when it was first seen, and in how many cases, by all."""
    kinds: dict[str, list[Found]] = {}
    for one in found:
        kinds.setdefault(one.fingerprint, []).append(one)
    return tuple(sorted(map(_finding, kinds.values()), key=lambda one: one.at_seconds))


def _finding(forms: Sequence[Found]) -> Found:
    earliest = min(forms, key=lambda one: one.at_seconds)
    best = min(forms, key=lambda one: (one.failed == 0, one.tried == 0, not one.seed, sort_key(one.case)))
    return dataclasses.replace(
        best,
        cases=sum(one.cases for one in forms),
        at_case=earliest.at_case,
        at_seconds=earliest.at_seconds,
    )


def _facts(parts: Sequence[Campaign]) -> dict[str, str]:
    names = dict.fromkeys(name for part in parts for name in part.facts)
    return {name: ", ".join(dict.fromkeys(part.facts[name] for part in parts if name in part.facts)) for name in names}
