"""The stand-in for flashinfer compares what the host made a plan for with what the device holds when a kernel runs."""

from __future__ import annotations

import pytest
import torch

from runners.engines import emulated, launch_memory
from runners.engines.emulated import Graph
from runners.engines.standins.flashinfer_decode import BatchDecodeWithPagedKVCacheWrapper, fast_decode_plan
from runners.engines.standins.flashinfer_prefill import BatchPrefillWithPagedKVCacheWrapper

pytestmark = pytest.mark.emulated
KEYS = "host plan of another kv_indptr in paged_attention"
QUERIES = "host plan of another qo_indptr in paged_attention"
ROWS = "another number of row starts than programs: indptr in fast_decode_plan"
SHAPE = (2, 2, 8, 1)  # heads of queries and keys, their size, page size
CACHE = (torch.randn(16, 1, 2, 8, dtype=torch.float16), torch.randn(16, 1, 2, 8, dtype=torch.float16))


def starts(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def seen() -> dict[str, list[int]]:
    numbers_by_name = {name: numbers.tolist() for name, numbers in launch_memory.taken().items()}
    assert numbers_by_name.pop("launches") >= 1
    return numbers_by_name


def test_a_decode_graph_replayed_with_another_plan_is_seen() -> None:
    launch_memory.taken()
    indptr, last = starts(0, 2, 5), starts(1, 1)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(8, dtype=torch.uint8),
        use_cuda_graph=True,
        paged_kv_indptr_buffer=indptr,
        paged_kv_indices_buffer=torch.arange(16, dtype=torch.int32),
        paged_kv_last_page_len_buffer=last,
    )
    wrapper.plan(indptr, torch.arange(5, dtype=torch.int32), last, *SHAPE)
    graph, query = Graph(), torch.randn(2, 2, 8, dtype=torch.float16)
    with emulated.graph(graph):
        wrapper.run(query, CACHE)
    graph.replay()
    assert seen() == {}
    indptr.copy_(starts(0, 3, 7))
    arguments = (indptr, torch.arange(7, dtype=torch.int32), last, *SHAPE)
    fast_decode_plan(wrapper, *arguments, global_override_indptr_cpu=starts(0, 3, 7))
    graph.replay()
    assert seen() == {}
    fast_decode_plan(wrapper, *arguments, global_override_indptr_cpu=starts(0, 3, 6))
    graph.replay()
    assert seen() == {KEYS: [2, 3]}
    # Without numbers of its own the host takes the device's, as they are now.
    fast_decode_plan(wrapper, *arguments)
    graph.replay()
    assert seen() == {}
    indptr.copy_(starts(0, 1, 7))
    graph.replay()
    assert seen() == {KEYS: [1, 3]}
    fast_decode_plan(wrapper, *arguments, global_override_indptr_cpu=starts(0, 1, 7, 7))
    graph.replay()
    assert seen() == {ROWS: [4, 3]}


def test_so_is_a_prefill_plan_that_sglang_makes_itself() -> None:
    launch_memory.taken()
    wrapper = BatchPrefillWithPagedKVCacheWrapper(
        torch.zeros(8, dtype=torch.uint8),
        use_cuda_graph=True,
        qo_indptr_buf=starts(0, 2, 4),
        paged_kv_indptr_buf=starts(0, 3, 6),
        paged_kv_indices_buf=torch.arange(16, dtype=torch.int32),
        paged_kv_last_page_len_buf=starts(1, 1),
    )
    wrapper.plan(starts(0, 2, 4), starts(0, 3, 6), torch.arange(6, dtype=torch.int32), starts(1, 1), *SHAPE)
    query = torch.randn(4, 2, 8, dtype=torch.float16)
    wrapper.run(query, CACHE)
    assert seen() == {}
    wrapper._cached_module.plan(None, None, None, starts(0, 2, 4), starts(0, 4, 6))
    wrapper.run(query, CACHE)
    assert seen() == {KEYS: [1, 3]}
    wrapper._cached_module.plan(None, None, None, starts(0, 1, 4), starts(0, 3, 6))
    wrapper.run(query, CACHE)
    assert seen() == {QUERIES: [1, 3]}


def test_a_plan_for_pages_of_another_size_is_seen() -> None:
    launch_memory.taken()
    wrapper = BatchDecodeWithPagedKVCacheWrapper(torch.zeros(8, dtype=torch.uint8))
    for page_size in (1, 2):
        wrapper.plan(starts(0, 2, 5), torch.arange(5, dtype=torch.int32), starts(1, 1), *SHAPE[:3], page_size)
        wrapper.run(torch.randn(2, 2, 8, dtype=torch.float16), CACHE)
        name = "host plan of another page size in paged_attention"
        assert seen() == ({} if page_size == 1 else {name: [2, 1]})
    wrapper.run(torch.randn(2, 2, 8, dtype=torch.float16), CACHE)
    launch_memory.taken()
    fast_decode_plan(
        wrapper, starts(0, 2, 5), torch.arange(5, dtype=torch.int32), starts(1, 1), *SHAPE[:3], 4, q_data_type="float16"
    )
    assert launch_memory.taken()[name].tolist() == [4, 1], "as a graph's plan, which no run follows"


def test_a_mask_with_too_few_entries_is_seen() -> None:
    launch_memory.taken()
    wrapper = BatchPrefillWithPagedKVCacheWrapper(torch.zeros(8, dtype=torch.uint8))
    arguments = (starts(0, 2, 4), starts(0, 3, 6), torch.arange(6, dtype=torch.int32), starts(1, 1), *SHAPE)
    for entries in (12, 13, 11):
        wrapper.plan(*arguments, custom_mask=torch.ones(entries, dtype=torch.bool))
        wrapper.run(torch.randn(4, 2, 8, dtype=torch.float16), CACHE)
        assert seen() == ({} if entries >= 12 else {"load outside custom_mask in segment_packbits": [11, 11]})
