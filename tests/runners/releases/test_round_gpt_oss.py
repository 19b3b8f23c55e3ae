"""Rounds of gpt-oss on the newest release: attention with sinks in sliding and full layers, and experts that add to
every token; clean and with planted bugs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oracles import logits
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, problems
from repro.cases.families import GPT_OSS, fitted
from repro.cases.release_list import NEWEST
from repro.traces.finding import Status
from runners.processes.pool import Pool
from tests.builders.accepted import most_accepted
from tests.runners.releases.test_round import CHAIN, STEPS, TREE
from tests.runners.releases.test_round_plants import OF_TEXT, Plant, assert_seen

SERVED = fitted(replace(CHAIN, family=GPT_OSS, head_dim=64))
SETUPS = {
    "triton, a chain": replace(SERVED, disagreement=30, overlap=True),
    "triton, EAGLE3, a prompt in chunks": replace(SERVED, algorithm="EAGLE3", chunk=8),
    "fa3, EAGLE3, a chain in bfloat16": replace(SERVED, backend="fa3", algorithm="EAGLE3", dtype="bfloat16"),
    "fa3, a tree": replace(SERVED, backend="fa3", topk=TREE.topk, num_draft_tokens=TREE.num_draft_tokens),
}
PLANTS = {
    "a verify has no sinks": Plant(
        file="sglang/srt/layers/attention/flashattention_backend.py",
        function="FlashAttentionBackend.forward_extend",
        old="if sinks is not None:",
        new="if sinks is not None and not forward_batch.forward_mode.is_target_verify():",
        setup=replace(SERVED, backend="fa3"),
        seen_by=OF_TEXT,
    ),
    "experts weigh for a token as for the one before": Plant(
        file="sglang/srt/models/gpt_oss.py",
        function="GptOssSparseMoeBlock.forward_normal",
        old="topk_output = self.topk(router_input, router_logits)",
        new="topk_output = self.topk(router_input, router_logits.roll(1, 0))",
        setup=SERVED,
        seen_by=((logits.ORACLE, logits.OFF),),
    ),
}


def test_rounds_are_served_in_half_precision() -> None:
    assert SERVED.dtype == "float16" and SERVED.swa and not problems(Case(setup=SERVED, steps=STEPS))


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", SETUPS)
def test_texts_are_the_targets(name: str, newest: Pool) -> None:
    case = Case(setup=SETUPS[name], steps=STEPS)
    trace = newest.run(case)
    assert overall(judge_all(case, trace)) is Status.PASS, judge_all(case, trace)
    assert most_accepted(trace) > 1, "no draft was accepted"


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str, newest: Pool) -> None:
    assert_seen(PLANTS[name], newest)
