"""DeepSeek-V4 and its next-token layer: a residual of several streams, attention over a window of tokens and over
compressed keys, which are made of 4 or 128 tokens each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from runners.releases.reference import operations as op
from runners.releases.reference.deepseek import Experts
from runners.releases.reference.llama import Attend, Ends, Model, Norm, Result, Scores, Tokens, exact, weight
from runners.releases.reference.rounding import Rounding

# Tokens before a query's own that attention sees as they are.
_WINDOW = 127
_ROTARY = 64


def _turned(by: Rounding, x: torch.Tensor, freqs: torch.Tensor, *, back: bool = False) -> torch.Tensor:
    """x: [samples, tokens, heads, size], whose last numbers are turned in pairs. freqs: complex, [tokens, pairs]."""
    cos, sin = (part.to(torch.float64)[None, :, None] for part in (freqs.real, freqs.imag))
    kept, turned = x[..., :-_ROTARY], x[..., -_ROTARY:]
    return torch.cat((kept, op.rotated(by, turned, cos, -sin if back else sin, neox=False)), -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The weights by which a sublayer takes its input from the streams and puts its output back. mixing: [(2 + streams)
    * streams, streams * hidden]."""

    mixing: torch.Tensor
    scale: torch.Tensor
    base: torch.Tensor
    streams: int
    rounds: int
    eps: float
    norm_eps: float

    @classmethod
    def of(cls, layer: Any, name: str) -> Streams:
        """layer: sglang's DeepseekV4DecoderLayer. name: attn or ffn."""
        return cls(
            mixing=exact(getattr(layer, f"hc_{name}_fn")),
            scale=exact(getattr(layer, f"hc_{name}_scale")),
            base=exact(getattr(layer, f"hc_{name}_base")),
            streams=layer.hc_mult,
            rounds=layer.hc_sinkhorn_iters,
            eps=layer.hc_eps,
            norm_eps=layer.rms_norm_eps,
        )

    def run(self, by: Rounding, x: torch.Tensor, sublayer: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """x: [samples, tokens, streams, hidden]."""
        parts = (self.streams, self.streams, self.streams**2)
        values = [
            part * self.scale[number] + base_part
            for number, (part, base_part) in enumerate(
                zip(_mixes(x, self.mixing, self.norm_eps).split(parts, -1), self.base.split(parts), strict=True)
            )
        ]
        before, behind = values[0].sigmoid() + self.eps, 2 * values[1].sigmoid()
        mixed = values[2].unflatten(-1, (self.streams, self.streams)).softmax(-1) + self.eps
        mixed = mixed / (mixed.sum(-2, keepdim=True) + self.eps)
        for _ in range(self.rounds - 1):
            mixed = mixed / (mixed.sum(-1, keepdim=True) + self.eps)
            mixed = mixed / (mixed.sum(-2, keepdim=True) + self.eps)
        output = sublayer(_taken(by, x, before))
        return by.rounded(behind[..., None] * output[:, :, None] + (mixed[..., None] * x[:, :, :, None]).sum(2))


def _mixes(x: torch.Tensor, mixing: torch.Tensor, eps: float) -> torch.Tensor:
    flat = x.flatten(2)
    return flat @ mixing.T * (flat.square().mean(-1, keepdim=True) + eps).rsqrt()


def _taken(by: Rounding, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    return by.rounded((shares[..., None] * x).sum(2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """The compressor of a layer. mixing: to keys and to their scores; of 4 tokens first those for the row behind.
    ape: added to scores, [window, size]."""

    mixing: torch.Tensor
    ape: torch.Tensor
    norm: Norm
    ratio: int

    @classmethod
    def of(cls, compressor: Any) -> Compressed:
        """compressor: sglang's."""
        return cls(
            mixing=weight(compressor.wkv_gate),
            ape=exact(compressor.ape).view(-1, compressor.head_dim),
            norm=Norm.of(compressor.norm),
            ratio=compressor.ratio,
        )

    def run(self, by: Rounding, x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        """The rows of x, [samples, tokens, hidden]: [samples, rows, size]. freqs: of all positions."""
        size, ratio = self.ape.shape[1], self.ratio
        rows = x.shape[1] // ratio
        parts = (x @ self.mixing.T)[:, : rows * ratio].unflatten(1, (rows, ratio)).unflatten(-1, (-1, size))
        overlaps = len(self.ape) > ratio
        keys, scores = (parts[..., 1, :], parts[..., 3, :]) if overlaps else (parts[..., 0, :], parts[..., 1, :])
        if overlaps:
            earlier = [torch.nn.functional.pad(parts[..., n, :], (0, 0, 0, 0, 1, 0))[:, :-1] for n in (0, 2)]
            earlier[1][:, :1] = -torch.inf
            keys, scores = torch.cat((earlier[0], keys), 2), torch.cat((earlier[1], scores), 2)
        row = ((scores + self.ape).softmax(2) * keys).sum(2)
        row = row * (row.square().mean(-1, keepdim=True) + self.norm.eps).rsqrt() * self.norm.weight
        return by.cached(_turned(by, row[:, :, None], freqs[: rows * ratio : ratio]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A layer's attention. down: to the query's latent vector and to the key. into: by group, of heads' outputs.
    compressed: None of a layer that sees its window alone."""

    down: torch.Tensor
    query_norm: Norm
    up: torch.Tensor
    key_norm: Norm
    into: torch.Tensor
    out: torch.Tensor
    freqs: torch.Tensor
    heads: int
    scores: Scores
    compressed: Compressed | None

    @classmethod
    def of(cls, layer: Any) -> Window:
        """layer: sglang's MQALayer."""
        groups = weight(layer.wo_a).unflatten(0, (layer.n_local_groups, -1))
        return cls(
            down=weight(layer.wqkv_a),
            query_norm=Norm.of(layer.q_norm),
            up=weight(layer.wq_b),
            key_norm=Norm.of(layer.kv_norm),
            into=groups,
            out=weight(layer.wo_b),
            freqs=layer.freqs_cis.detach().cpu(),
            heads=layer.n_local_heads,
            scores=Scores(scaling=layer.softmax_scale, window=_WINDOW, sinks=exact(layer.attn_sink)),
            compressed=Compressed.of(layer.compressor) if layer.compressor is not None else None,
        )

    def run(self, by: Rounding, x: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """x: [samples, tokens, hidden]; where keys are compressed, of all tokens from the first on."""
        freqs = self.freqs[positions]
        size = self.key_norm.weight.shape[0]
        queries, keys = op.linear(by, x, self.down).split([len(self.down) - size, size], -1)
        queries = op.linear(by, self.query_norm.run(by, queries), self.up).unflatten(-1, (self.heads, size))
        queries = _turned(by, op.rms_norm(by, queries, None, self.key_norm.eps), freqs)
        keys = by.cached(_turned(by, self.key_norm.run(by, keys)[:, :, None], freqs))
        if self.compressed is None:
            attended = attend(queries, keys, keys, self.scores)
        else:
            attended = self._over_both(by, queries, keys, self.compressed.run(by, x, self.freqs), positions)
        back = _turned(by, attended.unflatten(-1, (self.heads, size)), freqs, back=True)
        grouped = back.flatten(2).unflatten(-1, (len(self.into), -1))
        return op.linear(by, op.linear_by_head(by, grouped, self.into).flatten(2), self.out)

    def _over_both(
        self, by: Rounding, queries: torch.Tensor, keys: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        assert self.compressed is not None
        before = positions[:, None] - positions
        complete = (positions[:, None] + 1) // self.compressed.ratio > torch.arange(rows.shape[1])
        both = torch.cat((keys, rows), 1)
        seen = op.Attended(
            keys=both[0, :0],
            values=both[0, :0],
            new_keys=both,
            new_values=both,
            mask=torch.cat(((before >= 0) & (before <= _WINDOW), complete), 1),
        )
        return op.attention(by, queries, seen, self.scores.scaling, 0.0, self.scores.sinks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    attention: Window
    feed: Experts
    norms: tuple[Norm, Norm]
    streams: tuple[Streams, Streams]

    @classmethod
    def of(cls, layer: Any) -> Layer:
        """layer: sglang's DeepseekV4DecoderLayer."""
        return cls(
            attention=Window.of(layer.self_attn),
            feed=Experts.of(layer.mlp),
            norms=(Norm.of(layer.input_layernorm), Norm.of(layer.post_attention_layernorm)),
            streams=(Streams.of(layer, "attn"), Streams.of(layer, "ffn")),
        )

    def run(self, by: Rounding, x: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        def attended(taken: torch.Tensor) -> torch.Tensor:
            return self.attention.run(by, self.norms[0].run(by, taken), positions, attend)

        def fed(taken: torch.Tensor) -> torch.Tensor:
            return self.feed.run(by, self.norms[1].run(by, taken))

        return self.streams[1].run(by, self.streams[0].run(by, x, attended), fed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The sum of the streams behind all layers. mixing: [streams, streams * hidden]."""

    mixing: torch.Tensor
    scale: torch.Tensor
    base: torch.Tensor
    eps: float
    norm_eps: float

    @classmethod
    def of(cls, model: Any) -> Head:
        """model: sglang's DeepseekV4Model."""
        return cls(
            mixing=exact(model.hc_head_fn),
            scale=exact(model.hc_head_scale),
            base=exact(model.hc_head_base),
            eps=model.hc_eps,
            norm_eps=getattr(model, "norm_eps", getattr(model, "rms_norm_eps", 0.0)),
        )

    def run(self, by: Rounding, x: torch.Tensor) -> torch.Tensor:
        shares = (_mixes(x, self.mixing, self.norm_eps) * self.scale + self.base).sigmoid() + self.eps
        return _taken(by, x, shares)


def target(model: Any, vocab: int) -> Model:
    """DeepseekV4ForCausalLM, of a text from its first token on: its hidden states are all streams behind the last
    layer, side by side."""
    ends, norm, head = Ends.of(model, vocab), Norm.of(model.model.norm), Head.of(model.model)
    stack = [Layer.of(layer) for layer in model.model.layers]

    def run(by: Rounding, tokens: Tokens, attend: Attend) -> Result:
        embedded = ends.embedded(by, tokens)
        x = embedded[:, :, None].expand(-1, -1, len(head.base), -1)
        for layer in stack:
            x = layer.run(by, x, tokens.positions, attend)
        return op.linear(by, norm.run(by, head.run(by, x)), ends.head), x.flatten(2)

    return run


def next_token(model: Any, vocab: int) -> Model:
    """DeepseekV4ForCausalLMNextN: each stream is the sum of the normed token and of the normed stream before it."""
    inner = model.model
    ends, layer, head = Ends.of(model, vocab), Layer.of(inner.decoder), Head.of(inner)
    enorm, hnorm, norm = Norm.of(inner.enorm), Norm.of(inner.hnorm), Norm.of(inner.shared_head.norm)
    of_token, of_streams = weight(inner.e_proj), weight(inner.h_proj)

    def run(by: Rounding, tokens: Tokens, attend: Attend) -> Result:
        assert tokens.hidden is not None
        streams = tokens.hidden.unflatten(-1, (len(head.base), -1))
        token = op.linear(by, enorm.run(by, ends.embedded(by, tokens)), of_token)
        x = op.added(by, token[:, :, None], op.linear(by, hnorm.run(by, streams), of_streams))
        x = layer.run(by, x, tokens.positions, attend)
        return op.linear(by, norm.run(by, head.run(by, x)), ends.head), x.flatten(2)

    return run
