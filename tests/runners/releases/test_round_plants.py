"""Bugs planted in the newest release, each seen in rounds by the oracle that is meant for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from oracles import (
    handed_on,
    kv_indices,
    kv_rows,
    leaks,
    lifetime,
    logits,
    order,
    rounds,
    slot0_padding,
    text,
)
from oracles.catalogue import judge_all
from repro.cases.case import Case, Request, Setup, Step, Target
from repro.cases.release_list import NEWEST
from repro.traces.trace import Trace
from runners.processes.pool import Pool
from tests.builders.only_verdict import wheres
from tests.builders.planted import planted
from tests.builders.tiers import few
from tests.runners.releases.test_round import CHAIN, HAPPENING, STEPS, TREE

TARGET = Target(NEWEST, "emulated")
COMMON = "sglang/srt/speculative/eagle_worker_common.py"
DRAFT = "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py"
PREFILL = "sglang/srt/model_executor/runner/prefill_cuda_graph_runner.py"
EXECUTE = "EAGLEDraftCudaGraphRunner.execute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A change of one place, and the oracles that see it in a case, each with its place."""

    file: str
    function: str
    old: str
    new: str
    setup: Setup
    seen_by: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...] = STEPS


OF_TEXT = ((text.ORACLE, text.TOKEN), (logits.ORACLE, logits.OFF))
DRAFTED = ((rounds.ORACLE, "draft drafted"),)
EARLY = "read before it is written"
PLANTS = {
    "the KV rows of an accepted path are not moved": Plant(
        file=COMMON,
        function="_finalize_accept_tree_path",
        old="batch, accept_index, accept_lens - 1, token_to_kv_pool_allocator\n    )",
        new="batch, accept_index, (accept_lens - 1) * 0, token_to_kv_pool_allocator\n    )",
        setup=replace(TREE, disagreement=30),
        seen_by=OF_TEXT,
    ),
    "the tokens of an accepted path are not compacted": Plant(
        file=COMMON,
        function="_compact_accept_to_front",
        old="gathered = x[safe]",
        new="gathered = x.view(bs, nd, *x.shape[1:])[:, :s1].reshape(safe.shape[0], *x.shape[1:])",
        setup=replace(TREE, disagreement=30),
        seen_by=OF_TEXT,
    ),
    "the target's logits are read when drafts were extended": Plant(
        file="sglang/srt/speculative/eagle_worker_v2.py",
        function="EAGLEWorkerV2.forward_batch_generation",
        old="batch, batch_output, kv_loc_plan=verify_input.kv_loc_plan\n                    )\n",
        new="batch, batch_output, kv_loc_plan=verify_input.kv_loc_plan\n                    )\n"
        "                    batch_output.logits_output.next_token_logits.sum()\n",
        setup=CHAIN,
        seen_by=(
            (
                lifetime.ORACLE,
                "verify read by srt/speculative/eagle_worker_v2.py forward_batch_generation",
            ),
        ),
    ),
    "the draft graph keeps old hidden states": Plant(
        file=DRAFT,
        function=EXECUTE,
        old="buffers.hidden_states[:raw_bs].copy_(forward_batch.spec_info.hidden_states)",
        new="pass",
        setup=replace(CHAIN, disagreement=30),
        seen_by=DRAFTED,
    ),
    "padding of the draft graph keeps a request's row": Plant(
        file=DRAFT,
        function=EXECUTE,
        old="            buffers.req_pool_indices.zero_()\n",
        new="            pass\n",
        setup=CHAIN,
        seen_by=((slot0_padding.ORACLE, "padded rows of req_pool_indices"), (kv_indices.ORACLE, kv_indices.PADDED)),
    ),
    "the draft graph keeps old lengths": Plant(
        file=DRAFT,
        function=EXECUTE,
        old="            buffers.seq_lens[:raw_bs],\n",
        new="            buffers.seq_lens[:raw_bs].clone(),\n",
        setup=CHAIN,
        seen_by=DRAFTED,
    ),
    "the draft graph keeps old KV slots": Plant(
        file=DRAFT,
        function=EXECUTE,
        old="buffers.out_cache_loc[: raw_num_token * self.speculative_num_steps],\n            buffers",
        new="buffers.out_cache_loc[: raw_num_token * self.speculative_num_steps].clone(),\n            buffers",
        setup=CHAIN,
        seen_by=DRAFTED,
    ),
    "the KV slots of a request are freed twice": Plant(
        file="sglang/srt/mem_cache/common.py",
        function="release_kv_cache",
        old="tree_cache.free_kv_row(req.kv, [(req.kv.cache_protected_len, owned_kv_len)])\n",
        new="tree_cache.free_kv_row(req.kv, [(req.kv.cache_protected_len, owned_kv_len)])\n"
        "    tree_cache.free_kv_row(req.kv, [(req.kv.cache_protected_len, owned_kv_len)])\n",
        setup=CHAIN,
        seen_by=((leaks.ORACLE, "KV slots freed twice at srt/mem_cache/common.py free_kv_row_segments"),),
    ),
    "a retracted request keeps its draft state": Plant(
        file="sglang/srt/managers/scheduler.py",
        function="Scheduler._relay_forward_payload",
        old="[: batch.beam_tail.num_base_rows]\n",
        new="[: batch.beam_tail.num_base_rows]\n"
        "        states = self.__dict__.setdefault('states', {})\n"
        "        for row, req in enumerate(batch.reqs):\n"
        "            if batch_result.accept_lens is None and req.rid in states:\n"
        "                payload.hidden_states[row] = states[req.rid]\n"
        "            states[req.rid] = payload.hidden_states[row].clone()\n",
        setup=replace(CHAIN, overlap=True, radix=True, disagreement=300),
        steps=HAPPENING,
        seen_by=((handed_on.ORACLE, "hidden_states behind a retraction"),),
    ),
    # A draft's row is made of the token behind it, too, so that the last one of a prefix in common is not in common.
    "a cached prefix has a stale KV row of the draft": Plant(
        file="sglang/srt/mem_cache/kv_cache_builder.py",
        function="build_kv_cache",
        old="is_eagle=spec_algorithm.is_eagle(),",
        new="is_eagle=False,",
        setup=replace(CHAIN, radix=True),
        steps=(
            Step(requests=(Request(slot=1, seq_len=9, data=1, further=3),)),
            Step(requests=(Request(slot=1, seq_len=30, data=1, further=9),), wait=12),
        ),
        seen_by=((kv_rows.ORACLE, "rows of the draft of a cached prefix"), (logits.ORACLE, logits.DRAFTED)),
    ),
    "a prefill graph of the draft keeps old hidden states": Plant(
        file=PREFILL,
        function="PrefillCudaGraphRunner.load_batch",
        old="self.static_draft_hidden_states[:num_tokens].copy_(\n"
        "                forward_batch.spec_info.hidden_states\n            )",
        new="pass",
        setup=replace(CHAIN, prefill_max_bs=64, disagreement=30),
        seen_by=((kv_rows.ORACLE, "rows of the draft"),),
    ),
    "hidden states of a request are those of another row": Plant(
        file="sglang/srt/managers/scheduler_components/batch_result_processor.py",
        function="SchedulerBatchResultProcessor.process_batch_result_decode",
        old="start = i * stride",
        new="start = i",
        setup=replace(CHAIN, returns_hidden=True),
        seen_by=((logits.ORACLE, logits.STATES),),
    ),
    "requests sample at each other's temperatures": Plant(
        file="sglang/srt/speculative/eagle_utils.py",
        function="eagle_sample",
        old="expanded_temperature = torch.repeat_interleave(\n            sampling_info.temperatures, "
        "verify_input.draft_token_num, dim=0\n        )",
        new="expanded_temperature = sampling_info.temperatures.flip(0).repeat_interleave(\n            "
        "verify_input.draft_token_num, dim=0\n        )",
        setup=replace(CHAIN, sampled=True),
        seen_by=((text.ORACLE, text.TOKEN),),
    ),
    "a draft graph draws at old temperatures": Plant(
        file=DRAFT,
        function=EXECUTE,
        old="self.temperatures[:raw_bs].copy_(",
        new="self.temperatures[:raw_bs].clone().copy_(",
        setup=replace(CHAIN, rejection=True),
        seen_by=(("staged", "real rows of temperatures"), *DRAFTED),
    ),
    "a switch to another number of draft steps keeps the target's backend": Plant(
        file="sglang/srt/speculative/eagle_worker_v2.py",
        function="EAGLEWorkerV2.apply_runtime_state",
        old="self._target_worker.model_runner.attn_backend = state.target_attn_backend",
        new="pass",
        setup=replace(CHAIN, adaptive=1, overlap=True, disagreement=30),
        seen_by=(("tree_mask", "start of a row's mask"), (kv_indices.ORACLE, "segment of a real row")),
    ),
    "results are copied to the host before they are there": Plant(
        file="sglang/srt/managers/scheduler.py",
        function="Scheduler._copy_result_to_cpu",
        old="self.copy_stream.wait_stream(self.forward_stream)",
        new="pass",
        setup=replace(CHAIN, overlap=True),
        seen_by=((order.ORACLE, f"{EARLY}: srt/managers/utils.py copy_to_cpu and srt/layers/sampler.py forward"),),
    ),
    "results are read on the host before they are copied": Plant(
        file="sglang/srt/managers/scheduler_components/batch_result_processor.py",
        function="SchedulerBatchResultProcessor.process_batch_result_decode",
        old="result.copy_done.synchronize()",
        new="pass",
        setup=replace(CHAIN, overlap=True),
        seen_by=(
            (
                order.ORACLE,
                f"{EARLY}: srt/managers/scheduler_components/batch_result_processor.py _resolve_spec_v2_tokens and "
                "srt/managers/utils.py copy_to_cpu",
            ),
        ),
    ),
    "a verify begins before its plan is there": Plant(
        file=COMMON,
        function="run_eagle_verify",
        old="torch.get_device_module(device).current_stream().wait_stream(plan_stream)\n        if (",
        new="if (",
        setup=replace(CHAIN, overlap=True, plan_stream=True),
        seen_by=(
            (
                order.ORACLE,
                f"{EARLY}: a replay of verify and srt/model_executor/cuda_graph_buffer_registry.py fill_from",
            ),
        ),
    ),
    "a forward begins before its batch is there": Plant(
        file="sglang/srt/managers/scheduler.py",
        function="Scheduler.run_batch",
        old="self.forward_stream.wait_stream(self.schedule_stream)\n                    if gpu",
        new="if gpu",
        setup=replace(CHAIN, overlap=True),
        seen_by=(
            (
                order.ORACLE,
                f"{EARLY}: kernels/ops/speculative/cache_locs.py assign_draft_cache_locs_contiguous_func and "
                "srt/managers/overlap_utils.py resolve_seq_lens_cpu",
            ),
        ),
    ),
}


def assert_seen(plant: Plant, pool: Pool) -> tuple[Case, Trace]:
    """The case, and its run with the change. pool: of the newest release."""
    case = Case(setup=plant.setup, steps=plant.steps)
    pool.change(planted(TARGET, plant.file, plant.function, plant.old, plant.new))
    trace = pool.run(case)
    places = wheres(judge_all(case, trace))
    seen = {(oracle, where) for oracle in places for where in places[oracle]}
    assert seen >= set(plant.seen_by), (seen, trace.ended)
    return case, trace


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", few(PLANTS, 1))
def test_a_planted_bug_is_seen(name: str, newest: Pool) -> None:
    plant = PLANTS[name]
    case, trace = assert_seen(plant, newest)
    # A stale row is further off than rounding on a GPU makes it.
    rows = {where for oracle, where in plant.seen_by if oracle == kv_rows.ORACLE}
    if rows:
        on_gpu = wheres(kv_rows.judge(case, replace(trace, facts={"engine": "cuda"})))
        assert rows <= set(on_gpu.get(kv_rows.ORACLE, ()))
