"""What was found, gathered over campaigns and replays: one Bug for each fingerprint, where it shows, where not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.wording import counted, duration, k_of_n, release_order
from repro.finding import Status
from repro.record import Campaign, Found, Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Whether a target has a bug.

    word: FAIL (it does), NOT CONFIRMED (seen there, but in no fresh process), PASS (its case was run there and
    passed), UNKNOWN, OTHER (the case failed in another way) or NOT RUN. runs: k of n, empty where nothing was
    run. how: by what this is known.
    """

    target: str
    word: str
    runs: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A kind of failure. best: the finding that tells it best, confirmed and with the fewest requests."""

    fingerprint: str
    oracle: str
    where: str
    best: Found
    presences: tuple[Presence, ...]

    @property
    def confirmed(self) -> bool:
        return self.best.failed > 0

    def targets(self, word: str) -> list[str]:
        """The targets of which this is said."""
        return [presence.target for presence in self.presences if presence.word == word]


def targets(campaigns: Sequence[Campaign], replays: Sequence[Replay]) -> list[str]:
    """Every target that anything was run on, in the order of releases."""
    found = {str(campaign.target) for campaign in campaigns} | {replay.target for replay in replays}
    return sorted(found, key=release_order)


def gather(campaigns: Sequence[Campaign], replays: Sequence[Replay]) -> tuple[Bug, ...]:
    """Every bug once, confirmed ones first, then those that most cases showed."""
    kinds: dict[str, list[Found]] = {}
    for campaign in campaigns:
        for found in campaign.findings:
            kinds.setdefault(found.fingerprint, []).append(found)
    everywhere = targets(campaigns, replays)
    bugs = []
    for fingerprint, ones in kinds.items():
        best = min(ones, key=lambda one: (one.failed == 0, _size(one), release_order(one.target)))
        same = [replay for replay in replays if replay.fingerprint == fingerprint]
        presences = tuple(_presence(target, campaigns, ones, same) for target in everywhere)
        bugs.append(Bug(fingerprint=fingerprint, oracle=best.oracle, where=best.where, best=best, presences=presences))
    total = {fingerprint: sum(one.cases for one in ones) for fingerprint, ones in kinds.items()}
    return tuple(sorted(bugs, key=lambda bug: (not bug.confirmed, -total[bug.fingerprint], bug.oracle, bug.where)))


def strangers(bugs: Sequence[Bug], replays: Sequence[Replay]) -> list[Replay]:
    """Replays that belong to no finding of these campaigns: stored seeds."""
    known = {bug.fingerprint for bug in bugs}
    rest = [replay for replay in replays if replay.fingerprint not in known]
    return sorted(rest, key=lambda replay: (replay.seed, release_order(replay.target)))


def _size(found: Found) -> tuple[int, int]:
    return len(found.case.steps), sum(len(step.requests) for step in found.case.steps)


def _presence(target: str, campaigns: Sequence[Campaign], found: list[Found], replays: list[Replay]) -> Presence:
    here = [one for one in found if one.target == target]
    if here:
        first = min(here, key=lambda one: (one.failed == 0, one.at_seconds))
        seen = f"campaign: first at case {first.at_case:,} after {duration(first.at_seconds)}, seen in "
        back = "; did not come back" if first.tried and not first.failed else ""
        how = seen + counted(sum(one.cases for one in here), "case") + back
        word = "FAIL" if first.failed else "NOT CONFIRMED"
        return Presence(target=target, word=word, runs=k_of_n(first) if first.tried else "", how=how)
    again = [replay for replay in replays if replay.target == target]
    if again:
        worst = max(again, key=lambda replay: (replay.status, replay.failed))
        other = worst.status is Status.FAIL and not worst.failed
        word = "OTHER" if other else worst.status.name
        return Presence(target=target, word=word, runs=k_of_n(worst), how=f"replay: {worst.line}")
    cases = sum(campaign.cases for campaign in campaigns if str(campaign.target) == target)
    how = (
        f"not replayed here; {counted(cases, 'case')} of the campaign did not show it" if cases else "not replayed here"
    )
    return Presence(target=target, word="NOT RUN", runs="", how=how)
