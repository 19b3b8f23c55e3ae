"""DeepGEMM's stand-in: the scores of sparse attention's keys, and what it says of calls that a kernel cannot serve."""

from __future__ import annotations

import math

import pytest
import torch

from runners.engines import launch_memory
from runners.engines.standins import deep_gemm
from runners.engines.standins.deep_gemm import PAGE

SIZE, PAGES = 128, 4


def keys_and_scales() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys [slots, 128], scales [slots], and the bytes of the cache that has both, [pages, 64, 1, 132]."""
    keys = torch.randn(PAGES * PAGE, SIZE).to(torch.float8_e4m3fn)
    scales = torch.rand(PAGES * PAGE) + 0.5
    of_pages = [keys.view(torch.uint8).view(PAGES, -1), scales.view(torch.uint8).view(PAGES, -1)]
    return keys, scales, torch.cat(of_pages, dim=1).view(PAGES, PAGE, 1, SIZE + 4)


def scored(lengths: list[list[int]], planned: list[list[int]] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The stand-in's scores, and those by definition, of requests on the pages 2, 1 and 3."""
    torch.manual_seed(1)
    keys, scales, cache = keys_and_scales()
    counts = torch.tensor(lengths, dtype=torch.int32)
    table = torch.tensor([[2, 1, 3]] * len(lengths), dtype=torch.int32)
    q = torch.randn(len(lengths), counts.shape[1], 4, SIZE).to(torch.float8_e4m3fn)
    weights = torch.randn(counts.numel(), 4)
    made_for = counts if planned is None else torch.tensor(planned, dtype=torch.int32)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(made_for, PAGE, deep_gemm.SMS)
    scores = deep_gemm.fp8_paged_mqa_logits(q, cache, weights, counts, table, schedule, 3 * PAGE)
    slots = torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in (2, 1, 3)])
    products = torch.einsum("qhs,ks->qhk", q.float().flatten(0, 1), keys[slots].float()).relu()
    return scores, torch.einsum("qhk,qh->qk", products, weights) * scales[slots]


@pytest.mark.parametrize("lengths", [[[1], [65]], [[64, 65], [130, 131]], [[0], [192]]])
def test_the_keys_of_a_row_are_scored_and_nothing_behind_them(lengths: list[list[int]]) -> None:
    scores, expected = scored(lengths)
    for row, count in enumerate(number for each in lengths for number in each):
        assert torch.allclose(scores[row, :count], expected[row, :count], rtol=1e-5, atol=1e-5)
        assert scores[row, count:].isnan().all()


def test_a_schedule_of_other_lengths_is_reported() -> None:
    launch_memory.taken()
    scored([[65]], [[64]])
    assert any("schedule of other lengths" in name for name in launch_memory.taken())


def test_lengths_beyond_the_table_are_reported() -> None:
    launch_memory.taken()
    scores, _ = scored([[3 * PAGE + 1]])
    assert {name.partition(" in ")[0] for name in launch_memory.taken()} >= {
        "scores behind max_len",
        "load outside block_table",
    }
    assert scores.isnan().all()


def test_other_integers_are_refused() -> None:
    _, _, cache = keys_and_scales()
    q, long = torch.zeros(1, 1, 4, SIZE).to(torch.float8_e4m3fn), torch.ones(1, 1, dtype=torch.int64)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(long.int(), PAGE, deep_gemm.SMS)
    with pytest.raises(RuntimeError, match="int32"):
        deep_gemm.fp8_paged_mqa_logits(q, cache, torch.ones(1, 4), long, long.int(), schedule, PAGE)


def test_a_dense_score_ends_where_its_query_ends() -> None:
    q, keys = torch.randn(2, 4, SIZE), torch.randn(5, SIZE)
    starts, ends = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([2, 5], dtype=torch.int32)
    scores = deep_gemm.fp8_mqa_logits(q, (keys, torch.ones(5)), torch.ones(2, 4), starts, ends)
    assert scores.isnan().tolist() == [[False] * 2 + [True] * 3, [True] + [False] * 4]
    assert math.isclose(float(scores[0, 0]), float((q[0] @ keys[0]).relu().sum()), rel_tol=1e-5)
