"""Rounds with a draft model that drafts whole blocks: texts are the target's, blocks are accepted in part, and the ways
of a GPU are taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from oracles.catalogue import judge_all, overall
from oracles.planned import judge
from repro.cases.case import Case, Request, Setup, Step, Target, problems
from repro.cases.exemptions import RESERVED_BLOCKS
from repro.cases.families import DEEPSEEK, GDN
from repro.cases.release_list import NEWEST
from repro.cases.rows.serving import BLOCK, launched, runner_of
from repro.shrinking.moves import refit
from repro.traces.finding import Status
from repro.traces.paths import Recorded
from repro.traces.trace import End, RecordedArray, Termination, Trace
from runners.processes.pool import Pool
from tests.builders.planted import planted

SETUP = Setup(
    runner="round",
    topk=1,
    num_steps=1,
    num_draft_tokens=6,
    capture_bs=(1, 3),
    slots=3,
    page_size=4,
    context_len=72,
    algorithm="DFLASH",
)
STEPS = (
    Step(requests=(Request(slot=1, seq_len=9, data=1, further=20), Request(slot=2, seq_len=21, data=2, further=16))),
    Step(requests=(Request(slot=1, seq_len=5, data=3, further=9),), wait=2),
)
CASE = Case(setup=SETUP, steps=STEPS)


def _accepted(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.concatenate([seen.array for seen in trace.seen if (seen.path, seen.name) == ("round_graph", "accepted")])


@pytest.mark.emulated(NEWEST)
def test_texts_are_the_targets_and_blocks_are_accepted_in_part(newest: Pool) -> None:
    trace = newest.run(CASE)
    assert overall(judge_all(CASE, trace)) is Status.PASS, judge_all(CASE, trace)
    counts = {count.split()[2] for count in trace.facts["launches"].split(", ")}
    assert counts == {BLOCK, "verify"}
    assert {1, SETUP.num_draft_tokens} <= set(_accepted(trace).tolist())


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(
    "changes",
    [
        {"overlap": True, "radix": True, "logprobs": True, "sampled": True},
        {"backend": "fa3", "dtype": "float16", "head_dim": 64, "overlap": True},
        {"backend": "flashinfer", "dtype": "bfloat16", "head_dim": 64, "capture_bs": (1,)},
        {"window": 7, "swa": True, "prefill_max_bs": 16},
    ],
    ids=("overlap", "fa3", "flashinfer", "window"),
)
def test_so_they_are_by_other_ways(changes: dict[str, Any], newest: Pool) -> None:
    case = replace(CASE, setup=replace(SETUP, **changes))
    trace = newest.run(case)
    assert not [verdict for verdict in judge_all(case, trace) if verdict.status is Status.FAIL]
    assert _accepted(trace).max() > 1


QWEN = {"family": GDN, "dtype": "float16", "hidden_size": 64, "num_heads": 2, "num_kv_heads": 1, "head_dim": 32}
# Bfloat16, as sglang makes that of a block's embeddings where no graph drafts it.
DEEPSEEK_OF_RANKS = {
    "family": DEEPSEEK,
    "backend": "flashinfer",
    "dtype": "bfloat16",
    "hidden_size": 512,
    "num_heads": 2,
    "num_kv_heads": 2,
    "head_dim": 64,
    "dp_attention": True,
    # No batch is padded: sglang's plan gives padded rows too few keys (round-blocks-padded-rows-too-short).
    "capture_bs": (1, 2),
    "slots": 2,
}


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(
    ("changes", "most", "launched_by"),
    [(QWEN, 4, {BLOCK, "verify"}), (DEEPSEEK_OF_RANKS, 1, {"verify"})],
    ids=("qwen", "deepseek"),
)
def test_blocks_are_drafted_for_other_targets(
    changes: dict[str, Any], most: int, launched_by: set[str], newest: Pool
) -> None:
    first, *others = STEPS
    beside = replace(first, elsewhere=1 if "dp_attention" in changes else 0)
    case = Case(setup=replace(SETUP, **changes), steps=(beside, *others))
    trace = newest.run(case)
    assert not [verdict for verdict in judge_all(case, trace) if verdict.status is Status.FAIL]
    assert {count.split()[2] for count in trace.facts["launches"].split(", ")} == launched_by
    assert _accepted(trace).max() >= most


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A bug of sglang, and who sees it on a setup with these changes."""

    file: str
    function: str
    old: str
    new: str
    seen_by: frozenset[str]
    changes: dict[str, Any]


_MODEL = "sglang/srt/models/dflash.py"
_INFO, _WORKER = "sglang/srt/speculative/dflash_info_v2.py", "sglang/srt/speculative/dflash_worker_v2.py"
PLANTS = {
    "slots are reserved for one block, and lengths on the host are those of the round before": Plant(
        file=_INFO,
        function="DFlashDraftInputV2.prepare_for_decode",
        old="reserve = 2 * block_size",
        new="reserve = block_size",
        seen_by=frozenset({"kv_rows"}),
        changes={"overlap": True, "page_size": 1},
    ),
    "the last slot of an allocation is recorded for no request": Plant(
        file="sglang/srt/mem_cache/allocation.py",
        function="alloc_for_spec_decode",
        old="max(req.kv.kv_allocated_len, nxt_kv_len)",
        new="max(req.kv.kv_allocated_len, nxt_kv_len - tree_cache.token_to_kv_pool_allocator.page_size)",
        seen_by=frozenset({"ended"}),  # by sglang's own count of an idle pool
        changes={"page_size": 16},
    ),
    "a row of hidden states belongs to the token before": Plant(
        file=_WORKER,
        function="DFlashWorkerV2.forward_batch_generation",
        old="target_hidden=hidden.reshape(-1, hidden.shape[-1]),",
        new="target_hidden=hidden.roll(1, 1).reshape(-1, hidden.shape[-1]),",
        seen_by=frozenset({"kv_rows"}),
        changes={},
    ),
    # With and without graphs alike, and in a fresh prefill.
    "the draft is given hidden states of another order": Plant(
        file=_MODEL,
        function="DFlashDraftModel.project_target_hidden",
        old="self.fc(target_hidden)",
        new="self.fc(target_hidden.roll(1, -1))",
        seen_by=frozenset({"logits"}),
        changes={},
    ),
    "a token of a block sees those before it alone": Plant(
        file=_MODEL,
        function="_get_dflash_layer_attention_params",
        old="return -1, AttentionType.ENCODER_ONLY",
        new="return -1, AttentionType.DECODER",
        seen_by=frozenset({"logits"}),
        changes={"disagreement": 100},
    ),
}


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_of_blocks_is_seen(name: str, newest: Pool) -> None:
    plant = PLANTS[name]
    case = replace(CASE, setup=replace(SETUP, **plant.changes))
    newest.change(planted(Target(NEWEST, "emulated"), plant.file, plant.function, plant.old, plant.new))
    trace = newest.run(case)
    seen = {verdict.oracle for verdict in judge_all(case, trace) if verdict.status is Status.FAIL}
    assert seen >= plant.seen_by, (seen, trace.ended)


def test_a_block_has_one_step_and_any_length() -> None:
    assert not problems(CASE)
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"num_steps": 2}, "a block of DFLASH is drafted with topk 1 in one step"),
        ({"num_draft_tokens": 64}, "speculative_num_draft_tokens 64 is outside 2..32"),
        ({"returns_hidden": True, "overlap": True}, "DFLASH returns no hidden states with the overlap schedule"),
        ({"rejection": True}, "DFLASH does not sample drafts"),
        ({"adaptive": 2}, "DFLASH keeps its number of draft steps"),
    )
    for changes, words in refused:
        assert any(words in problem for problem in problems(replace(CASE, setup=replace(SETUP, **changes)))), words
    assert refit(CASE, page_size=1).setup.num_draft_tokens == SETUP.num_draft_tokens
    assert refit(CASE, algorithm="EAGLE").setup.num_draft_tokens == 2


def test_blocks_are_judged_as_a_verify_without_the_targets_window() -> None:
    windowed = replace(SETUP, window=7)
    assert runner_of(BLOCK) == "verify"
    assert [launched(windowed, name).window for name in ("verify", BLOCK)] == [7, 0]


@pytest.mark.parametrize(("more", "fails"), [(0, False), (SETUP.num_draft_tokens, False), (-1, True), (200, True)])
def test_lengths_on_the_host_are_bounds(more: int, fails: bool) -> None:
    assert RESERVED_BLOCKS * SETUP.num_draft_tokens + SETUP.page_size < 200
    alone = launched(SETUP, "verify")
    case = Case(setup=alone, steps=(Step(requests=(Request(slot=1, seq_len=9, data=1),)),))
    lengths = np.array([9])
    arrays = {
        (Recorded.INPUT, "seq_lens"): lengths,
        (Recorded.BEFORE, "seq_lens_cpu"): lengths,
        (Recorded.LAUNCH, "bs"): np.array(1),
        (Recorded.PLANNED, "seq_lens"): lengths,
        (Recorded.PLANNED, "seq_lens_cpu"): lengths + more,
    }
    seen = tuple(RecordedArray(step=0, path=path, name=name, array=array) for (path, name), array in arrays.items())
    verdicts = judge(case, Trace(ended=End(how=Termination.DONE), seen=seen, facts={"sglang": NEWEST}))
    assert any(verdict.status is Status.FAIL for verdict in verdicts) == fails, verdicts
