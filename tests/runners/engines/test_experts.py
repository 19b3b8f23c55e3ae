"""The stand-in for sglang's fused experts: what it computes, and how it rounds."""

from __future__ import annotations

import pytest
import torch

from runners.engines.standins.experts import experts

pytestmark = pytest.mark.emulated
TOKENS, HIDDEN, WIDTH, EXPERTS, K = 5, 48, 64, 4, 2


def given(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    made = torch.Generator().manual_seed(1)
    tokens = torch.randn(TOKENS, HIDDEN, generator=made)
    w13 = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=made) / 7
    w2 = torch.randn(EXPERTS, HIDDEN, WIDTH, generator=made) / 8
    weights = torch.rand(TOKENS, K, generator=made)
    chosen = torch.stack([torch.randperm(EXPERTS, generator=made)[:K] for _ in range(TOKENS)])
    return tokens.to(dtype), w13.to(dtype), w2.to(dtype), weights, chosen


def one_by_one(
    tokens: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
) -> torch.Tensor:
    """The same without rounding, in float64, token by token and expert by expert."""
    result = torch.zeros(tokens.shape, dtype=torch.float64)
    for n, token in enumerate(tokens.double()):
        for weight, expert in zip(weights[n].double(), chosen[n], strict=True):
            gate, up = (w13[expert].double() @ token).chunk(2)
            result[n] += weight * (w2[expert].double() @ (gate * torch.sigmoid(gate) * up))
    return result


@pytest.mark.parametrize(
    ("dtype", "digits"), [(torch.float32, 10), (torch.float16, 10), (torch.bfloat16, 7)], ids=["32", "16", "b16"]
)
def test_experts_are_as_exact_as_the_kernel_and_no_more(dtype: torch.dtype, digits: int) -> None:
    """A float32 model's are not: in the kernel both products pass through float16."""
    arguments = given(dtype)
    exact = one_by_one(*arguments)
    result = experts(*arguments)
    assert result.dtype == dtype
    off = float((result.double() - exact).abs().max() / exact.abs().max())
    assert 2.0 ** -(digits + 5) < off < 2.0 ** -(digits - 1)


def test_what_float32_cannot_tell_apart_from_float16_is_lost() -> None:
    tokens, w13, w2, _, chosen = given(torch.float32)
    single = experts(tokens, w13, w2, torch.ones(TOKENS, 1), chosen[:, :1])
    assert torch.equal(single, single.half().float())
