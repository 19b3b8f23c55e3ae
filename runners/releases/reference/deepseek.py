"""DeepSeek-V3 of one layer, and its next-token layer: latent attention, in the latter with a network of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from runners.releases.reference import operations as op
from runners.releases.reference.chosen import largest_set
from runners.releases.reference.indexing import Indexer
from runners.releases.reference.llama import (
    Attend,
    Ends,
    Gated,
    Model,
    Norm,
    Result,
    Scores,
    Tokens,
    captured_of,
    weight,
)
from runners.releases.reference.question import Cached
from runners.releases.reference.rounding import Rounding


class Attention(Protocol):
    """A layer's attention: of x [samples, tokens, hidden]."""

    def run(self, by: Rounding, x: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Attention whose keys are one latent vector a token, of which the first part is its value too, with a rotated part
    behind it. down: to the query's and the key's latent vectors. up: to queries, [heads * size, query latent]. into,
    out_of: between a head and latent vectors, [heads, latent, size] and [heads, size, latent]."""

    down: torch.Tensor
    query_norm: Norm
    key_norm: Norm
    up: torch.Tensor
    into: torch.Tensor
    out_of: torch.Tensor
    out: torch.Tensor
    cos_sin: torch.Tensor
    neox: bool
    scores: Scores
    indexer: Indexer | None = None

    @classmethod
    def of(cls, layer: Any) -> Latent:
        """layer: sglang's DeepseekV2AttentionMLA."""
        heads = weight(layer.kv_b_proj).unflatten(0, (layer.num_local_heads, -1))
        keys, values = heads.split([layer.qk_nope_head_dim, layer.v_head_dim], dim=1)
        return cls(
            down=weight(layer.fused_qkv_a_proj_with_mqa),
            query_norm=Norm.of(layer.q_a_layernorm),
            key_norm=Norm.of(layer.kv_a_layernorm),
            up=weight(layer.q_b_proj),
            into=keys.transpose(1, 2),
            out_of=values,
            out=weight(layer.o_proj),
            cos_sin=layer.rotary_emb.cos_sin_cache.to("cpu", torch.float64),
            neox=layer.rotary_emb.is_neox_style,
            scores=Scores(scaling=layer.scaling, cached=Cached(keys=0, values=None)),
            indexer=Indexer.of(layer),
        )

    def choosing(self, by: Rounding, x: torch.Tensor, positions: torch.Tensor) -> Latent:
        """The layer for these tokens, with what decides on the keys that they choose. by: that rounds to the nearest.
        x: [samples, tokens, hidden]."""
        if self.indexer is None:
            return self
        down = self.down[: self.down.shape[0] - self._kept(self.into.shape[1])]
        latent = self.query_norm.run(by, op.linear(by, x, down))
        return replace(self, scores=replace(self.scores, choice=self.indexer.choice(by, x, latent, positions)))

    def run(self, by: Rounding, x: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """x: [samples, tokens, hidden]."""
        heads, latent, size = self.into.shape
        queries, keys = op.linear(by, x, self.down).tensor_split([self.down.shape[0] - self._kept(latent)], dim=-1)
        queries = op.linear(by, self.query_norm.run(by, queries), self.up).unflatten(-1, (heads, -1))
        cos, sin = op.angles(by, self.cos_sin, positions)
        values, turned = keys[:, :, None, :latent], keys[:, :, None, latent:]
        values = self.key_norm.run(by, values)
        keys = torch.cat((values, op.rotated(by, turned, cos, sin, neox=self.neox)), dim=-1)
        inside = op.linear_by_head(by, queries[..., :size], self.into)
        turned = op.rotated(by, queries[..., size:], cos, sin, neox=self.neox)
        attended = attend(torch.cat((inside, turned), dim=-1), keys, values, self.scores)
        outside = op.linear_by_head(by, attended.unflatten(-1, (heads, latent)), self.out_of)
        return op.linear(by, outside.flatten(2), self.out)

    def _kept(self, latent: int) -> int:
        """The width of the cache's row of a token."""
        return latent + self.cos_sin.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts: of each token's best ones, by their scores, a weighted sum; beside it a network that all tokens
    have. router: [experts, hidden]. up, down: [experts, 2 * width, hidden] and [experts, hidden, width]. count: of a
    token's."""

    router: torch.Tensor
    bias: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    shared: Gated
    count: int

    @classmethod
    def of(cls, layer: Any) -> Experts:
        """layer: sglang's DeepseekV2MoE, configured as in options/deepseek.py."""
        assert layer.routed_scaling_factor == 1.0
        up, down = (
            getattr(layer.experts, f"{name}_weight").detach().to("cpu", torch.float64) for name in ("w13", "w2")
        )
        return cls(
            router=weight(layer.gate),
            bias=layer.gate.e_score_correction_bias.detach().to("cpu", torch.float64),
            up=up,
            down=down,
            shared=Gated.of(layer.shared_experts),
            count=layer.topk.topk_config.top_k,
        )

    def run(self, by: Rounding, x: torch.Tensor) -> torch.Tensor:
        """x: [samples, tokens, hidden]. Not a number for tokens whose experts rounding may have chosen otherwise; of
        experts that add nothing, as with the weights of rounds, any may be chosen."""
        if not self.down.any():
            return self.shared.run(by, x)
        routed = op.sigmoid(by, op.linear(by, x, self.router))
        chosen, sure = largest_set(by.rounded(routed + self.bias), self.count)
        shares = routed.gather(-1, chosen.expand(len(x), *chosen.shape))
        shares = by.rounded(shares / shares.sum(-1, keepdim=True))
        each = self._each(by, x).gather(2, chosen[None, :, :, None].expand(len(x), *chosen.shape, x.shape[-1]))
        routed = by.rounded(by.halved().rounded(each * shares[..., None]).sum(dim=2))
        routed = routed.masked_fill(~sure[:, :1], torch.nan)
        return op.added(by, routed, self.shared.run(by, x))

    def _each(self, by: Rounding, x: torch.Tensor) -> torch.Tensor:
        """The result of every expert for every token, [samples, tokens, experts, hidden]. Products are kept in halves
        (runners/engines/standins/experts.py)."""
        x = x[:, :, None].expand(-1, -1, len(self.up), -1)
        gate, up = self._linear(by, x, self.up).chunk(2, dim=-1)
        return self._linear(by, by.rounded(op.silu(by, gate) * up), self.down)

    def _linear(self, by: Rounding, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        halved = by.halved()
        sums = op.linear_by_head(halved, x, weights)
        if not by.tensor_cores:
            return sums
        return op.on_tensor_cores(by, sums, op.products_norm(x, weights))


def target(model: Any, vocab: int) -> Model:
    """DeepseekV3ForCausalLM, no layer of which has experts: its hidden states are those behind the last norm; for the
    draft of a block, those in front of some layers, side by side."""
    ends, norm, captured = Ends.of(model, vocab), Norm.of(model.model.norm), captured_of(model)
    stack = [
        (
            Norm.of(layer.input_layernorm),
            Latent.of(layer.self_attn),
            Norm.of(layer.post_attention_layernorm),
            Gated.of(layer.mlp),
        )
        for layer in model.model.layers
    ]

    def run(by: Rounding, tokens: Tokens, attend: Attend) -> Result:
        x, auxiliary = ends.embedded(by, tokens), []
        for number, (before, attention, between, feed) in enumerate(stack):
            auxiliary += [x] if number in captured else []
            near = by.nearest()
            chooses = attention.choosing(near, before.run(near, x), tokens.positions)
            x = op.added(by, chooses.run(by, before.run(by, x), tokens.positions, attend), x)
            x = op.added(by, feed.run(by, between.run(by, x)), x)
        hidden = norm.run(by, x)
        return op.linear(by, hidden, ends.head), torch.cat(auxiliary, dim=-1) if auxiliary else hidden

    return run


def next_token(model: Any, vocab: int, attention_of: Callable[[Any], Attention] = Latent.of) -> Model | None:
    """DeepseekV3ForCausalLMNextN, or a model with its names and other attention: embedding and hidden states are normed
    before they are joined. Its hidden states are those behind the last norm. None where the experts that all tokens
    have are kept among the others."""
    decoder = model.model.decoder
    if not hasattr(decoder.mlp, "shared_experts"):
        return None
    ends, attention, experts = Ends.of(model, vocab), attention_of(decoder.self_attn), Experts.of(decoder.mlp)
    joined, enorm, hnorm = weight(model.model.eh_proj), Norm.of(model.model.enorm), Norm.of(model.model.hnorm)
    before, between = Norm.of(decoder.input_layernorm), Norm.of(decoder.post_attention_layernorm)
    norm = Norm.of(model.model.shared_head.norm)

    def entering(by: Rounding, tokens: Tokens) -> torch.Tensor:
        assert tokens.hidden is not None
        parts = (enorm.run(by, ends.embedded(by, tokens)), hnorm.run(by, tokens.hidden))
        return op.linear(by, torch.cat(parts, dim=-1), joined)

    def run(by: Rounding, tokens: Tokens, attend: Attend) -> Result:
        x, near, its = entering(by, tokens), by.nearest(), attention
        if isinstance(attention, Latent):
            its = attention.choosing(near, before.run(near, entering(near, tokens)), tokens.positions)
        x = op.added(by, its.run(by, before.run(by, x), tokens.positions, attend), x)
        hidden = norm.run(by, op.added(by, experts.run(by, between.run(by, x)), x))
        return op.linear(by, hidden, ends.head), hidden

    return run
