"""Traces that end in the middle of an observation, as with device errors: each oracle judges the steps before."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from fuzz.draw.rounds import rounds
from oracles.catalogue import judge_all
from repro.cases.release_list import NEWEST
from repro.traces.finding import RAISED
from repro.traces.trace import End, Termination
from runners.processes.pool import Pool

# The places to cut at: some over the whole, and each one at the end.
PLACES, LAST = 20, 5


@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(
    "pair",
    [
        "verify_eager_tree/fa3",
        *(
            pytest.param(pair, marks=pytest.mark.exhaustive)
            for pair in (
                "verify/triton",
                "draft/triton",
                "draft_extend/fa3",
                "multi_layer/triton",
                "round/triton",
                "round/fa3",
            )
        ),
    ],
)
def test_no_oracle_raises_over_a_trace_that_ends_early(newest: Pool, pair: str) -> None:
    """The first step is left whole: what is recorded of it alone may be in part."""
    runner, backend = pair.split("/")
    cases = (case for case in rounds(5, runner, backend, 4) if len(case.steps) > 1)
    for case in islice(cases, 2):
        trace = newest.run(case)
        first = sum(seen.step <= 0 for seen in trace.seen)
        count = len(trace.seen)
        for cut in {*range(first, count, max(1, count // PLACES)), *range(count - LAST, count)}:
            seen = trace.seen[:cut]
            end = End(how=Termination.RAISED, step=seen[-1].step, path="graph", what="AcceleratorError")
            verdicts = judge_all(case, replace(trace, ended=end, seen=seen))
            assert not [verdict for verdict in verdicts if verdict.where == RAISED], cut
