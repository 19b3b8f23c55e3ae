"""The number of tokens of each request that a rank counts, under data-parallel attention."""

from __future__ import annotations

from oracles.trace_index import Record
from repro.cases.buffer_facts import OF_LOGITS
from repro.cases.case import Case
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.paths import Recorded


def rank_tokens(case: Case, record: Record, name: str) -> int | None:
    """The tokens of a request, by the name of the count. Tokens with logits are as many as the rows of logits that the
    graphs of this case gave: in some releases the head makes one row a request. If a runner returns no logits, all
    tokens have some; None if no graph of the case returned anything."""
    tokens = RUNNER_FACTS[case.setup.runner].rank_tokens
    assert tokens is not None, "a runner that is driven as one of several ranks"
    if OF_LOGITS not in name:
        return tokens(case.setup)
    gave = [
        step for step, case_step in enumerate(case.steps) if case_step.requests and record.path(step, Recorded.GRAPH)
    ]
    rows = (record.scalar(step, Recorded.LOGITS, "rows of a request") for step in gave)
    return next((each for each in rows if each is not None), tokens(case.setup) if gave else None)
