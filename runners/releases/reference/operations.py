"""The operations that models are made of, each with the roundings that a kernel for it may make.

Values are those of rounding.py: [samples, tokens, ...]. Weights are float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from runners.releases.reference.rounding import SINGLE, TENSOR_FLOAT_32, Rounding, furthest

# What exp, a division and the like add in float32, in units: GPUs' fast forms are off by two each.
_TRANSCENDENTAL = 4.0


def summed(by: Rounding, sums: torch.Tensor, norm: torch.Tensor, terms: int) -> torch.Tensor:
    """Sums of so many products, added up in float32 in whatever order. norm: the root of the sum of the products'
    squares, without samples. In any order the partial sums are about as large as the sum or the norm, and each of
    them is rounded."""
    size = sums[0].abs() + norm
    sums = by.moved(sums, SINGLE * math.sqrt(terms) * size)
    return by.moved(sums, by.reach(norm)) if by.splits else sums


def on_tensor_cores(by: Rounding, sums: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """Sums of products of float32 that tensor cores made. norm: as in summed()."""
    return by.moved(sums, TENSOR_FLOAT_32 * (norm + sums[0].abs()))


def linear(by: Rounding, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., in] by weight [out, in], and bias [out]: [..., out]."""
    y = x @ weight.T
    norm = (x[0].square() @ weight.T.square()).sqrt()
    if by.linear_on_cores:
        y = on_tensor_cores(by, y, norm)
    y = by.rounded(summed(by, y, norm, weight.shape[1]))
    return y if bias is None else by.rounded(y + bias)


def products_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The norm for linear_by_head(): the root of the sum of the products' squares, without samples."""
    return torch.einsum("thi,hoi->tho", x[0].square(), weight.square()).sqrt()


def linear_by_head(by: Rounding, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [samples, tokens, heads, in] by a weight of each head, [heads, out, in]: [samples, tokens, heads, out]."""
    y = torch.einsum("sthi,hoi->stho", x, weight)
    return by.rounded(summed(by, y, products_norm(x, weight), weight.shape[2]))


def added(by: Rounding, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return by.rounded(x + y)


def rms_norm(by: Rounding, x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """weight: [in], or None for a norm without a weight."""
    scale = (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    y = by.moved_together(x * scale, SINGLE * (math.sqrt(x.shape[-1]) + _TRANSCENDENTAL))
    y = by.rounded(y)
    return y if weight is None else by.rounded(y * weight)


def silu(by: Rounding, x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.silu(x)
    return by.rounded(by.moved(y, SINGLE * _TRANSCENDENTAL * y[0].abs()))


def sigmoid(by: Rounding, x: torch.Tensor) -> torch.Tensor:
    y = x.sigmoid()
    return by.rounded(by.moved(y, SINGLE * _TRANSCENDENTAL * y[0]))


def gelu(by: Rounding, x: torch.Tensor) -> torch.Tensor:
    """The GELU by tanh."""
    y = torch.nn.functional.gelu(x, approximate="tanh")
    return by.rounded(by.moved(y, SINGLE * _TRANSCENDENTAL * (y[0].abs() + x[0].abs())))


def capped(by: Rounding, x: torch.Tensor, cap: float) -> torch.Tensor:
    """Levelling off at cap, in float32; 0: as it is."""
    if not cap:
        return x
    y = cap * torch.tanh(x / cap)
    return by.moved(y, SINGLE * _TRANSCENDENTAL * y[0].abs())


def rotated(by: Rounding, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, neox: bool = True) -> torch.Tensor:
    """x [..., tokens, heads, size], turned by angles whose cos and sin are [samples, tokens, 1, n]: pairs are the two
    halves of the first 2 * n of a head, or, without neox, neighbours; what is behind them stays."""
    x, rest = x.split([2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], dim=-1)
    left, right = x.chunk(2, dim=-1) if neox else (x[..., ::2], x[..., 1::2])
    first = by.rounded(by.rounded(left * cos) - by.rounded(right * sin))
    second = by.rounded(by.rounded(right * cos) + by.rounded(left * sin))
    turned = torch.cat((first, second), dim=-1) if neox else torch.stack((first, second), dim=-1).flatten(-2)
    return torch.cat((turned, rest), dim=-1)


def angles(
    by: Rounding, cos_sin: torch.Tensor, positions: torch.Tensor, axes: tuple[int, ...] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin for rotated(), of a cache [positions, cos and sin]; some kernels round them to the model's type.
    positions: [tokens], or [tokens, n]. axes: by which of these n each pair of a head turns."""
    if positions.dim() == 1:
        turned = cos_sin[positions]
    else:
        axis = torch.tensor(axes).repeat(2)
        turned = cos_sin[positions[:, axis], torch.arange(len(axis))]
    cos, sin = by.rounded(by.exact(turned.unsqueeze(-2))).chunk(2, dim=-1)
    return cos, sin


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """The keys and values that the queries of one request attend to. keys, values: of old tokens, as they lie in the KV
    cache, float64 [old, kv heads, size]. new_keys, new_values: computed in this call, [samples, new, kv heads, size].
    mask: bool [queries, old + new]."""

    keys: torch.Tensor
    values: torch.Tensor
    new_keys: torch.Tensor
    new_values: torch.Tensor
    mask: torch.Tensor


def attention(
    by: Rounding,
    queries: torch.Tensor,
    seen: Attended,
    scaling: float,
    logit_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """queries [samples, queries, heads, size] over what they see: [samples, queries, heads * value size]. sinks:
    [heads], the score of a key without a value that each sees besides."""
    count, heads = queries.shape[1:3]
    kv_heads = seen.keys.shape[1]
    scores = _scores(by, queries, seen, scaling, logit_cap)
    allowed = seen.mask.repeat(heads // kv_heads, 1)
    scores = scores.masked_fill(~allowed, -math.inf)
    if sinks is not None:
        each = sinks.view(kv_heads, -1, 1).expand(-1, -1, count).reshape(1, kv_heads, -1, 1)
        scores = torch.cat((scores, each.expand(len(scores), *each.shape[1:])), dim=-1)
    shares = scores.softmax(dim=-1)[..., : allowed.shape[-1]]
    shares = by.moved(shares, furthest(shares[0], by.kv) * allowed)
    sums = by.rounded(_sums(by, shares, seen)).unflatten(2, (heads // kv_heads, count))
    return sums.permute(0, 3, 1, 2, 4).flatten(2)  # of [s, kv heads, groups, n, size]


def _scores(by: Rounding, queries: torch.Tensor, seen: Attended, scaling: float, logit_cap: float) -> torch.Tensor:
    """The scaled and capped scores of all keys: [samples, kv heads, groups * queries, keys]."""
    kv_heads = seen.keys.shape[1]
    # Some kernels scale the query in the model's type before they multiply.
    scaled = by.cached(by.rounded(queries * scaling))
    grouped = (
        scaled.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    )  # [s, kv heads, groups * n, size]
    old, new = seen.keys.permute(1, 2, 0), seen.new_keys.permute(0, 2, 3, 1)
    scores = torch.cat((grouped @ old, grouped @ new), dim=-1)
    exact = grouped[0].square()
    norm = torch.cat((exact @ old.square(), exact @ new[0].square()), dim=-1).sqrt()
    reach = SINGLE * (math.sqrt(queries.shape[-1]) * norm + _TRANSCENDENTAL * (1 + scores[0].abs()))
    if by.tensor_cores:
        reach = reach + TENSOR_FLOAT_32 * (norm + scores[0].abs())
    scores = by.moved(scores, reach)
    return capped(by, scores, logit_cap)


def _sums(by: Rounding, shares: torch.Tensor, seen: Attended) -> torch.Tensor:
    """The values of all keys, weighed by their shares: [samples, kv heads, groups * queries, size]."""
    old_count = len(seen.keys)
    values, new_values = seen.values.transpose(0, 1), seen.new_values.transpose(1, 2)

    def weighed(shares: torch.Tensor, values: torch.Tensor, new_values: torch.Tensor) -> torch.Tensor:
        return shares[..., :old_count] @ values + shares[..., old_count:] @ new_values

    sums = weighed(shares, values, new_values)
    norm = weighed(shares[0].square(), values.square(), new_values[0].square()).sqrt()
    sums = by.moved(sums, SINGLE * math.sqrt(shares.shape[-1]) * (norm + sums[0].abs()))
    if by.tensor_cores:
        sums = on_tensor_cores(by, sums, norm)
    # Parts of the sum may be kept in the model's type until they are merged; they are no larger than this.
    return by.moved(sums, by.reach(weighed(shares[0], values.abs(), new_values[0].abs())))


def shares(by: Rounding, logits: torch.Tensor) -> torch.Tensor:
    """softmax in float32 over the last dimension."""
    exact = logits.softmax(dim=-1)
    reach = SINGLE * (
        math.sqrt(logits.shape[-1]) + _TRANSCENDENTAL * (1 + (logits[0] - logits[0].amax(-1, keepdim=True)).abs())
    )
    return by.moved(exact, reach * exact[0])
