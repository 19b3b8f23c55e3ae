"""Rounds of a rank that shares heads and vocabulary with another one, on the newest release."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from fuzz.draw.rounds import round_cases
from oracles import collectives
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Setup, problems
from repro.cases.launch import flags, setup_of
from repro.cases.release_list import NEWEST
from repro.cases.sharing import like_server, ranks_of, share_of, sharers_of
from repro.traces.finding import Status
from runners.processes.pool import Pool
from tests.runners.releases.test_round import CHAIN, STEPS, TREE
from tests.runners.releases.test_round_plants import Plant, assert_seen
from tests.runners.releases.test_round_ranks import FA3, RANKED
from tests.runners.releases.test_round_ranks import STEPS as BESIDE

SHARED = replace(CHAIN, tp_size=2)
SETUPS = {
    "a chain": SHARED,
    "a tree, requests that sample": replace(TREE, tp_size=2, sampled=True, overlap=True),
    "EAGLE3 over FlashAttention 3": replace(SHARED, algorithm="EAGLE3", backend="fa3", head_dim=64, dtype="float16"),
}
PLANTS = {
    "what a rank draws stays with it": Plant(
        file="sglang/srt/speculative/eagle_utils.py",
        function="eagle_sample",
        old="# sampled tokens. Broadcast from rank 0 to ensure consistency.\n        tp_group = (\n"
        "            get_parallel().attn_tp_group\n            if is_dp_attention_enabled()\n"
        "            else get_parallel().tp_group\n        )\n        if tp_group.world_size > 1:",
        new="if False:",
        setup=replace(SHARED, sampled=True),
        seen_by=((collectives.ORACLE, collectives.DRAWN),),
    ),
    "ranks that replay a graph call one more": Plant(
        file="sglang/srt/speculative/eagle_draft_cuda_graph_runner.py",
        function="EAGLEDraftCudaGraphRunner.execute",
        old="num_tokens = bs * self.captured_req_width",
        new="num_tokens = bs * self.captured_req_width\n"
        "        get_parallel().tp_group.broadcast(forward_batch.seq_lens, src=0)",
        setup=SHARED,
        seen_by=((collectives.ORACLE, collectives.GRAPHS),),
    ),
}
# In groups of two ranks, beside another such group.
GROUPS = {
    "triton, one draft step": replace(
        RANKED, backend="triton", tp_size=4, capture_bs=(2, 4), slots=5, num_steps=1, num_draft_tokens=2
    ),
    "FlashAttention 3": replace(FA3, tp_size=4, capture_bs=(2, 4), slots=5),
}


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", GROUPS)
def test_texts_do_not_depend_on_another_group(name: str, newest: Pool) -> None:
    case = Case(setup=GROUPS[name], steps=BESIDE)
    verdicts = judge_all(case, newest.run(case))
    assert overall(verdicts) is Status.PASS, verdicts
    assert collectives.ORACLE in {each.oracle for each in verdicts if each.status is Status.PASS}


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str, newest: Pool) -> None:
    assert_seen(PLANTS[name], newest)


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", SETUPS)
def test_texts_are_those_of_this_ranks_share(name: str, newest: Pool) -> None:
    case = Case(setup=SETUPS[name], steps=STEPS)
    verdicts = judge_all(case, newest.run(case))
    assert overall(verdicts) is Status.PASS, verdicts


def test_a_share_is_half_of_what_ranks_share_and_all_of_what_is_too_little() -> None:
    share = share_of(replace(SHARED, num_heads=4, num_kv_heads=1, draft_num_heads=2, draft_num_kv_heads=2))
    assert (share.tp_size, share.vocab_size, share.num_heads, share.num_kv_heads) == (1, 64, 2, 1)
    assert (share.draft_num_heads, share.draft_num_kv_heads) == (1, 1)
    assert share_of(CHAIN) == CHAIN and (ranks_of(CHAIN), sharers_of(SHARED)) == (1, 2)


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        (replace(SHARED, num_heads=1, num_kv_heads=1), "two ranks cannot have as many heads and tokens each"),
        (replace(SHARED, vocab_size=96), "two ranks cannot have as many heads and tokens each"),
        (replace(SHARED, tp_size=4), "tp_size 4 is not two ranks in a group"),
        (
            replace(GROUPS["FlashAttention 3"], capture_bs=(1, 2)),
            "beside another group two ranks capture even buckets alone",
        ),
        (replace(SHARED, runner="draft"), "the draft runner has one rank in a group"),
    ],
)
def test_what_ranks_cannot_share_is_refused(setup: Setup, why: str) -> None:
    assert problems(Case(setup=setup, steps=STEPS))[0] == f"setup: {why}"


def test_some_drawn_setups_share_heads() -> None:
    drawn = [case for n in range(30) for case in islice(round_cases(5, n, "round", "triton", 6), 1)]
    assert [problems(case) for case in drawn] == [[]] * len(drawn)
    assert {sharers_of(case.setup) for case in drawn} == {1, 2}


def test_a_server_of_many_ranks_is_like_two_in_a_group() -> None:
    assert [like_server(*each) for each in ((1, 1), (8, 1), (2, 2), (8, 8), (8, 2), (16, 4))] == [1, 2, 1, 1, 4, 4]
    assert setup_of("round", "--tp-size 8 --speculative-algorithm EAGLE").tp_size == 2
    assert "--tp-size 2" in flags(SHARED)
