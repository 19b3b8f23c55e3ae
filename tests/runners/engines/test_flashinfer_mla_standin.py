"""The stand-in for flashinfer's latent attention: attention by its definition, and the plan as a kernel reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from runners.engines.standins.flashinfer_mla import BatchMLAPagedAttentionWrapper
from runners.releases.backends.flashinfer_mla import metadata

pytestmark = pytest.mark.emulated
LATENT, ROTARY, HEADS, SLOTS, SCALE = 32, 16, 3, 20, 0.2
LENGTHS = (5, 9, 1)
TOLERANCE = 2.0**-9


def values(*shape: int) -> torch.Tensor:
    made = np.random.default_rng(sum(shape))
    return torch.from_numpy(made.standard_normal(shape)).to(torch.float16)


CACHE = values(SLOTS, 1, LATENT + ROTARY)
INDICES = torch.tensor(np.random.default_rng(3).permutation(SLOTS)[: sum(LENGTHS)], dtype=torch.int32)


def starts(sizes: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int32)


def plan(
    wrapper: BatchMLAPagedAttentionWrapper, counts: tuple[int, ...], lengths: tuple[int, ...], causal: bool
) -> None:
    numbers = (starts(counts), starts(lengths), INDICES, torch.tensor(lengths, dtype=torch.int32))
    wrapper.plan(*numbers, HEADS, LATENT, ROTARY, 1, causal, SCALE, torch.float16, torch.float16)


def run(wrapper: BatchMLAPagedAttentionWrapper, count: int) -> torch.Tensor:
    query = values(count, HEADS, LATENT + ROTARY)
    parts = (query[..., :LATENT], query[..., LATENT:], CACHE[..., :LATENT], CACHE[..., LATENT:])
    out = torch.empty(count, HEADS, LATENT, dtype=torch.float16)
    assert wrapper.run(*parts, out=out) is out
    return out


def by_definition(counts: tuple[int, ...], causal: bool) -> torch.Tensor:
    """In float64, one query at a time."""
    query, rows = values(sum(counts), HEADS, LATENT + ROTARY).double(), CACHE[:, 0].double()
    results, first, row = [], 0, 0
    for count, length in zip(counts, LENGTHS, strict=True):
        for number in range(count):
            seen = length - count + number + 1 if causal else length
            keys = rows[INDICES[first : first + seen].long()]
            weights = (query[row] @ keys.T * SCALE).softmax(-1)
            results.append(weights @ keys[:, :LATENT])
            row += 1
        first += length
    return torch.stack(results)


@pytest.mark.parametrize(("counts", "causal"), [((1, 1, 1), False), ((3, 2, 1), True)])
def test_the_stand_in_gives_what_attention_is(counts: tuple[int, ...], causal: bool) -> None:
    wrapper = BatchMLAPagedAttentionWrapper(torch.empty(1))
    plan(wrapper, counts, LENGTHS, causal)
    assert (run(wrapper, sum(counts)).double() - by_definition(counts, causal)).abs().max() < TOLERANCE


def graphed() -> BatchMLAPagedAttentionWrapper:
    buffers: dict[str, Any] = {"qo_indptr": starts((0, 0, 0)), "kv_indptr": starts((0, 0, 0))}
    buffers |= {"kv_indices": torch.zeros(SLOTS, dtype=torch.int32), "kv_len_arr": torch.zeros(3, dtype=torch.int32)}
    return BatchMLAPagedAttentionWrapper(torch.empty(1), use_cuda_graph=True, **buffers)


def test_a_kernel_goes_by_the_plan_and_not_by_the_buffers() -> None:
    wrapper = graphed()
    plan(wrapper, (1, 1, 1), LENGTHS, causal=False)
    right = run(wrapper, 3)
    wrapper._kv_indptr_buf.fill_(7)
    wrapper._kv_len_arr_buf.fill_(7)
    assert torch.equal(run(wrapper, 3), right), "buffers on the device are not read"
    shorter = torch.tensor([4, 9, 1], dtype=torch.int32)
    wrapper._cached_module.plan(None, None, None, starts((1, 1, 1)), starts(LENGTHS), shorter, HEADS, LATENT, False)
    changed = run(wrapper, 3)
    assert torch.equal(changed[1:], right[1:]) and not torch.equal(changed[0], right[0])
    seen = metadata([wrapper], used=18)
    assert seen["kv_indptr"].tolist() == [[0, 4, 13, 14]]
    behind = [0] * (18 - 14)  # as the buffer has it
    assert seen["kv_indices"].tolist() == [[*INDICES[:4].tolist(), *INDICES[5:].tolist(), *behind]]
    assert seen["qo_indptr"].tolist() == [[0, 1, 2, 3]]


def test_what_a_plan_does_not_fit_is_refused() -> None:
    wrapper = BatchMLAPagedAttentionWrapper(torch.empty(1))
    with pytest.raises(RuntimeError, match="before plan"):
        run(wrapper, 3)
    wide = torch.zeros(4, dtype=torch.int64)
    plan(wrapper, (1, 1, 1), LENGTHS, causal=False)
    with pytest.raises(ValueError, match="int32"):
        wrapper._cached_module.plan(None, None, None, wide, wide, wide, HEADS, LATENT, False)
    with pytest.raises(RuntimeError):
        plan(graphed(), (1, 1, 1, 1), (1, 1, 1, 1), causal=False)


def test_a_sequence_outside_of_the_cache_is_nan() -> None:
    wrapper = BatchMLAPagedAttentionWrapper(torch.empty(1))
    plan(wrapper, (1, 1, 1), LENGTHS, causal=False)
    wrapper._kv_indices_buf = INDICES.clone()
    wrapper._kv_indices_buf[0] = SLOTS
    out = run(wrapper, 3)
    assert out[0].isnan().all() and out[1:].isfinite().all()
