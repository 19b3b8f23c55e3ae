"""Gemma 4, of a sliding and a full layer: a norm stands in front of each part of a layer and one behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from runners.releases.reference import operations as op
from runners.releases.reference.llama import Attend, Ends, Gated, Heads, Model, Norm, Result, Scores, Tokens, weight
from runners.releases.reference.rounding import Rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    before: Norm
    attention: Heads
    behind: Norm
    before_feed: Norm
    feed: Gated
    behind_feed: Norm
    scalar: torch.Tensor

    @classmethod
    def of(cls, layer: Any) -> Layer:
        """layer: sglang's Gemma4DecoderLayer."""
        return cls(
            before=Norm.of(layer.input_layernorm),
            attention=_attention(layer.self_attn),
            behind=Norm.of(layer.post_attention_layernorm),
            before_feed=Norm.of(layer.pre_feedforward_layernorm),
            feed=Gated.of(layer.mlp, op.gelu),
            behind_feed=Norm.of(layer.post_feedforward_layernorm),
            scalar=layer.layer_scalar.to("cpu", torch.float64),
        )

    def run(self, by: Rounding, x: torch.Tensor, tokens: Tokens, attend: Attend) -> torch.Tensor:
        attended = self.attention.run(by, self.before.run(by, x), tokens.positions, attend)
        residual = op.added(by, self.behind.run(by, attended), x)
        fed = self.behind_feed.run(by, self.feed.run(by, self.before_feed.run(by, residual)))
        return by.rounded(op.added(by, fed, residual) * self.scalar)


def _attention(attention: Any) -> Heads:
    """attention: sglang's Gemma4Attention."""
    size, eps = attention.head_dim, attention.q_norm.eps
    return Heads(
        qkv=weight(attention.qkv_proj),
        out=weight(attention.o_proj),
        cos_sin=attention.rotary_emb.cos_sin_cache.to("cpu", torch.float64),
        heads=attention.num_heads,
        kv_heads=attention.num_kv_heads,
        size=size,
        neox=True,
        scores=Scores(scaling=1.0, window=attention.attn.sliding_window_size),
        norms=(Norm(weight=weight(attention.q_norm), eps=eps), Norm(weight=weight(attention.k_norm), eps=eps)),
        value_norm=Norm(weight=torch.ones(size, dtype=torch.float64), eps=eps),
    )


def target(model: Any, vocab: int) -> Model:
    """Gemma4ForCausalLM."""
    ends, norm, stack = (
        Ends.of(model, vocab),
        Norm.of(model.model.norm),
        [Layer.of(each) for each in model.model.layers],
    )
    scale = model.model.embed_tokens.embed_scale

    def run(by: Rounding, tokens: Tokens, attend: Attend) -> Result:
        x = by.rounded(ends.embedded(by, tokens) * scale)
        for layer in stack:
            x = layer.run(by, x, tokens, attend)
        hidden = norm.run(by, x)
        return op.linear(by, hidden, ends.head), hidden

    return run
