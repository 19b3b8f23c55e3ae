"""MultiLayerEagleDraftExtendCudaGraphRunner and its composite, on every installed release that drives them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from repro.cases.case import Case, Setup, Step, Target, setup_problems
from repro.cases.layout import req_to_token
from repro.cases.release_list import has_runner
from repro.cases.releases import release_order
from repro.traces.trace import Trace
from repro.upstream.patch_table import CANDIDATE_PATCHES
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from runners.targets.overlay import Overlay, make_overlay
from tests.builders.cases import failures, step
from tests.builders.known_failures import has_fix_of

SETUP = Setup(runner="multi_layer", topk=1, num_steps=2, num_draft_tokens=3, capture_bs=(2, 4), slots=7)
# The last release whose layers go over ever more tokens.
LAST_GROWING = "0.5.14"
STALE = {"slot0_padding": {"padded rows of req_pool_indices"}}


FULL = step((1, 9, 1, 0), (2, 17, 2, 2), (3, 5, 3, 1), (4, 30, 4, 2))
PADDED = step((5, 7, 5, 2), (2, 11, 6, 0), (3, 21, 7, 1))
ONE = step((6, 1, 8, 1))
TWO = step((4, 2, 9, 2), (1, 3, 10, 0))


def case(*steps: Step, setup: Setup = SETUP) -> Case:
    return Case(setup=setup, steps=steps)


WHOLE = case(FULL, PADDED, ONE, TWO)


@pytest.fixture(scope="module")
def trace(target: Target, pool: Pool) -> Trace:
    if not target.is_checkout and not has_runner(target.sglang, "multi_layer", SETUP.backend):
        pytest.skip(f"{target.sglang} has this runner for FlashAttention 3 alone")
    return pool.run(WHOLE)


@pytest.fixture(scope="module")
def grows(trace: Trace) -> bool:
    """True if layers go over ever more tokens, of which the Triton backend knows nothing."""
    return not has_fix_of("multi-layer-queries-of-later-layers", trace.facts["sglang"])


def test_the_record_has_these_shapes(trace: Trace, grows: bool) -> None:
    layers, width, hidden = SETUP.num_steps, SETUP.num_draft_tokens, SETUP.hidden_size
    table = req_to_token(SETUP)
    # Since then the graph gives the results of each request's last accepted token alone.
    selects = release_order(trace.facts["sglang"]) >= release_order("0.5.20")
    for number, each in enumerate(WHOLE.steps):
        batch = len(each.requests)
        inputs, launch = trace.path(number, "input"), trace.path(number, "launch")
        assert ("rewritten" in inputs) == ("hidden_pool" in inputs) == grows
        assert (int(launch["raw_bs"]), int(launch["bs"])) == (batch, SETUP.bucket(batch))
        for name in ("seq_lens", "req_pool_indices", "input_ids", "positions", "out_cache_loc", "hidden_states"):
            np.testing.assert_array_equal(launch[name][:batch], inputs[name], err_msg=name)
        allowed = set(inputs["out_cache_loc"].flatten().tolist())
        if grows:
            before = [table[r.slot, max(0, r.seq_len - layers + 1) : r.seq_len] for r in each.requests]
            assert set(inputs["rewritten"].flatten().tolist()) - {0} == set(np.concatenate(before).tolist())
            allowed |= set(inputs["rewritten"].flatten().tolist())
        for path in ("graph", "eager"):
            left = trace.path(number, path)
            assert left["topk_index"].shape == left["topk_p"].shape == (batch, layers)
            for layer in range(layers):
                tokens = 1 if selects else width + layer * grows
                assert left[f"next_token_logits.{layer}"].shape == (batch, tokens * SETUP.vocab_size)
            if grows:
                assert left["hidden_pool"].shape == (batch, (layers - 1) * hidden)
            assert set(left["kv_slots"].tolist()) - {0} == allowed - {0}, path
        assert trace.path(number, "metadata").keys() == {"kv_indptr", "kv_indices", "qo_indptr"}
        assert int(trace.path(number, "guard")["intact"]) > 1000


def test_it_has_branches_in_no_release() -> None:
    assert setup_problems(replace(SETUP, topk=2)) == ["setup: the multi_layer runner has topk 1 only"]
    assert setup_problems(replace(SETUP, num_steps=1, num_draft_tokens=2)) == []


def deep(layers: int) -> dict[str, Any]:
    return {"num_steps": layers, "num_draft_tokens": layers + 1}


@pytest.fixture(scope="module")
def mended(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """sglang with the first repair of its later layers."""
    folder = tmp_path_factory.mktemp("mended")
    (repair,) = [each for each in CANDIDATE_PATCHES if each.seed == "multi-layer-queries-of-later-layers"]
    path = make_overlay(sglang_path(target), Overlay(release=target.sglang, change="mended"), repair.edits, folder)
    with Pool(Target(str(path), target.engine), log=folder / "log") as each:
        yield each


def test_with_as_many_queries_as_tokens_the_layers_agree_with_eager(
    request: pytest.FixtureRequest, trace: Trace
) -> None:
    """The cause of the difference up to 0.5.14, and that our eager layers do what the graphs are meant to do. What is
    left are drafts of five layers: a kernel hands on no more than 8 tokens of a request (BLOCK_SEQ)."""
    if trace.facts["sglang"] != LAST_GROWING:
        pytest.skip("one release whose layers go over ever more tokens is enough")
    pool: Pool = request.getfixturevalue("mended")
    four = case(step((1, 9, 1, 0), (2, 17, 2, 4)), ONE, TWO, setup=replace(SETUP, **deep(4), capture_bs=(2,)))
    assert failures(four, pool.run(four)) == STALE
    five = case(ONE, setup=replace(SETUP, **deep(5), capture_bs=(1,)))
    run = pool.run(five)
    assert failures(five, run) == {"graph_equals_eager": {"values of an output"}}
    graph, eager = run.path(0, "graph"), run.path(0, "eager")
    agree = [np.allclose(graph[f"next_token_logits.{n}"], eager[f"next_token_logits.{n}"], atol=1e-4) for n in range(5)]
    # Layer 3 is the first with 9 tokens, and layer 4 the first to be given them.
    assert agree == [True, True, True, True, False]
