"""Rounds of sparse attention, whose draft steps share a choice of keys, and whose queries choose few: right ones pass,
and planted bugs of a choice are seen."""

from __future__ import annotations

import pytest
import torch

from oracles import kv_rows, logits, text
from oracles.catalogue import judge_all
from repro.cases.case import Case, Request, Setup, Step
from repro.cases.release_list import NEWEST
from repro.traces.finding import Status
from runners.processes.pool import Pool
from runners.releases.reference import operations as op
from runners.releases.reference.indexing import Choice, among
from tests.runners.releases.test_round_plants import DRAFT, EXECUTE, Plant, assert_seen

SPARSE = Setup(
    runner="round",
    backend="fa3",
    family="deepseek_v32",
    algorithm="NEXTN",
    topk=1,
    num_steps=3,
    num_draft_tokens=4,
    capture_bs=(1, 2, 4),
    slots=5,
    page_size=64,
    context_len=128,
    hidden_size=512,
    head_dim=64,
    dtype="bfloat16",
    index_share=True,
    index_topk=4,
)
STEPS = (
    Step(requests=(Request(slot=1, seq_len=30, data=1, further=9), Request(slot=2, seq_len=9, data=2, further=16))),
    Step(requests=(Request(slot=3, seq_len=17, data=3, further=9),), wait=3),
)
WORKER = "sglang/srt/speculative/eagle_worker_v2.py"
INDEXER = "sglang/srt/layers/attention/dsa/dsa_indexer.py"
PLANTS = {
    "draft steps share the choice of another request": Plant(
        file=WORKER,
        function="EagleDraftWorker._draft_extend_for_decode",
        old="dsa_extend_topk_capture[select_index]",
        new="dsa_extend_topk_capture[select_index.flip(0)]",
        setup=SPARSE,
        steps=STEPS,
        seen_by=((logits.ORACLE, logits.DRAFTED),),
    ),
    "a verify stores no keys to choose by": Plant(
        file=INDEXER,
        function="Indexer._store_index_k_cache",
        old="        if out_cache_loc is None:\n            out_cache_loc = forward_batch.out_cache_loc\n",
        new="        if forward_batch.forward_mode.is_target_verify():\n            return\n"
        "        if out_cache_loc is None:\n            out_cache_loc = forward_batch.out_cache_loc\n",
        setup=SPARSE,
        steps=STEPS,
        seen_by=((kv_rows.ORACLE, "rows of the target index"), (text.ORACLE, text.TOKEN), (logits.ORACLE, logits.OFF)),
    ),
    "the draft graph keeps an old choice": Plant(
        file=DRAFT,
        function=EXECUTE,
        old="buffers.dsa_seed_topk[:raw_bs].copy_(seed)",
        new="pass",
        setup=SPARSE,
        steps=STEPS,
        seen_by=(("staged", "real rows of dsa_seed_topk"), (logits.ORACLE, logits.DRAFTED)),
    ),
    "later draft steps choose anew": Plant(
        file="sglang/srt/models/deepseek_common/attention_forward_methods/forward_mla.py",
        function="DeepseekMLAForwardMixin.should_run_indexer",
        old="(self.is_nextn and prev_topk_indices is None)",
        new="self.is_nextn",
        setup=SPARSE,
        steps=STEPS,
        seen_by=((logits.ORACLE, logits.DRAFTED),),
    ),
}


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_rounds_with_few_chosen_keys_pass(newest: Pool) -> None:
    case = Case(setup=SPARSE, steps=STEPS)
    trace = newest.run(case)
    verdicts = {verdict.oracle: verdict.status for verdict in judge_all(case, trace)}
    assert Status.FAIL not in verdicts.values(), verdicts
    assert verdicts[logits.ORACLE] is verdicts[kv_rows.ORACLE] is Status.PASS
    of, whole = (int(word) for word in trace.facts["choices"].split() if word.isdecimal())
    assert 0 < of < whole / 2


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_of_a_choice_is_seen(name: str, newest: Pool) -> None:
    assert_seen(PLANTS[name], newest)


def query_of(*scores: list[float], count: int = 1) -> Choice:
    """One query whose keys have these scores, exactly and in samples."""
    keys = torch.tensor(scores, dtype=torch.float64)[:, :, None]
    weights = torch.ones(len(scores), 1, 1, dtype=torch.float64)
    return Choice(queries=weights[:, :, None], keys=keys, weights=weights, count=count)


@pytest.mark.parametrize(
    ("scores", "sure"),
    [
        ([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]], True),
        ([[3.0, 1.0, 2.999], [3.0, 1.0, 2.999]], False),  # within the part of their spread
        ([[3.0, 1.0, 2.0], [2.8, 1.0, 2.0]], False),  # within what rounding moves them by
        ([[3.0, 1.0, 2.0], [2.0, 0.0, 1.0]], True),  # which moves them together
        ([[3.0, 3.0, 2.0], [3.0, 3.0, 2.0]], False),
    ],
)
def test_a_choice_is_sure_that_rounding_does_not_turn(scores: list[list[float]], sure: bool) -> None:
    mask, known = query_of(*scores).seen(torch.ones(1, 3, dtype=torch.bool))
    assert bool(known) is sure
    assert int(mask.sum()) == 1


def test_a_query_sees_no_key_behind_it_and_all_where_there_are_few() -> None:
    before = torch.tensor([[True, True, False]])
    mask, known = query_of([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).seen(before)
    assert mask.tolist() == [[False, True, False]]
    assert bool(known)
    mask, known = query_of([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], count=2).seen(before)
    assert mask.tolist() == before.tolist()
    assert bool(known)


def test_of_a_query_that_sees_an_unknown_key_nothing_is_known() -> None:
    keys = torch.tensor([1.0, torch.nan], dtype=torch.float64).view(1, 2, 1, 1).expand(2, -1, -1, -1)
    seen = op.Attended(keys=keys[0, :0], values=keys[0, :0], new_keys=keys, new_values=keys, mask=torch.ones(2, 2) > 0)
    choices = torch.tensor([[True, False], [True, True]])
    among_them, unknown = among(seen, choices, torch.tensor([True, True]))
    assert unknown.tolist() == [False, True]
    assert not among_them.new_keys.isnan().any()
    assert among(seen, choices, torch.tensor([False, True]))[1].tolist() == [True, True]
