"""Bugs planted in the newest release, each seen in rounds by the oracle that is meant for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from oracles import kv_indices, lifetime, logits, rounds, slot0_padding, text
from oracles.catalogue import judge_all
from repro.cases.case import Case, Setup, Target
from repro.cases.release_list import NEWEST
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from tests.builders.only_verdict import wheres
from tests.builders.planted import planted
from tests.test_round import CHAIN, STEPS, TREE

TARGET = Target(NEWEST, "emulated")
COMMON = "sglang/srt/speculative/eagle_worker_common.py"
DRAFT = "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py"
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


OF_TEXT = ((text.ORACLE, text.TOKEN), (logits.ORACLE, logits.OFF))
DRAFTED = ((rounds.ORACLE, "draft drafted"),)
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
}


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str) -> None:
    plant = PLANTS[name]
    case = Case(setup=plant.setup, steps=STEPS)
    with Pool(TARGET, timeout_s=300) as planting:
        planting.change(planted(TARGET, plant.file, plant.function, plant.old, plant.new))
        trace = planting.run(case)
    assert trace.ended.how is Termination.DONE, trace.ended
    places = wheres(judge_all(case, trace))
    assert {(oracle, where) for oracle in places for where in places[oracle]} >= set(plant.seen_by)
