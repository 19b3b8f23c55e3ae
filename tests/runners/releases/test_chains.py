"""Chains are drafted without a GPU by the code that a GPU runs: one kernel samples a token and advances positions."""

from __future__ import annotations

import pytest

from fuzz.mutation.sites import mutants
from oracles.catalogue import judge_all
from repro.cases.case import Target
from repro.cases.release_list import NEWEST
from repro.traces.finding import Status
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from tests.builders.cases import PADDED, case_of, setup_of

TARGET = Target(NEWEST, "emulated")
pytestmark = pytest.mark.emulated(NEWEST)
FILE = "sglang/kernels/ops/speculative/topk1.py"
CASE = case_of(setup_of("draft", topk=1, num_steps=3, num_draft_tokens=4), PADDED)


def test_the_kernel_that_samples_chains_runs_in_drafts(newest: Pool) -> None:
    every = mutants(FILE, (sglang_path(TARGET) / FILE).read_text())
    short = next(m for m in every if m.new.startswith("partial_indices = torch.empty((bs - 1, num_splits)"))
    failures = {}
    for name, change in (("unchanged", {}), ("short", {"edit": short.change()})):
        newest.change(change)
        verdicts = judge_all(CASE, newest.run(CASE))
        failures[name] = {verdict.oracle for verdict in verdicts if verdict.status is Status.FAIL}
    assert failures["unchanged"] == set()
    assert "memory" in failures["short"]
