"""Rounds with DSPARK, whose blocks are chosen token by token through a Markov head: texts are the target's, blocks are
accepted in part, and the float64 pass knows what each token should have drafted."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Request, Setup, Step, Target, problems
from repro.cases.launch import command, setup_of
from repro.cases.release_list import NEWEST
from repro.cases.rows.serving import BLOCK, launched
from repro.traces.finding import Status
from repro.traces.trace import Trace
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
    algorithm="DSPARK",
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
    assert {count.split()[2] for count in trace.facts["launches"].split(", ")} == {BLOCK, "verify"}
    assert "drafts" not in trace.facts  # which would say why they are not judged
    assert {1, SETUP.num_draft_tokens} <= set(_accepted(trace).tolist())


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(
    "changes",
    [
        {"overlap": True, "radix": True, "logprobs": True, "sampled": True, "disagreement": 100},
        {"backend": "fa3", "dtype": "float16", "head_dim": 64, "overlap": True},
        {"backend": "flashinfer", "dtype": "bfloat16", "head_dim": 64, "capture_bs": (1,)},
        {"window": 7, "swa": True, "prefill_max_bs": 16, "num_draft_tokens": 2},
    ],
    ids=("overlap", "fa3", "flashinfer", "window"),
)
def test_so_they_are_by_other_ways(changes: dict[str, Any], newest: Pool) -> None:
    case = replace(CASE, setup=replace(SETUP, **changes))
    trace = newest.run(case)
    assert not [verdict for verdict in judge_all(case, trace) if verdict.status is Status.FAIL]
    assert _accepted(trace).max() > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A bug of sglang, and who sees it on a setup with these changes."""

    file: str
    function: str
    old: str
    new: str
    seen_by: frozenset[str]
    changes: dict[str, Any]


_PARTS = "sglang/srt/speculative/dspark_components"
PLANTS = {
    "each token of a block is chosen as if the first one stood before it": Plant(
        file=f"{_PARTS}/dspark_draft.py",
        function="draft_markov_block",
        old="draft_tokens.append(prev_tokens)",
        new="draft_tokens.append(prev_tokens); prev_tokens = anchor_tokens.long()",
        seen_by=frozenset({"logits"}),
        changes={"disagreement": 300},
    ),
    "a block lies a position behind its KV slots": Plant(
        file=f"{_PARTS}/dspark_draft.py",
        function="DraftBlockProposer._run_forward",
        old="positions_2d[:, :query_token_num].reshape(-1)",
        new="positions_2d[:, 1 : query_token_num + 1].reshape(-1)",
        seen_by=frozenset({"logits"}),
        changes={"disagreement": 100},
    ),
    "a block begins with the token of the round before": Plant(
        file=f"{_PARTS}/dspark_draft.py",
        function="DraftBlockProposer._run_forward",
        old="draft_block_ids[:, 0].copy_(draft_input.bonus_tokens.view(-1))",
        new="pass",
        seen_by=frozenset({"text"}),
        changes={},
    ),
    "a row of hidden states belongs to the token before": Plant(
        file=f"{_PARTS}/dspark_verify.py",
        function="TargetVerifyExecutor.commit_hidden",
        old="target_hidden=hidden.reshape(-1, hidden.shape[-1]),",
        new="target_hidden=hidden.roll(1, 1).reshape(-1, hidden.shape[-1]),",
        seen_by=frozenset({"kv_rows"}),
        changes={},
    ),
    "slots are reserved for one block, and lengths on the host are those of the round before": Plant(
        file="sglang/srt/speculative/dflash_info_v2.py",
        function="DFlashDraftInputV2.prepare_for_decode",
        old="reserve = 2 * block_size",
        new="reserve = block_size",
        seen_by=frozenset({"kv_rows"}),
        changes={"overlap": True, "page_size": 1},
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


def test_a_block_has_a_token_less_than_its_verify() -> None:
    assert not problems(CASE)
    assert [launched(SETUP, name).num_draft_tokens for name in ("verify", BLOCK)] == [6, 5]
    assert launched(replace(SETUP, algorithm="DFLASH"), BLOCK).num_draft_tokens == 6


def test_a_server_may_count_a_block_without_its_first_token() -> None:
    words = [word for word in shlex.split(command(SETUP)) if word != "\n"]
    assert setup_of("round", command(SETUP)).num_draft_tokens == SETUP.num_draft_tokens
    place = words.index("--speculative-num-draft-tokens")
    words[place : place + 2] = ["--speculative-dspark-block-size", "5"]
    assert setup_of("round", shlex.join(words)).num_draft_tokens == SETUP.num_draft_tokens
