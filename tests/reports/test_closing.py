"""The last lines of a hunt, and those of a campaign."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from reports.campaign import summary
from reports.closing import closing
from repro.ledger.known import load
from repro.traces.campaign import CampaignFinding
from repro.upstream.findings import load as published
from tests.builders.sample_record import BUGGY, FIXED, campaign, stale_found


def lines(*findings: CampaignFinding) -> list[str]:
    done = [campaign(BUGGY, findings[:1]), campaign(FIXED, findings[1:])]
    return closing(done, [], load(), published(), Path("/r.html"), ".venv/bin/python")


def test_a_finding_names_the_other_target_that_has_it_and_a_command_that_can_be_typed() -> None:
    first, second = stale_found(), replace(stale_found(), target=str(FIXED))
    head, place, *_, report = every = lines(first, second)
    assert len(every) <= 12 and head.startswith("2 failures found in 328 cases on ")
    assert place.endswith("failed 5 of 5 runs; 0.5.13/emulated has it, too")
    assert f"   replay: .venv/bin/python -m repro run {first.seed} --target {BUGGY}" in every
    assert report == "report: /r.html"


def test_what_was_not_confirmed_is_told_from_what_did_not_come_back() -> None:
    untried = replace(stale_found(), failed=0, tried=0)
    gone = replace(stale_found(), failed=0, tried=5, target=str(FIXED))
    head, unsure, _ = lines(untried, gone)
    assert head.startswith("0 failures found")
    gone_for_good = "1 seen once and never again in a fresh process"
    assert unsure == f"{gone_for_good}; 1 seen once and not tried again, as the time was up"


def test_a_campaign_says_at_its_end_what_no_reference_judged() -> None:
    facts = {"reference": "knows nothing of states", "drafts": "not judged, as no model drafts", "release": "0.5.13"}
    done = replace(campaign(BUGGY, ()), facts=facts)
    assert summary(done)[1:3] == ["  reference: knows nothing of states", "  drafts: not judged, as no model drafts"]
