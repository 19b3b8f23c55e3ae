"""Sparse attention's choice of keys in float64, as sglang's indexer makes it: values round at the same places to the
nearest, so that hardly a score is another one. Where two are too near for that, no choice is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from runners.releases.options.dsa import CHOSEN
from runners.releases.reference import operations as op
from runners.releases.reference.rounding import SINGLE, Rounding

_EIGHT_BITS = torch.float8_e4m3fn
_LARGEST, _SMALLEST = 448.0, 1e-4  # of values in eight bits, and of what a scale is made for
# A choice is sure where each of its scores lies further before all others than so many times what rounding moves their
# distance by, and than this part of their spread: a number of a key may round to the next one, unseen by the samples.
_SURE, _PART = 8.0, 2.0**-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The grounds of a layer's choice. queries: [samples, tokens, heads, size], keys: [samples, tokens, size], each in
    eight bits times its scale; weights: of the heads, [samples, tokens, heads]. count: of the keys that a query
    chooses."""

    queries: torch.Tensor
    keys: torch.Tensor
    weights: torch.Tensor
    count: int

    def seen(self, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys that each query chooses among those that it may see, bool [queries, keys], and of which queries that
        is sure, bool [queries]. mask: bool [queries, keys]."""
        scores = torch.einsum("sqhd,skd->sqhk", self.queries, self.keys).relu()
        scores = torch.einsum("sqhk,sqh->sqk", scores, self.weights)
        if mask.shape[1] <= self.count:
            return mask, torch.ones(len(mask), dtype=torch.bool)
        chosen = scores[0].masked_fill(~mask, -math.inf).topk(self.count, dim=1).indices
        leads = scores.gather(2, chosen.expand(len(scores), *chosen.shape))[..., None] - scores[:, :, None]
        noise = (leads[1:] - leads[0]).abs().amax(dim=0)
        apart = leads[0] > _SURE * noise + _PART * _spread(scores[0], mask)[:, None, None]
        chooses = torch.zeros_like(mask).scatter(1, chosen, True) & mask
        sure = (apart | (chooses | ~mask)[:, None]).all(dim=2).all(dim=1)
        return chooses, sure | (mask.sum(dim=1) <= self.count)

    def restricted(self, seen: op.Attended) -> tuple[op.Attended, torch.Tensor]:
        """The part of all keys that each query chooses, and of which queries that is not known, bool [queries]."""
        return among(seen, *self.seen(seen.mask))


def among(seen: op.Attended, mask: torch.Tensor, sure: torch.Tensor) -> tuple[op.Attended, torch.Tensor]:
    """The same of chosen keys. Of a query that sees a key that is no number nothing is known."""
    broken = seen.new_keys[0].flatten(1).isnan().any(dim=1)
    keys, values = (torch.nan_to_num(each, nan=0.0) for each in (seen.new_keys, seen.new_values))
    return replace(seen, new_keys=keys, new_values=values, mask=mask), ~sure | (mask & broken).any(dim=1)


def _spread(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The root of the mean square of each query's scores around their mean."""
    count = mask.sum(dim=1).clamp(min=1)
    mean = scores.masked_fill(~mask, 0.0).sum(dim=1) / count
    return ((scores - mean[:, None]).masked_fill(~mask, 0.0).square().sum(dim=1) / count).sqrt()


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """queries: of the query's latent vector, [heads * size, latent]. keys, weights: of what the layer is given, [size,
    hidden] and [heads, hidden]. norm, bias: of keys, [size]. cos_sin: of the positions. halves: whether each of their
    products is rounded, as on a CPU. count: of the keys that a query chooses."""

    queries: torch.Tensor
    keys: torch.Tensor
    weights: torch.Tensor
    norm: torch.Tensor
    bias: torch.Tensor
    eps: float
    cos_sin: torch.Tensor
    neox: bool
    halves: bool
    count: int

    @classmethod
    def of(cls, layer: Any) -> Indexer | None:
        """layer: sglang's DeepseekV2AttentionMLA. None where it chooses all keys."""
        its = getattr(layer, "indexer", None)
        if its is None or its.index_topk >= CHOSEN:
            return None
        exact = {
            "queries": its.wq_b.weight,
            "keys": its.wk.weight,
            "weights": its.weights_proj.weight,
            "norm": its.k_norm.weight,
            "bias": its.k_norm.bias,
            "cos_sin": its.rotary_emb.cos_sin_cache,
        }
        values = {name: value.detach().to("cpu", torch.float64) for name, value in exact.items()}
        halves = its.rotary_emb.cos_sin_cache.dtype != torch.float32
        return cls(
            eps=its.k_norm.variance_epsilon, neox=its.is_neox_style, halves=halves, count=its.index_topk, **values
        )

    def choice(self, by: Rounding, x: torch.Tensor, latent: torch.Tensor, positions: torch.Tensor) -> Choice:
        """by: that rounds to the nearest. x: what the layer is given, [samples, tokens, hidden]. latent: the queries'
        latent vectors, [samples, tokens, n]."""
        heads, size = len(self.weights), len(self.norm)
        queries = op.linear(by, latent, self.queries).unflatten(-1, (heads, size))
        keys = by.rounded(self._normed(by, op.linear(by, x, self.keys)))[:, :, None]
        queries, keys = (_in_eight_bits(_mixed(by, self._turned(by, each, positions))) for each in (queries, keys))
        weights = (x @ self.weights.T) * heads**-0.5 * size**-0.5
        return Choice(queries=queries, keys=keys[:, :, 0], weights=weights, count=self.count)

    def _normed(self, by: Rounding, keys: torch.Tensor) -> torch.Tensor:
        normed = torch.nn.functional.layer_norm(keys, self.norm.shape, self.norm, self.bias, self.eps)
        return by.moved_together(normed, SINGLE * math.sqrt(len(self.norm)))

    def _product(self, by: Rounding, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        return by.rounded(x * angles) if self.halves else x * angles

    def _turned(self, by: Rounding, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x: [samples, tokens, heads, size], of which the first part is turned."""
        cos, sin = self.cos_sin[positions][:, None].chunk(2, dim=-1)
        turned, rest = x.split([2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], dim=-1)
        left, right = turned.chunk(2, dim=-1) if self.neox else (turned[..., ::2], turned[..., 1::2])
        pairs = (
            self._product(by, left, cos) - self._product(by, right, sin),
            self._product(by, right, cos) + self._product(by, left, sin),
        )
        turned = torch.cat(pairs, dim=-1) if self.neox else torch.stack(pairs, dim=-1).flatten(-2)
        return torch.cat((by.rounded(turned), rest), dim=-1)


def _mixed(by: Rounding, x: torch.Tensor) -> torch.Tensor:
    """The product with a Hadamard matrix over the last dimension, a power of two, of length one."""
    size, mixed, half = x.shape[-1], x, 1
    while half < size:
        pairs = mixed.unflatten(-1, (-1, 2, half))
        mixed = torch.stack((pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]), -2).flatten(-3)
        half *= 2
    return by.rounded(mixed * size**-0.5)


def _in_eight_bits(x: torch.Tensor) -> torch.Tensor:
    """Each row times a power of two, in eight bits, and back."""
    scale = (x.abs().amax(dim=-1, keepdim=True).clamp(min=_SMALLEST) / _LARGEST).log2().ceil().exp2()
    return (x / scale).clamp(-_LARGEST, _LARGEST).to(_EIGHT_BITS).double() * scale
