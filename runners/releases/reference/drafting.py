"""Drafts of several steps: branches that grow, tokens that are chosen by their scores, and the tree that is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from repro.cases.layout import draft_positions
from runners.releases.live import Live
from runners.releases.options import algorithms, rejection
from runners.releases.reference import operations as op
from runners.releases.reference.chosen import largest, largest_set
from runners.releases.reference.llama import Attend, Scores, Tokens
from runners.releases.reference.models import read
from runners.releases.reference.question import Answer, Question, Reference, given_positions
from runners.releases.reference.reading import visible
from runners.releases.reference.rounding import SINGLE, SINGLE_SMALLEST, Rounding

# Of one draft step: logits and hidden states [samples, requests * branches, n], of its number, ids and hidden states,
# and whether it is known that these are gone over, bool [requests].
Forward = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
# What a draft step's tokens are chosen by, of its number and logits, in their shape.
Rank = Callable[[int, torch.Tensor], torch.Tensor]


class Claims:
    """The choices on the way to a tree that a path gave. named: what the target calls the tokens that
    the draft model numbers, [vocabulary]."""

    def __init__(self, tree: Mapping[str, torch.Tensor], topk: int, steps: int, named: torch.Tensor) -> None:
        self._topk, self._parents = topk, tree["parents"].long()
        self.kept = tree["scores_index"].long()
        # The token of every candidate that was kept.
        candidates = torch.full((len(self.kept), topk + (steps - 1) * topk**2), -1)
        inside = (self.kept >= 0) & (self.kept < candidates.shape[1])
        rows = torch.arange(len(self.kept))[:, None].expand_as(self.kept)
        candidates[rows[inside], self.kept[inside]] = tree["tokens"].long()[inside]
        numbers = torch.full((int(named.max()) + 1,), -2)  # of no token of the draft model
        numbers[named] = torch.arange(len(named))
        is_named = (candidates >= 0) & (candidates < len(numbers))
        self._numbers = torch.where(is_named, numbers[candidates.clamp(0, len(numbers) - 1)], -1)

    def first(self, step: int) -> int:
        """The number of the first candidate that comes of a draft step."""
        return self._topk + step * self._topk**2

    def roots(self) -> torch.Tensor:
        """The draft model's tokens that every request began with, [requests, topk]; -1 where nothing is said."""
        return self._numbers[:, : self._topk]

    def children(self, step: int) -> torch.Tensor:
        """The draft model's tokens that each branch was given, [requests * topk, topk]; -1 where nothing is said."""
        first = self.first(step)
        return self._numbers[:, first : first + self._topk**2].reshape(-1, self._topk)

    def picked(self, step: int) -> torch.Tensor:
        """The candidates of a step that the next one goes over, by its branches, [requests, topk]."""
        first = 1 + self._topk * (1 + step)
        return self._parents[:, first : first + self._topk] - self.first(step)


@dataclass(slots=True, kw_only=True)
class Tree:
    """All candidates of a draft, by request. scores: values [samples, requests, n]; tokens, parents: [requests, n].
    known: whether it is known what every step went over, bool [requests]. Mutable: it grows."""

    scores: list[torch.Tensor]
    tokens: list[torch.Tensor]
    parents: list[torch.Tensor]
    known: torch.Tensor

    def kept(self, claims: Claims) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """The outputs: parents, scores_index and tokens, as Answer has them."""
        picked, _ = largest_set(torch.cat(self.scores, dim=-1), claims.kept.shape[1], claims.kept)
        outputs = {
            "parents": torch.cat(self.parents, dim=1),
            "scores_index": picked,
            "tokens": torch.cat(self.tokens, dim=1).gather(1, picked),
        }
        return {name: (output, self.known[:, None].expand_as(output)) for name, output in outputs.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seedling:
    """The start of a draft. scores: values [samples, requests, topk], and tokens [requests, topk], of the first
    candidates; hidden: [samples, requests, n]. named: as for Claims. known: whether these are what the path started
    from, bool [requests]; all where it is not given."""

    scores: torch.Tensor
    tokens: torch.Tensor
    hidden: torch.Tensor
    named: torch.Tensor
    known: torch.Tensor | None = None


def _by_logits(step: int, logits: torch.Tensor) -> torch.Tensor:
    return logits


def grown(by: Rounding, steps: int, start: Seedling, forward: Forward, claims: Claims, rank: Rank = _by_logits) -> Tree:
    scores, ids = start.scores, start.tokens
    count, topk = ids.shape
    known = torch.ones(count, dtype=torch.bool) if start.known is None else start.known
    rows = torch.arange(count)[:, None]
    tree = Tree(scores=[scores], tokens=[ids], parents=[torch.arange(-1, topk).expand(count, -1)], known=known)
    states = start.hidden.repeat_interleave(topk, dim=1)
    for step in range(steps - 1):
        logits, states = forward(step, ids.flatten(), states, tree.known)
        children, sure = largest(rank(step, logits), topk, claims.children(step))
        shares = op.shares(by, logits).gather(-1, children.expand(len(logits), *children.shape))
        products = scores[..., None] * shares.unflatten(1, (count, topk))
        products = by.moved(products, SINGLE * products[0]).flatten(2)
        candidates = start.named[children].view(count, topk * topk)
        tree.scores.append(products)
        tree.tokens.append(candidates)
        if step < steps - 2:
            # The next step goes over the best of them, each in the branch of its rank.
            picked, _ = largest(products, topk, claims.picked(step))
            tree.parents.append(picked + claims.first(step))
            tree.known = tree.known & sure.view(count, topk * topk).gather(1, picked).all(dim=1)
            scores, ids = products[:, rows, picked], candidates.gather(1, picked)
            states = states.unflatten(1, (count, topk))[:, rows, picked // topk].flatten(1, 2)
    return tree


class Drawn:
    """Drafts that are drawn at random, in chains: what the token behind each was drawn from, and which that was.
    knows_greedy: whether those of greedy requests are not."""

    def __init__(self, question: Question, knows_greedy: bool) -> None:
        self.by = question.by
        self._heat = question.exact(rejection.TEMPERATURES)
        self._best = torch.tensor([knows_greedy and request.greedy for request in question.requests])[:, None]
        self._numbers = torch.from_numpy(rejection.numbers(question.setup)[:, : len(self._best)]).double()
        self.shares = [question.exact(rejection.PROBABILITIES)]

    def rank(self, step: int, logits: torch.Tensor) -> torch.Tensor:
        heated = logits / self._heat
        shares = op.shares(self.by, self.by.moved(heated, SINGLE * heated[0].abs()))
        shares = self.by.moved(shares, SINGLE_SMALLEST)
        self.shares.append(shares)
        scores = shares / self._numbers[step]
        return torch.where(self._best, shares, self.by.moved(scores, SINGLE * scores[0]))


class Branches:
    """The KV of a draft's branches: each sees its request's prefix and what was written in its own slots before."""

    def __init__(self, question: Question, answer: Answer) -> None:
        self.question, self.answer = question, answer
        self.keys: list[torch.Tensor] = []  # per draft step, [samples, requests * topk, kv heads, size]
        self.values: list[torch.Tensor] = []
        requests, table = question.requests, question.table
        self.prefixes = [table[request.slot, : request.seq_len] for request in requests]
        places = [draft_positions(question.setup, request.seq_len) for request in requests]
        self.slots = np.stack(
            [table[r.slot, positions_of] for r, positions_of in zip(requests, places, strict=True)]
        )  # [n, topk, steps]

    def attending(self, step: int, sure: torch.Tensor) -> Attend:
        """sure: bool [requests]."""

        def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scores: Scores) -> torch.Tensor:
            question, topk = self.question, self.question.setup.topk
            self.keys.append(keys)
            self.values.append(values)
            known = sure.repeat_interleave(topk)
            self.answer.wrote(self.slots[:, :, step].reshape(-1), scores.cached.written(keys, values), known)
            outputs = []
            for row, (request, prefix) in enumerate(zip(question.requests, self.prefixes, strict=True)):
                branches = slice(row * topk, (row + 1) * topk)
                along = torch.arange(request.seq_len, request.seq_len + step + 1).repeat_interleave(topk)
                sees = torch.eye(topk, dtype=torch.bool).repeat(1, step + 1)
                old_keys, old_values = scores.cached.rows(question, prefix, values.shape[-1])
                seen = op.Attended(
                    keys=old_keys,
                    values=old_values,
                    new_keys=torch.cat([cached[:, branches] for cached in self.keys], dim=1),
                    new_values=torch.cat([cached[:, branches] for cached in self.values], dim=1),
                    mask=visible(len(prefix), along[-topk:], along, sees, scores.window),
                )
                outputs.append(op.attention(question.by, queries[:, branches], seen, scores.scaling, scores.logit_cap))
            return torch.cat(outputs, dim=1)

        return attend


def draft(live: Live) -> Reference | None:
    """parents, scores_index, tokens: the tree."""
    setup = live.setup
    model = read(live.draft.draft_runner.model, algorithms.draft_vocab(setup))
    if model is None:
        return None
    vocabulary = torch.arange(setup.vocab_size)
    named = torch.from_numpy(algorithms.hot_tokens(setup)) if setup.algorithm == "EAGLE3" else vocabulary

    def run(question: Question) -> Answer:
        answer, by, batch = Answer(), question.by, question.given
        branches = Branches(question, answer)
        lengths = torch.tensor([request.seq_len for request in question.requests]).repeat_interleave(setup.topk)

        def forward(
            step: int, ids: torch.Tensor, hidden: torch.Tensor, sure: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            tokens = Tokens(ids=ids, positions=given_positions(question, lengths) + step, hidden=hidden)
            return model(by, tokens, branches.attending(step, sure))

        start = Seedling(
            scores=by.exact(batch["topk_p"]),
            tokens=named[batch["topk_index"]],
            hidden=question.exact("hidden_states"),
            named=named,
        )
        claims = Claims(question.claimed, setup.topk, setup.num_steps, named)
        drawn = Drawn(question, rejection.knows_greedy(live)) if setup.rejection else None
        tree = grown(by, setup.num_steps, start, forward, claims, drawn.rank if drawn else _by_logits)
        answer.integers |= tree.kept(claims)
        says = not (rejection.has_variants(live) and all(request.greedy for request in question.requests))
        if drawn and says:
            answer.floats[rejection.PROBABILITIES] = torch.stack(drawn.shares, dim=2)
            answer.known[rejection.PROBABILITIES] = tree.known
        return answer

    return run
