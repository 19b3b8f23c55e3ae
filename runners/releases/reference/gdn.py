"""Qwen3-Next and Qwen3.5: layers of the gated delta rule, whose state each token changes, and full ones with gated
heads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from runners.recording.observer import Unsupported
from runners.releases.options.recurrent import projected
from runners.releases.reference import operations as op
from runners.releases.reference.llama import (
    Attend,
    Ends,
    Gated,
    Heads,
    Model,
    Norm,
    Result,
    Tokens,
    captured_of,
    exact,
    weight,
)
from runners.releases.reference.rounding import Rounding

_L2_EPS = 1e-6  # of sglang's kernel for the lengths of queries and keys


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRule:
    """A layer of the gated delta rule. mixing: to queries, keys, values and gates, side by side for each head of keys;
    rates: to each value head's write and decay. kernel: [channels, taps], the last tap of a token itself. log_decay,
    shift: [value heads]."""

    mixing: torch.Tensor
    rates: torch.Tensor
    kernel: torch.Tensor
    log_decay: torch.Tensor
    shift: torch.Tensor
    norm: Norm
    out: torch.Tensor
    key_heads: int
    value_heads: int
    size: int

    @classmethod
    def of(cls, layer: Any) -> DeltaRule:
        """layer: sglang's Qwen3GatedDeltaNet or Qwen3_5GatedDeltaNet, whose heads of keys and values have one size."""
        assert layer.head_k_dim == layer.head_v_dim
        mixing, rates = weight(layer.in_proj_qkvz), weight(layer.in_proj_ba)
        if type(layer).__name__ == "Qwen3_5GatedDeltaNet":
            keys, values = layer.num_k_heads * layer.head_k_dim, layer.num_v_heads * layer.head_v_dim
            mixing = _by_head(mixing.split([keys, keys, values, values]), layer.num_k_heads)
            rates = _by_head(rates.split(layer.num_v_heads), layer.num_k_heads)
        return cls(
            mixing=mixing,
            rates=rates,
            kernel=weight(layer.conv1d)[:, 0],
            log_decay=exact(layer.A_log),
            shift=exact(layer.dt_bias),
            norm=Norm(weight=weight(layer.norm), eps=layer.layer_norm_epsilon),
            out=weight(layer.out_proj),
            key_heads=layer.num_k_heads,
            value_heads=layer.num_v_heads,
            size=layer.head_k_dim,
        )

    def run(self, by: Rounding, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """x: [samples, tokens, hidden], all tokens of one request from its first on. Results as wide, and its states by
        kind as Tokens has them."""
        size, each = self.size, self.value_heads // self.key_heads
        by_head = op.linear(by, x, self.mixing).unflatten(-1, (self.key_heads, -1))
        *mixed, gates = by_head.split([size, size, each * size, each * size], dim=-1)
        gates = gates.flatten(2).unflatten(-1, (self.value_heads, size))
        channels, taps = self._convolved(by, torch.cat([part.flatten(2) for part in mixed], dim=-1))
        counts = (self.key_heads, self.key_heads, self.value_heads)
        queries, keys, values = channels.unflatten(-1, (-1, size)).split(counts, dim=2)
        queries, keys = (_to_length_one(by, part).repeat_interleave(each, dim=2) for part in (queries, keys))
        rates = op.linear(by, x, self.rates).unflatten(-1, (self.key_heads, -1)).split(each, dim=-1)
        write, decay = (part.flatten(2) for part in rates)
        shares = (-self.log_decay.exp() * torch.nn.functional.softplus(decay + self.shift)).exp()
        read, states = _read(by, queries * size**-0.5, keys, values, op.sigmoid(by, write), shares)
        output = op.linear(by, by.rounded(self.norm.run(by, read) * op.silu(by, gates)).flatten(2), self.out)
        return output, {"conv": taps, "temporal": states}

    def _convolved(self, by: Rounding, channels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """channels: [samples, tokens, channels]. Each over its last tokens, and these as the next token finds them."""
        taps, count = self.kernel.shape[1], channels.shape[1]
        padded = torch.nn.functional.pad(channels, (0, 0, taps - 1, 0))
        sums = sum(padded[:, tap : tap + count] * self.kernel[:, tap] for tap in range(taps))
        windows = torch.stack([padded[:, tap : tap + count] for tap in range(1, taps)], dim=-1)
        return op.silu(by, sums), projected(windows.flatten(0, 1)).unflatten(0, (-1, count))


def _by_head(parts: Sequence[torch.Tensor], heads: int) -> torch.Tensor:
    """Projections that lie one behind the other, [rows, hidden], side by side for each head."""
    return torch.cat([part.unflatten(0, (heads, -1)) for part in parts], dim=1).flatten(0, 1)


def _to_length_one(by: Rounding, x: torch.Tensor) -> torch.Tensor:
    return by.rounded(x * (x.square().sum(-1, keepdim=True) + _L2_EPS).rsqrt())


def _read(
    by: Rounding,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    write: torch.Tensor,
    shares: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token writes into a state of its head what differs there from its value, and reads it: [samples, tokens,
    heads, size], like queries, keys and values; and the states. write, shares: [samples, tokens, heads], of that and of
    the state before that stay. A prefill takes tokens in chunks, whose parts are rounded."""
    state, results, states = keys.new_zeros((*keys[:, 0].shape, values.shape[-1])), [], []
    for token in range(keys.shape[1]):
        state = state * shares[:, token, :, None, None]
        reading = torch.einsum("shkv,shk->shv", state, keys[:, token])
        changed = by.rounded(write[:, token, :, None] * (values[:, token] - reading))
        state = state + keys[:, token, :, :, None] * changed[:, :, None]
        results.append(torch.einsum("shkv,shk->shv", by.rounded(state), queries[:, token]))
        states.append(projected(state))
    return by.rounded(torch.stack(results, dim=1)), torch.stack(states, dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The network of a mixture of experts that all tokens have, and its gate. Chosen experts add nothing: a round's
    weights say so (adapters/round/weights.py), as a choice that rounding turns would be one of another text."""

    network: Gated
    gate: torch.Tensor

    @classmethod
    def of(cls, layer: Any) -> Shared:
        """layer: sglang's Qwen2MoeSparseMoeBlock. On a GPU the shared expert lies behind the others, and one kernel
        runs all. Unsupported."""
        fused = getattr(layer, "num_fused_shared_experts", 0)
        down = layer.experts.w2_weight
        chosen = len(down) - fused
        if bool(down[:chosen].any()) or fused > 1:
            raise Unsupported("no text is known of experts that are chosen, nor of several shared ones")
        if fused:
            network = Gated(up=exact(layer.experts.w13_weight[chosen]), down=exact(down[chosen]))
        else:
            network = Gated.of(layer.shared_expert)
        return cls(network=network, gate=weight(layer.shared_expert_gate))

    def run(self, by: Rounding, x: torch.Tensor) -> torch.Tensor:
        return by.rounded(self.network.run(by, x) * op.sigmoid(by, op.linear(by, x, self.gate)))


def _norm(layer: Any) -> Norm:
    """layer: sglang's GemmaRMSNorm, whose weight is what is added to one."""
    return Norm(weight=1.0 + weight(layer), eps=layer.variance_epsilon)


def _heads(layer: Any) -> Heads:
    """layer: sglang's Qwen3HybridAttentionDecoderLayer or Qwen3_5AttentionDecoderLayer. Behind each head's query stands
    its gate."""
    heads = Heads.of(layer)
    queries, rest = heads.qkv.split([2 * heads.heads * heads.size, 2 * heads.kv_heads * heads.size])
    queries, gate = queries.unflatten(0, (heads.heads, 2, heads.size)).unbind(1)
    return replace(
        heads,
        qkv=torch.cat((queries.flatten(0, 1), rest)),
        gate=gate.flatten(0, 1),
        norms=(_norm(layer.q_norm), _norm(layer.k_norm)),
    )


def target(model: Any, vocab: int) -> Model:
    """Qwen3NextForCausalLM, and Qwen3_5ForConditionalGeneration without its vision tower."""
    ends = Ends.of(model, vocab)
    return _behind(ends.embedded, model, ends)


def next_token(model: Any, vocab: int) -> Model:
    """Qwen3NextForCausalLMMTP, Qwen3_5ForCausalLMMTP: embedding and hidden states are normed before they are joined."""
    ends, joined = Ends.of(model, vocab), weight(model.fc)
    norms = _norm(model.pre_fc_norm_embedding), _norm(model.pre_fc_norm_hidden)

    def first(by: Rounding, tokens: Tokens) -> torch.Tensor:
        assert tokens.hidden is not None
        pairs = zip(norms, (ends.embedded(by, tokens), tokens.hidden), strict=True)
        return op.linear(by, torch.cat([norm.run(by, each) for norm, each in pairs], dim=-1), joined)

    return _behind(first, model, ends)


def _behind(first: Callable[[Rounding, Tokens], torch.Tensor], model: Any, ends: Ends) -> Model:
    """The layers of a model, and what is behind them. first: makes what they are given."""
    last, captured = _norm(model.model.norm), captured_of(model)
    stack = [
        (
            _norm(layer.input_layernorm),
            DeltaRule.of(layer.linear_attn) if hasattr(layer, "linear_attn") else _heads(layer),
            _norm(layer.post_attention_layernorm),
            Shared.of(layer.mlp) if hasattr(layer.mlp, "experts") else Gated.of(layer.mlp),
        )
        for layer in model.model.layers
    ]

    def run(by: Rounding, tokens: Tokens, attend: Attend) -> Result:
        # numbers: of layers with a state, as their pool has them.
        x, numbers, auxiliary = first(by, tokens), itertools.count(), []
        for layer, (before, mixer, between, feed) in enumerate(stack):
            auxiliary += [x] if layer in captured else []
            y = before.run(by, x)
            if isinstance(mixer, DeltaRule):
                number = next(numbers)
                y, states = mixer.run(by, y)
                tokens.kept.update({f"{kind}{number}": each for kind, each in states.items()})
            else:
                y = mixer.run(by, y, tokens.positions, attend)
            x = op.added(by, y, x)
            x = op.added(by, feed.run(by, between.run(by, x)), x)
        hidden = last.run(by, x)
        return op.linear(by, hidden, ends.head), torch.cat(auxiliary, dim=-1) if auxiliary else hidden

    return run
