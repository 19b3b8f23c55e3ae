"""Gemma 4's assistant, which drafts from the target's KV cache and writes none: one layer over all of a prefix, one
over its last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from repro.cases.layout import WINDOW
from runners.releases.live import Live
from runners.releases.reference import operations as op
from runners.releases.reference.chosen import largest
from runners.releases.reference.drafting import Claims, Seedling, grown
from runners.releases.reference.llama import Gated, Norm, Result, weight
from runners.releases.reference.question import Answer, Question, Reference
from runners.releases.reference.rounding import Rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """queries: the projection's part that makes queries. tensors: which of the cache's tensors hold its keys and
    values. window: how many of a prefix's last tokens it sees, 0 for all."""

    before: Norm
    queries: torch.Tensor
    query_norm: Norm
    cos_sin: torch.Tensor
    size: int
    out: torch.Tensor
    behind: Norm
    before_feed: Norm
    feed: Gated
    behind_feed: Norm
    scalar: torch.Tensor
    tensors: tuple[int, int]
    window: int

    @classmethod
    def of(cls, layer: Any) -> Layer:
        """layer: sglang's Gemma4DecoderLayer."""
        attention = layer.self_attn
        is_full = layer.is_full_attention
        return cls(
            before=Norm.of(layer.input_layernorm),
            queries=weight(attention.qkv_proj)[: attention.num_heads * attention.head_dim],
            query_norm=Norm(weight=weight(attention.q_norm), eps=attention.q_norm.eps),
            cos_sin=attention.rotary_emb.cos_sin_cache.to("cpu", torch.float64),
            size=attention.head_dim,
            out=weight(attention.o_proj),
            behind=Norm.of(layer.post_attention_layernorm),
            before_feed=Norm.of(layer.pre_feedforward_layernorm),
            feed=Gated.of(layer.mlp, op.gelu),
            behind_feed=Norm.of(layer.post_feedforward_layernorm),
            scalar=layer.layer_scalar.to("cpu", torch.float64),
            # Family.kv: keys and values of full layers, then of sliding ones.
            tensors=(0, 1) if is_full else (2, 3),
            window=0 if is_full else WINDOW,
        )

    def run(self, by: Rounding, x: torch.Tensor, question: Question) -> torch.Tensor:
        """x: [samples, requests * topk, hidden]."""
        residual = op.added(by, self.behind.run(by, self._attended(by, self.before.run(by, x), question)), x)
        fed = self.behind_feed.run(by, self.feed.run(by, self.before_feed.run(by, residual)))
        return by.rounded(op.added(by, fed, residual) * self.scalar)

    def _attended(self, by: Rounding, x: torch.Tensor, question: Question) -> torch.Tensor:
        queries = self.query_norm.run(by, op.linear(by, x, self.queries).unflatten(-1, (-1, self.size)))
        topk = question.setup.topk
        positions = torch.tensor([request.seq_len - 1 for request in question.requests]).repeat_interleave(topk)
        queries = op.rotated(by, queries, *op.angles(by, self.cos_sin, positions))
        outputs = []
        for row, request in enumerate(question.requests):
            first = max(0, request.seq_len - self.window) if self.window else 0
            slots = question.table[request.slot, first : request.seq_len]
            keys, values = (question.rows(tensor, slots) for tensor in self.tensors)
            nothing = keys.new_empty((len(queries), 0, *keys.shape[1:]))
            mask = torch.ones(topk, len(slots), dtype=torch.bool)
            seen = op.Attended(keys=keys, values=values, new_keys=nothing, new_values=nothing, mask=mask)
            outputs.append(op.attention(by, queries[:, row * topk : (row + 1) * topk], seen, 1.0))
        return op.linear(by, torch.cat(outputs, dim=1), self.out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assistant:
    """The draft model. before, behind: the projections from and to the target's hidden states. cap: 0 for none."""

    embedding: torch.Tensor
    scale: Any
    before: torch.Tensor
    layers: Sequence[Layer]
    norm: Norm
    head: torch.Tensor
    cap: float
    behind: torch.Tensor

    @classmethod
    def of(cls, model: Any, vocab_size: int) -> Assistant:
        """model: sglang's Gemma4AssistantForCausalLM."""
        return cls(
            embedding=model.target_embed_weight.detach().to("cpu", torch.float64),
            scale=model.target_embed_scale,
            before=weight(model.pre_projection),
            layers=[Layer.of(layer) for layer in model.model.layers],
            norm=Norm.of(model.model.norm),
            head=weight(model.lm_head)[:vocab_size],
            cap=model.logits_processor.final_logit_softcapping or 0.0,
            behind=weight(model.post_projection),
        )

    def run(self, question: Question, ids: torch.Tensor, hidden: torch.Tensor) -> Result:
        """Logits and hidden states of these tokens, which come with the hidden states of the target."""
        by = question.by
        embedded = by.rounded(by.exact(self.embedding[ids]) * self.scale)
        x = op.linear(by, torch.cat((embedded, hidden), dim=-1), self.before)
        for layer in self.layers:
            x = layer.run(by, x, question)
        x = self.norm.run(by, x)
        return op.capped(by, op.linear(by, x, self.head), self.cap), op.linear(by, x, self.behind)


def draft(live: Live, *, seeded: bool) -> Reference:
    """parents, scores_index, tokens: the tree. seeded: the first drafts are made from the last token; they come with
    the batch where they are not."""
    setup = live.setup
    assistant = Assistant.of(live.draft.draft_model_runner.model, setup.vocab_size)
    named = torch.arange(setup.vocab_size)

    def run(question: Question) -> Answer:
        answer, by, batch = Answer(), question.by, question.given
        claims = Claims(question.claimed, setup.topk, setup.num_steps, named)
        hidden, known = question.exact("hidden_states"), torch.ones(len(question.requests), dtype=torch.bool)
        scores, tokens = by.exact(batch["topk_p"]), batch["topk_index"]
        if seeded:
            ids = batch["bonus_tokens"].repeat_interleave(setup.topk)
            logits, states = assistant.run(question, ids, hidden.repeat_interleave(setup.topk, dim=1))
            logits, hidden = logits[:, :: setup.topk], states[:, :: setup.topk]
            tokens, sure = largest(logits, setup.topk, claims.roots())
            scores = op.shares(by, logits).gather(-1, tokens.expand(len(logits), *tokens.shape))
            known = sure.all(dim=1)

        def forward(_: int, ids: torch.Tensor, states: torch.Tensor, __: torch.Tensor) -> Result:
            return assistant.run(question, ids, states)

        start = Seedling(scores=scores, tokens=tokens, hidden=hidden, named=named, known=known)
        answer.integers |= grown(by, setup.num_steps, start, forward, claims).kept(claims)
        return answer

    return run
