"""The draft of a whole block (DFLASH, DSPARK) in float64: from the target's hidden states of all tokens before the
block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from repro.cases.layout import Ints
from runners.releases.reference import operations as op
from runners.releases.reference.drafts import Drafted
from runners.releases.reference.llama import Ends, Layer, Norm, Scores, weight
from runners.releases.reference.rounding import Rounding

# Twenty times the temperature at which the coldest request's drafts are drawn (resolve_draft_params, 0.5.23
# dspark_draft.py:152): what lies further behind comes once in 10 ** 8 draws.
_DRAWN = 2e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """A draft model of one layer, which has the target's embeddings and head. joined, before: the projection of hidden
    states, and the norm behind it. mask: the token in place of those that are to be drafted. markov: by which the token
    before chooses: its embeddings, [vocabulary, rank], and scores, [vocabulary, rank]; None: each token of the block
    drafts itself, else each drafts the next one. drawn: how far behind the best one a token may lie that is drawn."""

    ends: Ends
    joined: torch.Tensor
    before: Norm
    between: Norm
    layer: Layer
    last: Norm
    mask: int
    markov: tuple[torch.Tensor, torch.Tensor] | None = None
    drawn: float = 0.0

    @classmethod
    def of(cls, draft: Any, target: Any, vocab: int, mask: int, *, samples: bool) -> Blocks:
        """draft, target: sglang's DFlashDraftModel and LlamaForCausalLM. vocab: how many tokens it names. samples: the
        target does, so that a Markov head draws its drafts."""
        (only,) = draft.layers
        head = getattr(draft, "markov_head", None)
        return cls(
            ends=Ends.of(target, vocab),
            joined=weight(draft.fc),
            before=Norm.of(draft.hidden_norm),
            between=Norm.of(only.input_layernorm),
            layer=Layer.of(only),
            last=Norm.of(draft.norm),
            mask=mask,
            markov=(weight(head.markov_w1), weight(head.markov_w2)[:vocab]) if head is not None else None,
            drawn=_DRAWN if samples and head is not None else 0.0,
        )

    def behind(
        self, by: Rounding, text: Ints, hidden: torch.Tensor, drafted: Sequence[Drafted]
    ) -> tuple[list[float], float]:
        """The distances of drafts, in the words of Drafter, by their logits."""
        apart, noise = list[float](), 0.0
        for block in drafted:
            if block.start <= hidden.shape[1]:
                each, moved = self._behind(by, hidden[:, : block.start], block.tokens)
                apart, noise = [*apart, *each], max(noise, moved + self.drawn)
        return apart, noise

    def _behind(self, by: Rounding, hidden: torch.Tensor, block: Sequence[int]) -> tuple[list[float], float]:
        """hidden: of the target, [samples, tokens before the block, n]. block: its first token, and those that were
        drafted."""
        start, size = hidden.shape[1], len(block) - (self.markov is not None)
        context = self.before.run(by, op.linear(by, hidden, self.joined))
        vocab = len(self.ends.head)
        tokens = torch.tensor(list(block))
        known, chosen = (tokens >= 0) & (tokens < vocab), tokens.clamp(0, vocab - 1)
        ids = torch.full((size,), self.mask)
        ids[0] = chosen[0]
        embedded = by.exact(self.ends.embedding[ids])
        x = torch.cat((context, self.between.run(by, embedded)), dim=1)
        positions = torch.arange(start + size)
        heads = self.layer.attention

        def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scores: Scores) -> torch.Tensor:
            """Each token of the block sees all others, and all tokens before it."""
            seen = op.Attended(
                keys=keys[0, :0],
                values=values[0, :0],
                new_keys=keys,
                new_values=values,
                mask=torch.ones(queries.shape[1], keys.shape[1], dtype=torch.bool),
            )
            return op.attention(by, queries, seen, scores.scaling, scores.logit_cap, scores.sinks)

        residual = op.added(by, heads.run(by, x, positions, attend)[:, start:], embedded)
        residual = op.added(by, self.layer.feed.run(by, self.layer.between.run(by, residual)), residual)
        logits = op.linear(by, self.last.run(by, residual), self.ends.head)
        if self.markov is None:
            logits = logits[:, 1:]
        else:
            before, scores = self.markov
            logits = op.added(by, logits, op.linear(by, by.exact(before[chosen[:-1]]), scores))
        exact = logits[0]
        apart = exact.amax(dim=-1) - exact.gather(-1, chosen[1:, None])[:, 0]
        return apart.where(known[1:], math.inf).tolist(), float((logits[1:] - exact).abs().amax())
