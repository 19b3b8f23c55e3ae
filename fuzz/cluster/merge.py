"""One campaign out of its parts, which several processes have run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fuzz.reasons import merged as reasons
from repro.cases.sort_key import sort_key
from repro.traces.campaign import Campaign, CampaignFinding, Covered, Transition

# Why campaigns stopped, by how much that means for the whole: one part's error is the campaign's.
_STOPPED_ORDER = ("error", "interrupted", "first finding", "time", "cases", "cannot run")
# Counts that are added.
_SUMMED = ("workers", "cases", "judged", "replays", "setups", "skipped")


def merged(parts: Sequence[Campaign]) -> Campaign:
    """Counts are added, findings are joined by fingerprint, and the time is that of the longest part."""
    first = parts[0]
    covered: Counter[Transition] = Counter()
    for part in parts:
        covered.update({transitions.transition: transitions.count for transitions in part.transitions})
    # A transition that one part missed may have been made by another.
    missing = {transition for part in parts for transition in part.transitions_missing} - covered.keys()
    stopped = [part.stopped for part in parts]
    if "first finding" in stopped:
        # The others were interrupted for it, not by a person.
        stopped = [reason for reason in stopped if reason != "interrupted"]
    return dataclasses.replace(
        first,
        started=min(part.started for part in parts),
        ended=max(part.ended for part in parts),
        stopped=min(stopped, key=lambda reason: _STOPPED_ORDER.index(reason) if reason in _STOPPED_ORDER else 0),
        error="; ".join(dict.fromkeys(part.error for part in parts if part.error)),
        seconds=max(part.seconds for part in parts),
        **{name: sum(getattr(part, name) for part in parts) for name in _SUMMED},
        verdicts=_verdicts(parts),
        endings=_added(part.endings for part in parts),
        unknown=reasons(part.unknown for part in parts),
        unsupported=reasons(part.unsupported for part in parts),
        errors=reasons(part.errors for part in parts),
        transitions=tuple(Covered(transition=t, count=n) for t, n in sorted(covered.items())),
        transitions_possible=len(missing) + len(covered),
        transitions_missing=tuple(sorted(missing)),
        states=_added(part.states for part in parts),
        states_missing=tuple(sorted(set.intersection(*(set(part.states_missing) for part in parts)))),
        findings=_findings(finding for part in parts for finding in part.findings),
        known=_most_first(_added(part.known for part in parts)),
        stale=_most_first(_added(part.stale for part in parts)),
        only_mended=_most_first(_added(part.only_mended for part in parts)),
        only_mended_seeds={name: seed for part in reversed(parts) for name, seed in part.only_mended_seeds.items()},
        stages={name: sum(part.stages.get(name, 0.0) for part in parts) for part in parts for name in part.stages},
        facts=_facts(parts),
    )


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in counts:
        total.update(part)
    return dict(total)


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(counts).most_common())


def _verdicts(parts: Sequence[Campaign]) -> dict[str, dict[str, int]]:
    oracles = sorted({oracle for part in parts for oracle in part.verdicts})
    return {oracle: _added(part.verdicts.get(oracle, {}) for part in parts) for oracle in oracles}


def _findings(findings: Iterable[CampaignFinding]) -> tuple[CampaignFinding, ...]:
    """For each fingerprint the best known form, when it was seen first, and in how many cases."""
    forms: dict[str, list[CampaignFinding]] = {}
    for finding in findings:
        forms.setdefault(finding.fingerprint, []).append(finding)
    return tuple(sorted(map(_joined, forms.values()), key=lambda finding: finding.at_seconds))


def _joined(forms: Sequence[CampaignFinding]) -> CampaignFinding:
    earliest = min(forms, key=lambda form: form.at_seconds)
    best = min(forms, key=lambda form: (form.failed == 0, form.tried == 0, not form.seed, sort_key(form.case)))
    return dataclasses.replace(
        best,
        cases=sum(form.cases for form in forms),
        consequences=tuple(dict.fromkeys(name for form in forms for name in form.consequences)),
        at_case=earliest.at_case,
        at_seconds=earliest.at_seconds,
    )


def _facts(parts: Sequence[Campaign]) -> dict[str, str]:
    names = dict.fromkeys(name for part in parts for name in part.facts)
    return {name: ", ".join(dict.fromkeys(part.facts[name] for part in parts if name in part.facts)) for name in names}
