"""The stand-in for flashinfer: attention by its definition, memory as kernels see it, and flashinfer's own answers."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import subprocess
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from repro.cases.case import Target
from runners.engines import emulated
from runners.engines.emulated import Graph
from runners.engines.refused import CaptureRefused
from runners.engines.standins import flashinfer
from runners.engines.standins.flashinfer_decode import BatchDecodeWithPagedKVCacheWrapper, fast_decode_plan
from runners.engines.standins.flashinfer_kernels import INFINITY, paged_attention
from runners.engines.standins.flashinfer_prefill import (
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
)
from runners.targets.environments import interpreter, worker_environment
from tests.builders.project import PROJECT
from tests.tools.flashinfer_problems import Problem, Solver, StandIn, by_definition, differences, problem

SCRIPT = PROJECT / "tests" / "tools" / "flashinfer_problems.py"
GPU_PROBLEMS = 40  # for each size of a head
LONGEST = 40  # tokens: the definition is computed one query and head at a time

pytestmark = pytest.mark.emulated
solver = Solver(StandIn(), "cpu")


def short_problem(number: int, head_dim: int, dtype: torch.dtype) -> Problem:
    """The first from this number on without a long sequence."""
    candidate = problem(number, head_dim, dtype)
    return candidate if max(candidate.lengths) < LONGEST else short_problem(number + 1000, head_dim, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("number", range(4))
def test_wrappers_give_what_attention_is(number: int, head_dim: int, dtype: torch.dtype) -> None:
    posed = short_problem(number, head_dim, dtype)
    solution = solver.solve(posed)
    assert len(solution) == 28
    assert list(differences(solution, by_definition(posed), dtype)) == []


def test_problems_differ_in_all_that_matters() -> None:
    drawn = [problem(number, 64) for number in range(40)]
    assert {posed.page_size for posed in drawn} == {1, 4, 16}
    assert len({posed.heads for posed in drawn}) == 6
    assert max(len(posed.counts) for posed in drawn) > 4 and max(max(posed.counts) for posed in drawn) > 6
    assert {1, 700} <= {length for posed in drawn for length in posed.lengths}


def test_the_comparison_sees_what_is_wrong() -> None:
    """Masks that let everything through, a scale that is off by a twentieth, and pages in another order."""
    posed = long_enough(0)
    right = by_definition(posed)

    def seen_in(wrong: Problem) -> set[str]:
        return {name for name, _ in differences(solver.solve(wrong), right, torch.float16)}

    masked = {f"prefill masked{graph}{what}" for graph in ("", " graph") for what in ("", " again", " logs")}
    assert seen_in(replace(posed, masks=tuple(np.ones_like(mask) for mask in posed.masks))) == masked
    assert seen_in(replace(posed, scale=posed.scale * 1.05)) == right.keys()
    shifted = replace(posed, pages=tuple(pages[::-1].copy() for pages in posed.pages))
    assert seen_in(shifted) >= {"prefill causal", "prefill masked", "prefill masked graph"}


def long_enough(number: int) -> Problem:
    """With a mask that hides something, and a sequence of several pages."""
    candidate = short_problem(number, 64, torch.float16)
    masked = any(not mask.all() for mask in candidate.masks) and max(pages.size for pages in candidate.pages) > 2
    return candidate if masked else long_enough(number + 1)


@pytest.mark.parametrize(("window", "cap"), [(3, 0.0), (-1, 2.0), (5, 1.5)])
def test_a_planned_window_and_cap(window: int, cap: float) -> None:
    """sglang plans neither; without a plan for them, forward() passes them in vain (see Solver.decoded)."""
    torch.manual_seed(1)
    queries, length, scale = 4, 9, 0.3
    query, key, value = (torch.randn(n, 1, 64) for n in (queries, length, length))
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(solver.workspace)
    starts = (torch.tensor([0, queries], dtype=torch.int32), torch.tensor([0, length], dtype=torch.int32))
    options: dict[str, Any] = {"causal": True, "window_left": window, "logits_soft_cap": cap, "sm_scale": scale}
    wrapper.plan(*starts, 1, 1, 64, q_data_type=torch.float32, **options)
    output = wrapper.run(query, key, value)
    behind = torch.arange(queries)[:, None] + length - queries - torch.arange(length)
    seen = (behind >= 0) & ((behind <= window) | (window < 0))
    scores = (query[:, 0] @ key[:, 0].T) * scale
    scores = cap * torch.tanh(scores / cap) if cap else scores
    want = torch.softmax(scores.masked_fill(~seen, -math.inf), -1) @ value[:, 0]
    torch.testing.assert_close(output[:, 0], want, rtol=1e-5, atol=1e-5)


def test_a_row_without_keys_is_zero_and_weighs_nothing() -> None:
    query = torch.randn(1, 1, 64)
    cache = torch.randn(3, 1, 1, 64)
    out, logs = decoded(query, cache, [0, 0], [1, 1, 1])
    assert not out.any() and float(logs) == -INFINITY
    other, other_logs = decoded(query, cache, [0, 2], [1, 2, 1])
    merged, _ = solver.api.merge_state(out, logs, other, other_logs)
    assert torch.equal(merged, other)


def decoded(
    query: torch.Tensor, cache: torch.Tensor, starts: list[int], pages: list[int] | torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Over a cache of pages of one token, from these page numbers."""
    numbers = pages if isinstance(pages, torch.Tensor) else torch.tensor(pages, dtype=torch.int32)
    rows, indptr = (torch.tensor(list(values), dtype=torch.int32) for values in (range(len(query) + 1), starts))
    last = torch.ones(len(query), dtype=torch.int32)
    out, logs = paged_attention(query, cache, cache, rows, indptr, numbers, last, None, None, False, -1, 0.0, 0.125)
    return out, logs


QUERY, CACHE = torch.randn(2, 2, 64), torch.randn(8, 1, 2, 64)


def test_past_the_end_of_a_row_there_is_the_next_one() -> None:
    """This is #27338: the indices of one draft step run into those of the next."""
    rows = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int32)
    out, _ = decoded(QUERY, CACHE, [0, 2, 5], rows[0])
    want, _ = decoded(QUERY, CACHE, [0, 2, 5], [1, 2, 3, 4, 5])
    assert torch.equal(out, want) and not out.isnan().any()


@pytest.mark.parametrize(
    ("starts", "pages"),
    [
        ([0, 2, 4], [1, 2, 3, 8]),  # behind the cache
        ([0, 2, 4], [1, 2, 3, -1]),
        ([0, 2, 4], [1, 2, 3, 0x5A5A5A5A]),  # out of a guard band
        ([0, 2, 6], [1, 2, 3]),  # behind the indices and all that shares their storage
        ([0, 2, 2**31 - 1], [1, 2, 3]),
    ],
)
def test_foreign_memory_is_nan_and_hurts_no_other_row(starts: list[int], pages: list[int]) -> None:
    out, logs = decoded(QUERY, CACHE, starts, pages)
    alone, _ = decoded(QUERY[:1], CACHE, [0, 2], [1, 2])
    assert torch.equal(out[0], alone[0])
    assert out[1].isnan().all() and logs[1].isnan().all()


def test_a_negative_start_is_foreign_memory_too() -> None:
    out, _ = decoded(QUERY, CACHE, [0, -3, 2], [1, 2, 3])
    assert not out[0].any() and out[1].isnan().all()


def test_rows_that_belong_to_no_sequence_are_as_uninitialised() -> None:
    rows, starts = (torch.tensor(values, dtype=torch.int32) for values in ([0, 1], [0, 2]))
    ones = torch.ones(1, dtype=torch.int32)
    out, _ = paged_attention(QUERY, CACHE, CACHE, rows, starts, rows, ones, None, None, False, -1, 0.0, 0.125)
    assert out[1].isnan().all() and not out[0].isnan().any()
    prefill = BatchPrefillWithPagedKVCacheWrapper(solver.workspace)
    prefill.plan(rows, starts, rows, ones, 2, 2, 64, 1, q_data_type=torch.float32)
    prefill._qo_indptr_last = 2  # as when a graph is replayed with fewer rows than it was captured with
    assert not prefill.run(QUERY, (CACHE, CACHE))[1].any(), "that one begins with zeros"


def fixed(count: int, room: int = 8) -> tuple[BatchDecodeWithPagedKVCacheWrapper, torch.Tensor]:
    """A decode wrapper for a graph, and its buffer of indices."""
    indices = torch.zeros(room, dtype=torch.int32)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        solver.workspace,
        use_cuda_graph=True,
        paged_kv_indptr_buffer=torch.zeros(count + 1, dtype=torch.int32),
        paged_kv_indices_buffer=indices,
        paged_kv_last_page_len_buffer=torch.zeros(count, dtype=torch.int32),
    )
    return wrapper, indices


def plan_of(starts: list[int], pages: list[int]) -> tuple[Any, ...]:
    tensors = (torch.tensor(starts, dtype=torch.int32), torch.tensor(pages, dtype=torch.int32))
    return (*tensors, torch.ones(len(starts) - 1, dtype=torch.int32), 2, 2, 64, 1)


TYPES = {"q_data_type": torch.float32, "data_type": torch.float32}


def test_a_replay_reads_lengths_and_indices_anew() -> None:
    wrapper, _ = fixed(2)
    wrapper.begin_forward(*plan_of([0, 1, 2], [0, 0]), **TYPES)
    made = Graph()
    with emulated.graph(made):
        out = wrapper.forward(QUERY, (CACHE[:, 0], CACHE[:, 0]), sm_scale=0.125)
    assert made.calls == 1
    for starts, pages in (([0, 2, 5], [1, 2, 3, 4, 5]), ([0, 1, 3], [7, 0, 1])):
        wrapper.begin_forward(*plan_of(starts, pages), **TYPES)
        made.replay()
        assert torch.equal(out, decoded(QUERY, CACHE, starts, pages)[0])


def test_a_plan_cannot_be_made_while_capturing() -> None:
    wrapper = BatchPrefillWithPagedKVCacheWrapper(solver.workspace)
    with pytest.raises(CaptureRefused), emulated.graph(Graph()):
        wrapper.plan(torch.tensor([0, 1, 2], dtype=torch.int32), *plan_of([0, 1, 2], [0, 0]))


def test_a_plan_fills_the_fixed_buffers_and_a_fast_one_leaves_them() -> None:
    wrapper, indices = fixed(2)
    wrapper.begin_forward(*plan_of([0, 1, 3], [5, 6, 7]), **TYPES)
    assert indices.tolist() == [5, 6, 7, 0, 0, 0, 0, 0] and wrapper._paged_kv_indices_buf is indices
    fast_decode_plan(wrapper, *plan_of([0, 1, 2], [1, 2]), **TYPES, global_override_indptr_cpu=None)
    assert indices.tolist() == [5, 6, 7, 0, 0, 0, 0, 0]
    assert wrapper._paged_kv_indptr_buf.tolist() == [0, 1, 3]


@pytest.mark.parametrize("plan", ["begin_forward", "fast_decode_plan"])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [(([0, 1, 2, 3], [0, 0, 0]), "batch size should be fixed"), (([0, 1, 9], [0] * 9), "size of indices")],
)
def test_a_plan_that_does_not_fit_is_refused(plan: str, arguments: tuple[list[int], list[int]], text: str) -> None:
    wrapper, _ = fixed(2)
    call = wrapper.begin_forward if plan == "begin_forward" else solver.api.fast_decode_plan
    with pytest.raises(ValueError, match=text):
        call(*((wrapper,) if plan == "fast_decode_plan" else ()), *plan_of(*arguments), **TYPES)


def test_what_has_no_stand_in_is_refused() -> None:
    wrapper, _ = fixed(2)
    with pytest.raises(NotImplementedError, match="pos_encoding_mode='ROPE_LLAMA'"):
        wrapper.plan(*plan_of([0, 1, 2], [0, 0]), **TYPES, pos_encoding_mode="ROPE_LLAMA")
    with pytest.raises(NotImplementedError, match="HND"):
        BatchPrefillWithPagedKVCacheWrapper(solver.workspace, "HND")
    wrapper.plan(*plan_of([0, 1, 2], [0, 0]), **TYPES)
    with pytest.raises(ValueError, match=r"planned for q and kv of \(torch\.float32"):
        wrapper.run(QUERY.half(), (CACHE[:, 0], CACHE[:, 0]))


def test_flashinfer_is_there_only_while_it_is_imported() -> None:
    before = importlib.util.find_spec("flashinfer")
    with flashinfer.importable():
        module = importlib.import_module("flashinfer")
        assert module.fast_decode_plan is fast_decode_plan
        assert not hasattr(module, "SfLayout")
    assert importlib.util.find_spec("flashinfer") == before


@pytest.mark.cuda
def test_flashinfer_itself_gives_the_same(cuda_target: Target) -> None:
    """In a process of its own: this one stays without a CUDA context, for those that fork."""
    command = [str(interpreter(cuda_target)), str(SCRIPT), str(GPU_PROBLEMS)]
    ran = subprocess.run(
        command, env=worker_environment(cuda_target), capture_output=True, text=True, check=False, timeout=900
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    totals = json.loads(ran.stdout.splitlines()[-1])
    assert totals["differences"] == []
    assert (totals["solved"], totals["parts"]) == (2 * GPU_PROBLEMS, 2 * GPU_PROBLEMS * 28)
