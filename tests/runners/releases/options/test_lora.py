"""Rounds with adapters of weights (LoRA), on the newest release: each text is that of the target with its request's
adapter, and planted bugs of their metadata are seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oracles import memory
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Request, Step, problems
from repro.cases.codec import case_from_json, case_to_json
from repro.cases.launch import flags, setup_of
from repro.cases.release_list import NEWEST
from repro.cases.rows.adapters import ADAPTERS, TRITON, adapter_of
from repro.traces.finding import Status
from runners.processes.pool import Pool
from tests.builders.tiers import few
from tests.runners.releases.test_round import CHAIN, HAPPENING, SMALL, TREE
from tests.runners.releases.test_round_plants import OF_TEXT, Plant, assert_seen
from tests.runners.releases.test_round_ranks import RANKED

ADAPTED = replace(CHAIN, enable_lora=True, max_loras_per_batch=ADAPTERS + 1)
# One of two ranks, of a model that may be.
BESIDE: dict[str, Any] = {
    "family": RANKED.family,
    "dp_attention": True,
    "lora_backend": TRITON,
    "hidden_size": RANKED.hidden_size,
    "head_dim": RANKED.head_dim,
    "dtype": RANKED.dtype,
}
# A batch whose graph has room for one more, and a rank that goes on without requests.
RANKS = (
    Step(requests=tuple(Request(slot=n, seq_len=4 + n, data=n, further=9) for n in (1, 2, 3)), elsewhere=1),
    Step(requests=(), wait=2, elsewhere=2),
    Step(requests=(Request(slot=1, seq_len=7, data=4, further=4),), wait=3),
    Step(requests=(), wait=6, elsewhere=2),
)
SETUPS = {
    "a tree, and an adapter of the output layer": replace(
        ADAPTED, topk=TREE.topk, num_draft_tokens=TREE.num_draft_tokens, lora_head=True, overlap=True
    ),
    "Triton's kernels, and requests that wait for room": replace(
        ADAPTED, lora_backend=TRITON, lora_head=True, max_loras_per_batch=ADAPTERS, radix=True
    ),
    "a batch of one adapter": replace(ADAPTED, max_loras_per_batch=1, overlap=True),
    "log-probabilities and chunks": replace(
        ADAPTED, lora_backend=TRITON, lora_head=True, logprobs=True, logprob_start_len=0, returns_hidden=True, chunk=8
    ),
    "prefill graphs": replace(ADAPTED, lora_head=True, prefill_max_bs=32),
    "prefill graphs and Triton's kernels": replace(ADAPTED, lora_backend=TRITON, prefill_max_bs=32, overlap=True),
    "full prefill graphs": replace(
        ADAPTED, backend="fa3", dtype="float16", head_dim=64, prefill_max_bs=32, prefill_backend="full"
    ),
    "EAGLE3": replace(ADAPTED, algorithm="EAGLE3", lora_head=True),
    "a table": replace(
        ADAPTED, algorithm="NGRAM", topk=TREE.topk, num_steps=1, num_draft_tokens=6, lora_head=True, overlap=True
    ),
    "blocks of DSPARK": replace(ADAPTED, algorithm="DSPARK", num_steps=1, lora_head=True, overlap=True),
    "flashinfer": replace(ADAPTED, backend="flashinfer", dtype="float16", head_dim=64),
}
BACKENDS = "sglang/srt/lora/backend/"
PREPARE = "prepare_lora_batch"
PLANTS = {
    "requests run without their adapters": Plant(
        file="sglang/srt/model_executor/forward_batch_info.py",
        function="ForwardBatch.init_new",
        old="lora_ids=[req.lora_id for req in batch.reqs]",
        new="lora_ids=[None for req in batch.reqs]",
        setup=ADAPTED,
        seen_by=OF_TEXT,
    ),
    "a graph's rows keep the adapters of the batch before": Plant(
        file=f"{BACKENDS}triton_backend.py",
        function=f"TritonLoRABackend.{PREPARE}",
        old="batch_info.weight_indices[:bs].copy_(weight_indices_tensor, non_blocking=True)",
        new="(batch_info.weight_indices[:bs].clone() if use_cuda_graph else batch_info.weight_indices).copy_("
        "weight_indices_tensor, non_blocking=True)",
        setup=replace(ADAPTED, lora_backend=TRITON),
        seen_by=OF_TEXT,
    ),
    "unused segments keep those of an earlier batch": Plant(
        file=f"{BACKENDS}chunked_backend.py",
        function=f"ChunkedSgmvLoRABackend.{PREPARE}",
        old="            batch_info = self.cuda_graph_batch_info\n"
        "            batch_info.bs = bs\n"
        "            batch_info.num_segments = num_segments\n"
        "            batch_info.max_len = chunk_size\n"
        "            max_num_segments = batch_info.weight_indices.shape[0]\n"
        "            has_unused_cuda_graph_segments = num_segments < max_num_segments\n",
        new="            batch_info = self.cuda_graph_batch_info\n"
        "            batch_info.bs = bs\n"
        "            batch_info.num_segments = num_segments\n"
        "            batch_info.max_len = chunk_size\n",
        setup=ADAPTED,
        seen_by=((memory.ORACLE, "load outside output in _chunked_lora_expand_kernel"),),
    ),
    "a prefill graph runs with the adapters of the batch before": Plant(
        file=f"{BACKENDS}triton_backend.py",
        function=f"TritonLoRABackend.{PREPARE}",
        old="sgemm.weight_indices[:num_segments].copy_(",
        new="sgemm.weight_indices[:num_segments].clone().copy_(",
        setup=replace(ADAPTED, lora_backend=TRITON, prefill_max_bs=32),
        seen_by=OF_TEXT,
    ),
    "an adapter's rows stay where a smaller one is loaded": Plant(
        file="sglang/srt/lora/mem_pool.py",
        function="LoRAMemoryPool.load_lora_weight_to_buffer",
        old="                buffer_view.zero_()\n",
        new="                pass\n",
        setup=replace(ADAPTED, max_loras_per_batch=ADAPTERS),
        seen_by=OF_TEXT,
    ),
}


def test_requests_of_equal_prompts_have_different_adapters() -> None:
    each = [adapter_of(ADAPTED, step, row, data=1) for step in range(2) for row in range(2)]
    assert each == [1, 2, 2, 0]
    assert adapter_of(CHAIN, 0, 0, data=1) == 0


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({}, ""),
        ({"algorithm": "STANDALONE"}, "sglang takes no adapters with STANDALONE"),
        ({"adaptive": 2}, "sglang takes no adapters with speculative_adaptive"),
        ({"plan_stream": True}, "sglang takes no adapters with a stream for plans"),
        ({"tp_size": 2}, "adapters of ranks that share heads are not driven"),
        ({"family": "deepseek_v3", "algorithm": "NEXTN"}, "adapters of deepseek_v3 models are not driven"),
        ({"family": "glm4_moe", "lora_head": True}, "an adapter of the output layer is driven with Llama alone"),
        ({**BESIDE, "lora_backend": "csgmv"}, "sglang adapts batches beside other ranks by triton kernels alone"),
        ({**BESIDE, "max_loras_per_batch": ADAPTERS}, "beside other ranks sglang keeps all adapters at once"),
        (BESIDE, ""),
        ({"runner": "verify"}, "the verify runner has no scheduler"),
        ({"lora_backend": "torch_native"}, "lora_backend 'torch_native' is not one of csgmv, triton"),
        ({"enable_lora": False}, "there are no adapters without enable_lora"),
    ],
)
def test_some_setups_have_no_adapters(changes: dict[str, Any], refusal: str) -> None:
    changed = replace(ADAPTED, **changes)
    refusals = problems(replace(SMALL, setup=changed))
    assert any(refusal in each for each in refusals) if refusal else not refusals


def test_a_launch_command_has_adapters() -> None:
    setup = replace(ADAPTED, lora_backend=TRITON)
    text = " ".join(flags(setup))
    assert "--enable-lora --max-loras-per-batch 3 --lora-backend triton" in text and "--lora-paths" in text
    again = setup_of("round", f"python -m sglang.launch_server {text}")
    assert (again.enable_lora, again.max_loras_per_batch, again.lora_backend) == (True, 3, TRITON)


def test_a_case_with_adapters_is_read_as_it_was_written() -> None:
    case = Case(setup=replace(ADAPTED, lora_head=True), steps=SMALL.steps)
    assert case_from_json(case_to_json(case)) == case
    assert "lora" not in str(case_to_json(SMALL))


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", few(SETUPS, 1))
def test_a_text_is_that_of_its_adapter(name: str, newest: Pool) -> None:
    case = Case(setup=SETUPS[name], steps=HAPPENING)
    for _ in range(2):  # the second time no adapter is where the first case left it
        verdicts = judge_all(case, newest.run(case))
        assert overall(verdicts) is Status.PASS, verdicts


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
def test_a_text_beside_another_rank_is_that_of_its_adapter(newest: Pool) -> None:
    case = Case(setup=replace(ADAPTED, **BESIDE), steps=RANKS)
    statuses = {verdict.oracle: verdict.status for verdict in judge_all(case, newest.run(case))}
    assert statuses["text"] is statuses["logits"] is statuses["collectives"] is Status.PASS
    assert Status.FAIL not in statuses.values()


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_of_adapters_is_seen(name: str, newest: Pool) -> None:
    assert_seen(PLANTS[name], newest)
