"""FlashMLA's stand-in over rows of DeepSeek-V4's caches, and what it says of calls that a kernel cannot serve."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from runners.engines import launch_memory
from runners.engines.standins import dsv4_rows, flash_mla

PAGE, PAGES, HEADS = 4, 3, 2
BYTES = -(-PAGE * (dsv4_rows.DATA + dsv4_rows.SCALES) // 576) * 576  # pages are filled up


def cache_of(rows: Tensor) -> Tensor:
    """The bytes of a cache with these rows, [pages, bytes]."""
    cache = torch.zeros(PAGES, BYTES, dtype=torch.uint8)
    dsv4_rows.put(cache, PAGE, torch.arange(len(rows)), rows, "test")
    return cache


def as_called(cache: Tensor) -> Tensor:
    """The cache as sglang's backend views it."""
    size = dsv4_rows.DATA + dsv4_rows.SCALES
    return cache[:, : PAGE * size].view(PAGES, PAGE, 1, size)


def attend(lengths: list[int], indices: list[list[int]], plan: flash_mla.FlashMLASchedMeta, **more: Tensor) -> Tensor:
    torch.manual_seed(1)
    rows = torch.randn(PAGES * PAGE, dsv4_rows.SIZE)
    out, _ = flash_mla.flash_mla_with_kvcache(
        q=torch.randn(len(lengths), 1, HEADS, dsv4_rows.SIZE, dtype=torch.bfloat16),
        k_cache=as_called(cache_of(rows)),
        tile_scheduler_metadata=plan,
        softmax_scale=0.05,
        is_fp8_kvcache=True,
        indices=torch.tensor(indices, dtype=torch.int32)[:, None],
        topk_length=torch.tensor(lengths, dtype=torch.int32),
        **more,
    )
    return out[:, 0]


def test_rows_are_read_as_they_were_written() -> None:
    rows = torch.randn(PAGES * PAGE, dsv4_rows.SIZE) * torch.logspace(-2, 2, PAGES * PAGE)[:, None]
    read = dsv4_rows.get(cache_of(rows), PAGE, torch.arange(len(rows)))
    # Three bits behind the point of each number, and of the smallest a step of its tile's largest.
    assert torch.allclose(read, rows, rtol=2.0**-4, atol=float(rows.abs().max()) * 2.0**-10)
    assert torch.equal(read[:, dsv4_rows.PLAIN :], rows[:, dsv4_rows.PLAIN :].bfloat16().float())


def test_rows_of_no_slot_are_not_written_and_those_outside_are_reported() -> None:
    launch_memory.taken()
    cache = torch.zeros(PAGES, BYTES, dtype=torch.uint8)
    dsv4_rows.put(cache, PAGE, torch.tensor([-1, PAGES * PAGE]), torch.ones(2, dsv4_rows.SIZE), "test")
    assert not cache.any()
    assert "store outside the cache in test" in launch_memory.taken()


def test_queries_attend_to_the_rows_that_count_and_to_the_sink() -> None:
    torch.manual_seed(1)
    rows = torch.randn(PAGES * PAGE, dsv4_rows.SIZE)
    read = dsv4_rows.get(cache_of(rows), PAGE, torch.arange(len(rows)))
    query = torch.randn(2, 1, HEADS, dsv4_rows.SIZE, dtype=torch.bfloat16)[:, 0].float()
    sink, other = torch.tensor([0.5, -1.0]), cache_of(-rows)
    got = attend(
        [2, 1],
        [[7, 3, 9], [2, -1, -1]],
        flash_mla.FlashMLASchedMeta(),
        attn_sink=sink,
        extra_k_cache=as_called(other),
        extra_indices_in_kvcache=torch.tensor([[[5, -1]], [[4, 6]]], dtype=torch.int32),
        extra_topk_length=torch.tensor([2, 1], dtype=torch.int32),
    )
    for row, keys in enumerate((torch.stack((read[7], read[3], -read[5])), torch.stack((read[2], -read[4])))):
        scores = torch.cat((query[row] @ keys.T * 0.05, sink[:, None]), -1).softmax(-1)[:, :-1]
        assert torch.allclose(got[row].float(), scores @ keys, rtol=1e-2, atol=1e-2)


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    assert not attend([1], [[-1, 3]], flash_mla.FlashMLASchedMeta(), attn_sink=torch.zeros(HEADS)).any()


def test_a_schedule_made_for_other_lengths_is_reported() -> None:
    """A capture goes on with a warm-up's schedule."""
    launch_memory.taken()
    plan = flash_mla.FlashMLASchedMeta()
    attend([2], [[1, 2, 3]], plan)
    assert not any("schedule" in name for name in launch_memory.taken())
    attend([3], [[1, 2, 3]], plan)
    assert "schedule of other lengths in sparse_decode_fwd" in launch_memory.taken()


@pytest.mark.parametrize(
    ("lengths", "indices", "what"),
    [([4], [[1, 2, 3]], "load outside the indices of k_cache"), ([1], [[PAGES * PAGE, 0, 0]], "load outside k_cache")],
)
def test_foreign_memory_is_reported(lengths: list[int], indices: list[list[int]], what: str) -> None:
    launch_memory.taken()
    attend(lengths, indices, flash_mla.FlashMLASchedMeta())
    assert any(name.startswith(what) for name in launch_memory.taken())


def test_another_batch_by_the_same_schedule_is_refused() -> None:
    plan = flash_mla.FlashMLASchedMeta()
    attend([2], [[1, 2, 3]], plan)
    with pytest.raises(RuntimeError, match="inconsistent with sched_meta"):
        attend([2, 2], [[1, 2, 3]] * 2, plan)
