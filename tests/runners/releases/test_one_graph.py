"""All layers of a draft in one graph: what is recorded of it, what is refused, and bugs between layers that it sees."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuzz.mutation.sites import mutants
from repro.cases.case import Target, setup_problems
from repro.cases.release_list import NEWEST
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from tests.builders.cases import FULL, PADDED, case_of, failures, setup_of

FILE = "sglang/srt/speculative/multi_layer_eagle_draft_extend_cuda_graph_runner.py"
CAPTURE = "OneGraphMultiLayerEagleMultiStepDraftExtendCudaGraphRunner._capture_one_graph"
SETUP = replace(setup_of("multi_layer", "fa3", capture_bs=(4,)), one_graph=True)
CASE = case_of(SETUP, FULL, PADDED)
# The failures that multi-layer-stale-padding explains, in all releases.
KNOWN = {"slot0_padding", "kv_indices", "kv_reads", "history"}


TARGET, OLDER = Target(NEWEST, "emulated"), Target("0.5.15.post1", "emulated")


def mutant(old: str, new: str) -> dict[str, object]:
    every = mutants(FILE, (sglang_path(TARGET) / FILE).read_text())
    return {"edit": next(m for m in every if (m.function, m.old, m.new) == (CAPTURE, old, new)).change()}


def seen(pool: Pool) -> set[str]:
    trace = pool.run(CASE)
    assert trace.ended.how is Termination.DONE, trace.ended
    return {oracle for oracle, where in failures(CASE, trace).items() if where}


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_bugs_between_layers_are_seen(newest: Pool) -> None:
    """The last layer's tokens that do not move up; attention's metadata that no layer makes anew."""
    trace = newest.run(CASE)
    for number, step in enumerate(CASE.steps):
        assert trace.path(number, "graph")["topk_index"].shape == (len(step.requests), SETUP.num_steps)
        # One launch, with the attention calls of all layers.
        assert int(trace.path(number, "launched")["size"]) == 4
        assert len(trace.path(number, "metadata")["kv_indptr"]) == SETUP.num_steps
    before = seen(newest)
    assert before <= KNOWN
    newest.change(mutant("if i < n - 1:", "if i < n - 1 - 1:"))
    assert "graph_equals_eager" in seen(newest) - before
    newest.change(mutant("attn_backend.init_forward_metadata_in_graph(forward_batch)", "pass"))
    assert "metadata_shape" in seen(newest) - before


def test_it_is_refused_where_sglang_has_a_graph_a_layer() -> None:
    over_triton = replace(setup_of("multi_layer"), one_graph=True)
    assert setup_problems(over_triton) == ["setup: triton builds metadata outside of one graph of all layers"]
    of_one_layer = replace(setup_of("draft", "fa3"), one_graph=True)
    assert setup_problems(of_one_layer) == ["setup: the draft runner's draft model has one layer"]
    assert not setup_problems(SETUP)


@pytest.mark.emulated(OLDER.sglang)
def test_a_release_without_it_says_so() -> None:
    with Pool(OLDER, timeout_s=120) as pool:
        ended = pool.run(CASE).ended
    assert ended.how is Termination.UNSUPPORTED
    assert "before 0.5.16" in ended.what
