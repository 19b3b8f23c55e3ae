"""What reports gather from a record: where a bug is and is not, coverage and what is missing, figures."""

from __future__ import annotations

import itertools
from dataclasses import replace

from sample_record import (
    BUGGY,
    FIXED,
    campaign,
    large_case,
    stale_found,
    stale_replays,
)

from reports import bugs, html, tables
from repro.case import Target
from repro.finding import Status
from repro.record import Covered, Transition

STALE = stale_found()


def test_where_a_bug_is_and_where_not() -> None:
    replays = stale_replays(STALE)
    other = replace(replays[0], target="0.5.12/emulated", status=Status.FAIL, failed=0, line="FAIL ended: raised")
    campaigns = [campaign(BUGGY, (STALE,)), campaign(Target("0.5.9", "emulated"))]
    [bug] = bugs.gather(campaigns, [*replays, other])
    assert [(presence.target, presence.word, presence.runs) for presence in bug.presences] == [
        ("0.5.9/emulated", "NOT RUN", ""),
        ("0.5.10.post1/emulated", "FAIL", "5 of 5"),
        ("0.5.11/emulated", "PASS", "0 of 5"),
        ("0.5.12/emulated", "OTHER", "0 of 5"),
        ("0.5.13/emulated", "PASS", "0 of 5"),
        ("0.5.15.post1/emulated", "UNKNOWN", "0 of 5"),
    ]
    assert bug.presences[0].how == "not replayed here; 164 cases of the campaign did not show it"


def test_one_bug_for_each_fingerprint_told_by_its_smallest_confirmed_case() -> None:
    large = replace(STALE, target=str(FIXED), case=large_case((4, 3), (4,)))
    never = replace(STALE, target=str(FIXED), case=large_case((1,), (4,)), failed=0)
    for order in itertools.permutations((large, never, STALE)):
        [bug] = bugs.gather([campaign(BUGGY, order)], [])
        assert bug.best == STALE
    [unsure] = bugs.gather([campaign(FIXED, (never,))], [])
    assert [(presence.word, presence.runs) for presence in unsure.presences] == [("NOT CONFIRMED", "0 of 5")]
    [kept] = bugs.gather([campaign(FIXED, (replace(never, tried=0),))], [])
    assert [(presence.word, presence.runs) for presence in kept.presences] == [("NOT CONFIRMED", "")]
    assert "1 kind of failure (1 of them not confirmed)" in html.headline([campaign(FIXED, (never,))], [])[0]


def test_a_target_passes_only_if_nothing_failed_there() -> None:
    stranger = replace(stale_replays(STALE)[0], fingerprint="other", seed="repro/seeds/other.json", status=Status.FAIL)
    said = html.headline([campaign(BUGGY, (STALE,))], [*stale_replays(STALE), stranger])
    assert "Stored seeds fail on 0.5.13/emulated." in said
    assert "What was replayed on 0.5.11/emulated passes." in said


def test_heat_map_tells_never_from_not_possible() -> None:
    def transition(before: int, after: int, padded: bool) -> Transition:
        return Transition(
            runner="draft", backend="triton", topk=2, num_steps=3, before=before, after=after, padded=padded
        )

    made = (
        Covered(transition=transition(0, 4, False), count=1),
        Covered(transition=transition(0, 4, True), count=9),
        Covered(transition=transition(4, 4, False), count=1000),
    )
    one = replace(campaign(), transitions=made, transitions_missing=(transition(4, 4, True), transition(4, 8, False)))
    two = replace(one, transitions=made[:1])
    [coverage] = tables.coverage([one, two])
    assert (coverage.replays, coverage.buckets.rows, coverage.buckets.columns) == (1011, (0, 4, 8), (4, 8))
    start, four, eight = coverage.buckets.cells
    assert start == (
        tables.Heat(count=11, padded=9, level=1, missing=""),
        tables.Heat(count=0, padded=0, level=0, missing=""),
    )
    assert four[0] == tables.Heat(count=1000, padded=0, level=tables.HEAT_LEVELS, missing="padded")
    assert (four[1].missing, four[1].level, eight[0].missing) == ("all", 0, "")
    assert coverage.buckets.missing == [(4, 4, "padded"), (4, 8, "all")]


def test_verdicts_and_stages_are_those_of_the_record() -> None:
    campaigns = [campaign(BUGGY, failing=31), replace(campaign(FIXED), stages={"graph": 2.0})]
    frame = tables.verdicts(campaigns).set_index(["campaign", "oracle"])
    assert frame.loc[(0, "slot0_padding")].to_dict() == {"PASS": 111, "UNKNOWN": 22, "FAIL": 31}
    assert frame.loc[(1, "staged")].to_dict() == {"PASS": 164, "UNKNOWN": 0, "FAIL": 0}
    stages = tables.stages(campaigns)
    assert list(stages.index) == list(campaigns[0].stages)
    assert stages.loc["graph"].tolist() == [9.1, 2.0]
    assert stages.loc["shrink"].tolist() == [2.5, 0.0]
