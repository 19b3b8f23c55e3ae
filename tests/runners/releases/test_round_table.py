"""Rounds that draft from a table of n-grams: texts are the target's, trees are the table's, and some are accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from oracles.catalogue import judge_all, overall
from oracles.tree_mask import LINKS, judge
from repro.cases.case import Case, Request, Setup, Step, problems
from repro.cases.families import GDN
from repro.cases.launch import flags
from repro.cases.release_list import NEWEST
from repro.cases.rows.serving import launched
from repro.shrinking.moves import refit
from repro.traces.finding import Status
from repro.traces.paths import Recorded
from repro.traces.trace import End, RecordedArray, Termination, Trace
from runners.engines.standins.tree import reconstruct_indices_from_tree_mask
from runners.processes.pool import Pool

SETUP = Setup(
    runner="round",
    topk=3,
    num_steps=1,
    num_draft_tokens=6,
    capture_bs=(1, 3),
    slots=3,
    context_len=72,
    algorithm="NGRAM",
)
STEPS = (
    Step(requests=(Request(slot=1, seq_len=9, data=1, further=20), Request(slot=2, seq_len=21, data=2, further=16))),
    Step(requests=(Request(slot=1, seq_len=5, data=3, further=9),), wait=2),
)
CASE = Case(setup=SETUP, steps=STEPS)


def _accepted(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.concatenate([seen.array for seen in trace.seen if (seen.path, seen.name) == ("round_graph", "accepted")])


@pytest.mark.emulated(NEWEST)
def test_texts_are_the_targets_and_trees_are_accepted_in_part(newest: Pool) -> None:
    trace = newest.run(CASE)
    assert overall(judge_all(CASE, trace)) is Status.PASS, judge_all(CASE, trace)
    assert {count.split()[2] for count in trace.facts["launches"].split(", ")} == {"verify"}
    assert {1, SETUP.num_draft_tokens} <= set(_accepted(trace).tolist())


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(
    "changes",
    [
        {"overlap": True, "radix": True, "logprobs": True, "sampled": True},
        {"backend": "fa3", "dtype": "float16", "head_dim": 64, "overlap": True},
        {"backend": "flashinfer", "dtype": "bfloat16", "head_dim": 64, "page_size": 4},
        {"window": 7, "swa": True, "prefill_max_bs": 16},
        # Accepted rows are moved behind the reads for which the scheduler waits: it gives slots of ended requests away.
        {"window": 64, "swa": True, "overlap": True},
        {"family": "qwen3_next", "dtype": "float16", "overlap": True},
    ],
    ids=("overlap", "fa3", "flashinfer", "window", "window_overlap", "recurrent"),
)
def test_so_they_are_by_other_ways(changes: dict[str, Any], newest: Pool) -> None:
    case = replace(CASE, setup=replace(SETUP, **changes))
    trace = newest.run(case)
    assert not [verdict for verdict in judge_all(case, trace) if verdict.status is Status.FAIL]
    assert _accepted(trace).max() > 1


def test_a_table_has_no_steps_and_any_tree() -> None:
    assert not problems(CASE)
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"num_steps": 2}, "NGRAM has no draft steps"),
        ({"num_draft_tokens": 64}, "speculative_num_draft_tokens 64 is outside 2..32"),
        ({"page_size": 4}, "NGRAM has branches with pages over flashinfer alone"),
        ({"rejection": True}, "NGRAM does not sample drafts"),
        ({"adaptive": 2}, "NGRAM keeps its number of draft steps"),
        (
            {"family": GDN, "dtype": "float16", "dp_attention": True},
            "the NGRAM algorithm is unsupported with data-parallel attention",
        ),
    )
    for changes, words in refused:
        assert any(words in problem for problem in problems(replace(CASE, setup=replace(SETUP, **changes)))), words
    assert not problems(replace(CASE, setup=replace(SETUP, page_size=4, topk=1)))
    assert refit(CASE, context_len=80).setup.num_draft_tokens == SETUP.num_draft_tokens


def test_its_servers_have_no_draft_model() -> None:
    printed = flags(SETUP)
    assert "--speculative-ngram-max-bfs-breadth 3" in printed
    assert not [flag for flag in printed if "draft-model" in flag or "steps" in flag or "topk" in flag]


@pytest.mark.parametrize(("wrong", "fails"), [(1, False), (2, True)])
def test_links_are_those_of_the_tables_tree(wrong: int, fails: bool) -> None:
    alone = launched(replace(SETUP, num_draft_tokens=4), "verify")
    case = Case(setup=alone, steps=(Step(requests=(Request(slot=1, seq_len=9, data=1),)),))
    arrays = {
        (Recorded.INPUT, "seq_lens"): np.array([9]),
        (Recorded.INPUT, "tree_parents"): np.array([[-1, 0, 0, wrong]]),
        (Recorded.BEFORE, "index"): np.arange(4)[None],
        (Recorded.BEFORE, "next_token"): np.array([[1, 3, -1, -1]]),
        (Recorded.BEFORE, "next_sibling"): np.array([[-1, 2, -1, -1]]),
    }
    seen = tuple(RecordedArray(step=0, path=path, name=name, array=array) for (path, name), array in arrays.items())
    verdict = judge(case, Trace(ended=End(how=Termination.DONE), seen=seen, facts={}))
    assert (verdict.status is Status.FAIL and verdict.where == LINKS) == fails, verdict


def _rebuilt(masks: torch.Tensor, lengths: torch.Tensor, by: Any) -> list[torch.Tensor]:
    """Positions and the three ways through the trees."""
    count, size, _ = masks.shape
    made = [torch.full((count * size,), -7, device=masks.device)]
    made += [torch.full((count, size), -7, device=masks.device) for _ in range(3)]
    by(masks.reshape(-1), lengths, *made, count, size)
    return [each.cpu().reshape(count, size) for each in made]


MASKS = torch.tensor(
    [
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]],
    ],
    dtype=torch.bool,
)


def test_a_trees_links_are_made_of_its_mask() -> None:
    positions, index, children, siblings = _rebuilt(MASKS, torch.tensor([5, 8]), reconstruct_indices_from_tree_mask)
    assert positions.tolist() == [[5, 6, 6, 7], [8, 9, 10, 9]]
    assert index.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert children.tolist() == [[1, 3, -1, -1], [1, 2, -1, -1]]
    assert siblings.tolist() == [[-1, 2, -1, -1], [-1, 3, -1, -1]]


@pytest.mark.cuda
def test_so_a_kernel_makes_them() -> None:
    kernel = pytest.importorskip("sgl_kernel.speculative").reconstruct_indices_from_tree_mask
    expected = _rebuilt(MASKS, torch.tensor([5, 8]), reconstruct_indices_from_tree_mask)
    got = _rebuilt(MASKS.cuda(), torch.tensor([5, 8]).cuda(), kernel)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(expected, got, strict=True))
