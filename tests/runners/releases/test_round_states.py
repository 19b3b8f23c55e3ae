"""Recurrent models in rounds, on the newest release, clean and with planted bugs; and the oracles of their states on
records made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles import ended, kv_rows, leaks, logits, text
from oracles.catalogue import judge_all
from repro.cases.case import Case, Request, Setup, Step
from repro.cases.families import GDN, facts_of
from repro.cases.release_list import NEWEST
from repro.traces.finding import Status
from runners.processes.pool import Pool
from tests.builders.only_verdict import only
from tests.runners.releases.test_round import CHAIN, HAPPENING, SMALL, STEPS, TREE, served
from tests.runners.releases.test_round_plants import Plant, assert_seen

KEPT = replace(CHAIN, family=GDN, dtype="float16", disagreement=30)
SETUPS = {
    "a chain": KEPT,
    "a tree": replace(TREE, family=GDN, dtype="float16", overlap=True),
    "states in the tree cache, one at the end of each text": replace(KEPT, radix=True),
    "states in the tree cache, one of a prompt's beginning": replace(KEPT, radix=True, overlap=True, context_len=160),
    "chunks": replace(KEPT, chunk=8, overlap=True),
}
# A state is kept behind 64 tokens of a prompt, which the second one begins with.
LONG = (
    Step(requests=(Request(slot=1, seq_len=90, data=1, further=4),)),
    Step(requests=(Request(slot=1, seq_len=100, data=1, further=9), Request(slot=2, seq_len=70, data=2)), wait=9),
)
# The tree cache shares the draft's rows, of which the next drafts are (docs/findings/round-states-share-draft-rows).
SHARED = {(kv_rows.ORACLE, f"{kv_rows.OF_DRAFT} {kv_rows.CACHED}"), (logits.ORACLE, logits.DRAFTED)}
POOL, RUNNER = "sglang/srt/mem_cache/memory_pool.py", "sglang/srt/model_executor/model_runner.py"
DEFERRED = "ModelRunner._maybe_execute_deferred_mamba_cow_and_clear"
PLANTS = {
    "states are committed one token too far": Plant(
        file="sglang/kernels/ops/speculative/eagle.py",
        function="_verify_commit_outputs_kernel",
        old="tl.store(last_steps + row, idx - row * DRAFT_WIDTH, valid)",
        new="tl.store(last_steps + row, idx - row * DRAFT_WIDTH + (accepted < DRAFT_WIDTH), valid)",
        setup=KEPT,
        seen_by=((logits.ORACLE, logits.KEPT),),
    ),
    "a state slot is not freed": Plant(
        file=POOL,
        function="HybridReqToTokenPool.free_mamba_cache",
        old="self.mamba_allocator.free(mamba_index.unsqueeze(0))",
        new="pass",
        setup=KEPT,
        seen_by=((ended.ORACLE, "raised ValueError in round_graph"),),  # an idle scheduler counts them itself
    ),
    "a new request's state is not cleared": Plant(
        file=RUNNER,
        function=DEFERRED,
        old="pool.mamba_pool.clear_slots(\n",
        new="len(\n",
        setup=KEPT,
        seen_by=((text.ORACLE, text.TOKEN), (logits.ORACLE, logits.KEPT)),
    ),
    "the state of a cached prefix is not copied": Plant(
        file=RUNNER,
        function=DEFERRED,
        old="pool.copy_mamba_state(\n",
        new="max(\n",
        setup=SETUPS["states in the tree cache, one at the end of each text"],
        seen_by=((text.ORACLE, text.TOKEN), (logits.ORACLE, logits.KEPT)),
        steps=HAPPENING,
    ),
}


def test_states_are_the_targets_within_rounding() -> None:
    states = {"served.state_conv0": [[np.nan, 0.1, np.nan]], "served.noise_state_conv0": [0.02]}
    assert only(logits.judge, SMALL, served(**states)).status is Status.PASS
    wrong = only(logits.judge, SMALL, served(**states | {"served.noise_state_conv0": [0.001]}))
    assert (wrong.status, wrong.where) == (Status.FAIL, logits.KEPT)
    assert wrong.cell and wrong.cell.column == 1


@pytest.mark.parametrize(
    ("counts", "status"),
    [
        ({"free": [9, 9, 9], "evictable": [0, 0, 0], "locked": [0, 0, 0]}, Status.PASS),
        ({"free": [9, 7, 9], "evictable": [0, 2, 0], "locked": [0, 0, 0]}, Status.PASS),
        ({"free": [9, 8, 9], "evictable": [0, 0, 0], "locked": [0, 0, 0]}, Status.FAIL),
        ({"free": [9, 7, 8], "evictable": [0, 2, 0], "locked": [0, 0, 0]}, Status.FAIL),
        ({"free": [9, 7, 9], "evictable": [0, 2, 0], "locked": [0, 1, 0]}, Status.FAIL),
    ],
)
def test_state_slots_are_given_back_or_cached(counts: dict[str, list[int]], status: Status) -> None:
    record = served(**{f"holdings.{words} state slots": values for words, values in counts.items()})
    assert only(leaks.judge, SMALL, record).status is status


def test_rounds_of_models_that_prefill_in_halves_are_drawn_so() -> None:
    assert "float32" in facts_of(GDN, "EAGLE").dtypes_of("verify")
    assert facts_of(GDN, "EAGLE").dtypes_of("round") == ("float16",)


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", SETUPS)
def test_texts_and_states_are_the_targets(name: str, newest: Pool) -> None:
    setup: Setup = SETUPS[name]
    steps = LONG if setup.context_len > CHAIN.context_len else HAPPENING if setup.radix else STEPS
    case = Case(setup=setup, steps=steps)
    trace = newest.run(case)
    verdicts = judge_all(case, trace)
    wrong = {(verdict.oracle, verdict.where) for verdict in verdicts if verdict.status is Status.FAIL}
    assert wrong <= (SHARED if setup.radix else set()), verdicts
    assert np.isfinite(trace.path(0, "served")["state_temporal0"]).any(), "no state was judged"
    assert (int(trace.facts["cached tokens"]) > 0) == setup.radix


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_of_states_is_seen(name: str, newest: Pool) -> None:
    assert_seen(PLANTS[name], newest)
