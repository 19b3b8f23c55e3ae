"""Figures of fuzz bench: those that were measured, and none of what was ended before there were any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuzz import bench
from repro.cases.case import setup_problems
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.campaign import Campaign
from tests.builders.sample_record import campaign

DONE = replace(campaign(), stopped="cases", cases=20, judged=20, replays=60, seconds=4.0, workers=4)
ENDED = replace(DONE, stopped="interrupted")


@pytest.mark.parametrize("other", [ENDED, replace(DONE, stopped="error", error="disk full"), replace(DONE, cases=0)])
def test_what_was_ended_has_no_figures(other: Campaign) -> None:
    assert bench.speed_up(DONE, other) == bench.speed_up(other, DONE) == bench.against_bare(other, 0.01) == []
    (line,) = bench.figures("0.5.13/toy small setup", other)
    assert "not measured" in line and "cases/s" not in line


def test_what_was_measured_is_told() -> None:
    assert bench.speed_up(replace(DONE, workers=1, seconds=8.0), DONE) == ["  4 workers are 2.00 times as fast as one"]
    assert bench.against_bare(DONE, 0.0) == []
    assert "bare / whole = 0.15" in bench.against_bare(DONE, 0.01)[0]
    assert "5.00 cases/s" in bench.figures("a", DONE)[0]
    without = bench.figures("a", replace(DONE, stages={}))
    assert not any("graph + eager" in line for line in without)


@pytest.mark.parametrize(("runner", "backend"), [(r, b) for r, facts in RUNNER_FACTS.items() for b in facts.backends])
def test_every_runner_has_a_small_setup(runner: str, backend: str) -> None:
    assert setup_problems(bench.small_setup(runner, backend)) == []
