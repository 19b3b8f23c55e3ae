"""Llama, of one layer or of a sliding and a full one, and draft models that are made of one of its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from runners.releases.reference import operations as op
from runners.releases.reference.indexing import Choice
from runners.releases.reference.question import ALONE, Cached
from runners.releases.reference.rounding import Rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores of a layer's queries and keys. scaling: what queries are multiplied by. window: how many tokens before
    its own a query sees, -1 for all. logit_cap: where scores level off, 0 for nowhere. sinks: as op.attention() has
    them. cached: where its keys and values lie. choice: what decides on the keys that a query sees, None for all."""

    scaling: float
    window: int = -1
    logit_cap: float = 0.0
    sinks: torch.Tensor | None = None
    cached: Cached = ALONE
    choice: Choice | None = None


class Attend(Protocol):
    """Attention: from queries, keys and values [samples, tokens, heads, size] to its results, [samples, tokens, n]."""

    def __call__(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scores: Scores
    ) -> torch.Tensor: ...


Activation = Callable[[Rounding, torch.Tensor], torch.Tensor]


def exact(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's values, float64 on the host."""
    return parameter.detach().to("cpu", torch.float64)


def weight(module: Any) -> torch.Tensor:
    """The weight of a layer of sglang's, as exact() has it, with what an adapter adds (options/lora.py: merged)."""
    values, added = exact(module.weight), getattr(module, "added", None)
    return values if added is None else values + added.to(values)


def bias(module: Any) -> torch.Tensor | None:
    """The same of its bias, if it has one."""
    return None if getattr(module, "bias", None) is None else exact(module.bias)


def axes_of(rotary: Any) -> tuple[int, ...]:
    """The axis of a position that turns each pair of a head: one after the other, or in turn as long as an axis has
    pairs left, the first all others. Empty where positions have one. rotary: sglang's MRotaryEmbedding, or another."""
    sections = getattr(rotary, "mrope_section", None) or ()
    if not getattr(rotary, "mrope_interleaved", False):
        return tuple(axis for axis, count in enumerate(sections) for _ in range(count))
    pairs = [(pair, pair % len(sections)) for pair in range(sum(sections))]
    return tuple(axis if pair < len(sections) * sections[axis] else 0 for pair, axis in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """One attention layer's projections. axes: the axis of a position that turns each pair of a head, where positions
    have several. norms: of a head's queries and keys before they are turned, and value_norm of its
    values, where there are any. gate: to what results are multiplied by the sigmoid of, [heads * size, hidden], where
    there is any."""

    qkv: torch.Tensor
    out: torch.Tensor
    cos_sin: torch.Tensor
    heads: int
    kv_heads: int
    size: int
    neox: bool
    scores: Scores
    axes: tuple[int, ...] = ()
    qkv_bias: torch.Tensor | None = None
    out_bias: torch.Tensor | None = None
    norms: tuple[Norm, Norm] | None = None
    value_norm: Norm | None = None
    gate: torch.Tensor | None = None

    @classmethod
    def of(cls, layer: Any, cached: Cached = ALONE) -> Heads:
        """layer: sglang's LlamaAttention, or one with these names."""
        return cls(
            qkv=weight(layer.qkv_proj),
            out=weight(layer.o_proj),
            cos_sin=layer.rotary_emb.cos_sin_cache.to("cpu", torch.float64),
            heads=layer.num_heads,
            kv_heads=layer.num_kv_heads,
            size=layer.head_dim,
            neox=layer.rotary_emb.is_neox_style,
            scores=Scores(
                scaling=layer.head_dim**-0.5,
                window=layer.attn.sliding_window_size,
                logit_cap=layer.attn.logit_cap,
                sinks=exact(layer.sinks) if hasattr(layer, "sinks") else None,
                cached=cached,
            ),
            axes=axes_of(layer.rotary_emb),
            qkv_bias=bias(layer.qkv_proj),
            out_bias=bias(layer.o_proj),
            norms=(Norm.of(layer.q_norm), Norm.of(layer.k_norm)) if hasattr(layer, "q_norm") else None,
        )

    def run(self, by: Rounding, x: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """x: [samples, tokens, hidden]."""
        parts = [self.heads, self.kv_heads, self.kv_heads]
        queries, keys, values = (
            op.linear(by, x, self.qkv, self.qkv_bias).unflatten(-1, (-1, self.size)).split(parts, dim=2)
        )
        if self.norms:
            queries, keys = (norm.run(by, each) for norm, each in zip(self.norms, (queries, keys), strict=True))
        if self.value_norm:
            values = self.value_norm.run(by, values)
        cos, sin = op.angles(by, self.cos_sin, positions, self.axes)
        queries, keys = (op.rotated(by, turned, cos, sin, neox=self.neox) for turned in (queries, keys))
        attended = attend(queries, by.cached(keys), by.cached(values), self.scores)
        if self.gate is not None:
            attended = by.rounded(attended * op.sigmoid(by, op.linear(by, x, self.gate)))
        return op.linear(by, attended, self.out, self.out_bias)


class Feed(Protocol):
    """A feed-forward network: of x [samples, tokens, hidden]."""

    def run(self, by: Rounding, x: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """A gated feed-forward network. activation: of the gate."""

    up: torch.Tensor
    down: torch.Tensor
    activation: Activation = op.silu

    @classmethod
    def of(cls, layer: Any, activation: Activation = op.silu) -> Gated:
        """layer: sglang's LlamaMLP, or one with these names."""
        return cls(up=weight(layer.gate_up_proj), down=weight(layer.down_proj), activation=activation)

    def run(self, by: Rounding, x: torch.Tensor) -> torch.Tensor:
        gate, up = op.linear(by, x, self.up).chunk(2, dim=-1)
        return op.linear(by, by.rounded(self.activation(by, gate) * up), self.down)


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    weight: torch.Tensor
    eps: float

    @classmethod
    def of(cls, layer: Any) -> Norm:
        """layer: sglang's RMSNorm."""
        return cls(weight=weight(layer), eps=layer.variance_epsilon)

    def run(self, by: Rounding, x: torch.Tensor) -> torch.Tensor:
        return op.rms_norm(by, x, self.weight, self.eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens that a model goes over: ids [tokens]; positions [tokens], or [tokens, axes]; hidden: of draft models,
    the hidden states that they are given, [samples, tokens, n]. shown: embeddings in place of those of the tokens from
    this place on, [n, hidden]. kept: takes the states of recurrent layers behind each token, in one number, [samples,
    tokens], by name."""

    ids: torch.Tensor
    positions: torch.Tensor
    hidden: torch.Tensor | None = None
    shown: tuple[int, torch.Tensor] | None = None
    kept: dict[str, torch.Tensor] = field(default_factory=dict)


# logits and hidden states of all tokens, [samples, tokens, n].
Result = tuple[torch.Tensor, torch.Tensor]
Model = Callable[[Rounding, Tokens, Attend], Result]


def captured_of(model: Any) -> Sequence[int]:
    """The layers of a target before which it gives hidden states to its draft model; empty: it gives the last ones."""
    return model.model.layers_to_capture if getattr(model, "capture_aux_hidden_states", False) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The part of a layer behind the norm before attention."""

    attention: Heads
    between: Norm
    feed: Feed

    @classmethod
    def of(cls, layer: Any, cached: Cached = ALONE, feed: Callable[[Any], Feed] = Gated.of) -> Layer:
        """layer: sglang's LlamaDecoderLayer, or one with these names. feed: makes its feed-forward network."""
        return cls(
            attention=Heads.of(layer.self_attn, cached),
            between=Norm.of(layer.post_attention_layernorm),
            feed=feed(layer.mlp),
        )

    def run(
        self, by: Rounding, x: torch.Tensor, tokens: Tokens, attend: Attend, residual: torch.Tensor
    ) -> torch.Tensor:
        """Attention over x, then the feed-forward network, each added to what goes past it."""
        residual = op.added(by, self.attention.run(by, x, tokens.positions, attend), residual)
        return op.added(by, self.feed.run(by, self.between.run(by, residual)), residual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """embedding and head: as many rows as there are tokens."""

    embedding: torch.Tensor
    head: torch.Tensor

    @classmethod
    def of(cls, model: Any, vocab: int) -> Ends:
        """model: sglang's. vocab: how many tokens it names."""
        return cls(embedding=weight(model.model.embed_tokens), head=weight(model.lm_head)[:vocab])

    def embedded(self, by: Rounding, tokens: Tokens) -> torch.Tensor:
        values = self.embedding[tokens.ids]
        if tokens.shown:
            first, embeddings = tokens.shown
            values[first : first + len(embeddings)] = embeddings
        return by.exact(values)


def layers(model: Any) -> Any:
    """The layers of a model. EAGLE3's draft model has one, which some releases keep under a name of its own."""
    return getattr(model.model, "layers", None) or [model.model.midlayer]


def cached(model: Any) -> list[Cached]:
    """The cache of each layer: all keys, then all values; where some layers are sliding, as options/sliding.py has
    them, those of full layers first."""
    kinds = getattr(model.config, "hybrid_layer_pattern", None) or getattr(model.config, "layer_types", None)
    is_sliding = [kind in (1, "sliding_attention") for kind in kinds or [0] * len(layers(model))]
    full, places = is_sliding.count(False), []
    for number, kind in enumerate(is_sliding):
        count, place = is_sliding.count(kind), is_sliding[:number].count(kind)
        places.append(Cached(keys=place, values=count + place).behind(2 * full * kind))
    return places


def target(model: Any, vocab: int, feed: Callable[[Any], Feed] = Gated.of) -> Model:
    """LlamaForCausalLM, or a model with its names and other feed-forward networks: its hidden states are those behind
    the last norm; for EAGLE3's draft model, those in front of some layers, side by side."""
    captured = captured_of(model)
    ends, norm = Ends.of(model, vocab), Norm.of(model.model.norm)
    stack = [
        (Norm.of(layer.input_layernorm), Layer.of(layer, kv, feed))
        for layer, kv in zip(layers(model), cached(model), strict=True)
    ]

    def run(by: Rounding, tokens: Tokens, attend: Attend) -> Result:
        x, auxiliary = ends.embedded(by, tokens), []
        for number, (before, layer) in enumerate(stack):
            auxiliary += [x] if number in captured else []
            x = layer.run(by, before.run(by, x), tokens, attend, x)
        hidden = norm.run(by, x)
        return op.linear(by, hidden, ends.head), torch.cat(auxiliary, dim=-1) if auxiliary else hidden

    return run


def eagle(model: Any, vocab: int) -> Model:
    """LlamaForCausalLMEagle: no norm before attention and none behind the layer."""
    (only,) = layers(model)
    ends, layer = Ends.of(model, vocab), Layer.of(only)
    fused, bias = weight(model.model.fc), model.model.fc.bias.detach().to("cpu", torch.float64)

    def run(by: Rounding, tokens: Tokens, attend: Attend) -> Result:
        assert tokens.hidden is not None
        x = op.linear(by, torch.cat((ends.embedded(by, tokens), tokens.hidden), dim=-1), fused, bias)
        hidden = layer.run(by, x, tokens, attend, x)
        return op.linear(by, hidden, ends.head), hidden

    return run


def eagle3(model: Any, vocab: int) -> Model:
    """LlamaForCausalLMEagle3: attention over the token's embedding and the hidden states side by side; these are of
    several layers of the target, or already its own."""
    (only,) = layers(model)
    ends, layer, fused = Ends.of(model, vocab), Layer.of(only), weight(model.model.fc)
    before, hidden_norm, norm = (Norm.of(part) for part in (only.input_layernorm, only.hidden_norm, model.model.norm))

    def run(by: Rounding, tokens: Tokens, attend: Attend) -> Result:
        assert tokens.hidden is not None
        embedded, hidden = ends.embedded(by, tokens), tokens.hidden
        if hidden.shape[-1] != embedded.shape[-1]:
            hidden = op.linear(by, hidden, fused)
        x = torch.cat((before.run(by, embedded), hidden_norm.run(by, hidden)), dim=-1)
        output = layer.run(by, x, tokens, attend, hidden)
        return op.linear(by, norm.run(by, output), ends.head), output

    return run


def mimo(model: Any, vocab: int) -> Model:
    """MiMoV2MTP, with attention over the whole context: embedding and hidden states are normed before they are
    joined. Its hidden states are those before the last norm."""
    block = model.model.mtp_block
    assert block.self_attn.v_scale is None
    assert block.self_attn.attention_sink_bias is None
    ends, layer = Ends.of(model, vocab), Layer.of(block)
    joined, before = weight(model.model.eh_proj), Norm.of(block.input_layernorm)
    enorm, hnorm, norm = (Norm.of(getattr(model.model, name)) for name in ("enorm", "hnorm", "final_layernorm"))

    def run(by: Rounding, tokens: Tokens, attend: Attend) -> Result:
        assert tokens.hidden is not None
        parts = (enorm.run(by, ends.embedded(by, tokens)), hnorm.run(by, tokens.hidden))
        x = op.linear(by, torch.cat(parts, dim=-1), joined)
        output = layer.run(by, before.run(by, x), tokens, attend, x)
        return op.linear(by, norm.run(by, output), ends.head), output

    return run
