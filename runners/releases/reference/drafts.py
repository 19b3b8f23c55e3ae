"""Drafts in float64: the chains and trees that a draft model grows behind the text of each round.

A draft model goes over the text once, each of its rows made of a token and of the target's hidden state of the token
before it; then along the branches that were drafted, those of all rounds together, unless a model of its own drafts
each token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from repro.cases.layout import Ints
from runners.releases.reference import operations as op
from runners.releases.reference.indexing import Choice, among
from runners.releases.reference.llama import Attend, Model, Scores, Tokens
from runners.releases.reference.rounding import Rounding

# A choice is sure whose values are apart by more than so many times what rounding moves one by.
_SURE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """A round's drafts. start: the number of tokens before the first, their root. tokens, parents: of each, the root
    first; one that no parent leads to has -1, as the root."""

    start: int
    tokens: Sequence[int]
    parents: Sequence[int]

    def first(self) -> Drafted:
        """The root and the draft behind it."""
        return Drafted(start=self.start, tokens=self.tokens[:2], parents=self.parents[:2])


class Drafter(Protocol):
    """A draft model in float64."""

    def behind(
        self, by: Rounding, text: Ints, hidden: torch.Tensor, drafted: Sequence[Drafted]
    ) -> tuple[list[float], float]:
        """The distance of each draft from one that could stand in its place, 0 of a right one, and how far rounding
        moves one; infinite of a token that there is not. text: all tokens of a request, [n + 1]. hidden: the target's
        hidden states of all but the last, [samples, n, hidden]. Drafts that begin behind them are left out."""
        ...


# Of a window, which of all rows each of the new ones attends to, bool [new, all].
Sees = Callable[[int], torch.Tensor]


@dataclass(slots=True)
class _Kept:
    """Keys and values, by layer, of all that a draft model has gone over, and the keys by which it chooses some.
    choices: those of its first pass, and which are sure, as Choice.seen() has them. Mutable: it grows."""

    layers: list[tuple[torch.Tensor, ...]] = field(default_factory=list)
    choices: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def attending(self, by: Rounding, sees: Sees, follows: torch.Tensor | None = None) -> Attend:
        """follows: the tokens of the first pass whose choice the new ones share; None: each chooses by itself."""
        last, self.layers = iter(self.layers), []

        def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scores: Scores) -> torch.Tensor:
            choice = scores.choice
            new = (keys, values) if choice is None else (keys, values, choice.keys)
            before = next(last, tuple(each[:, :0] for each in new))
            whole = tuple(torch.cat(pair, dim=1) for pair in zip(before, new, strict=True))
            self.layers.append(whole)
            keys, values = whole[:2]
            seen = op.Attended(
                keys=keys[0, :0],
                values=values[0, :0],
                new_keys=keys,
                new_values=values,
                mask=sees(scores.window),
            )
            if choice is None:
                return op.attention(by, queries, seen, scores.scaling, scores.logit_cap, scores.sinks)
            seen, unknown = among(seen, *self._chosen(replace(choice, keys=whole[2]), seen.mask, follows))
            return op.attention(by, queries, seen, scores.scaling).masked_fill(unknown[:, None], torch.nan)

        return attend

    def _chosen(
        self, choice: Choice, mask: torch.Tensor, follows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys that queries see, and whether the choice is sure, as Choice.seen() gives them."""
        layer = len(self.layers) - 1
        if follows is None:
            made = choice.seen(mask)
            self.choices += [made] if layer == len(self.choices) else []
            return made
        keys, sure = (each[follows] for each in self.choices[layer])
        return torch.cat((keys, keys.new_zeros(len(keys), mask.shape[1] - keys.shape[1])), dim=1), sure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """The tokens that one draft step goes over, in all rounds. scores: the logarithms of how likely they are, values
    [samples, rounds, branches]; behind: of each token behind them, [samples, rounds, branches, draft vocabulary].
    children: the likeliest of these, falling, one more than there are branches, [rounds, branches, topk + 1].
    origins: the branch and the number that each token comes of, [rounds, branches, 2]. sure: whether no others can be
    gone over, bool [rounds]."""

    scores: torch.Tensor
    behind: torch.Tensor
    children: torch.Tensor
    origins: torch.Tensor
    sure: torch.Tensor

    def candidates(self) -> torch.Tensor:
        """The scores of the children, values [samples, rounds, branches, topk + 1]."""
        at = self.children.expand(len(self.behind), *self.children.shape)
        return self.scores[..., None] + self.behind.gather(-1, at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branching:
    """A draft model that goes over its own drafts. topk: branches. steps: how often it drafts; 0: as often as a chain
    is long. named: what the target calls the tokens that it numbers, rising. takes_states: whether it is
    given hidden states. shares: whether all steps see the keys that the text's last token chose, and no draft."""

    model: Model
    topk: int
    steps: int
    named: torch.Tensor
    takes_states: bool = True
    shares: bool = False

    def behind(
        self, by: Rounding, text: Ints, hidden: torch.Tensor, drafted: Sequence[Drafted]
    ) -> tuple[list[float], float]:
        trees = [each for each in drafted if each.start <= hidden.shape[1]]
        if not trees:
            return [], 0.0
        longest = max(len(tree.tokens) for tree in trees)
        claimed = torch.tensor([[*tree.tokens, *[0] * (longest - len(tree.tokens))] for tree in trees])
        numbers = self._numbers(claimed)
        levels = self._levels(by, torch.from_numpy(text), hidden, torch.tensor([tree.start for tree in trees]), numbers)
        scores = [level.candidates() for level in levels]
        reached = torch.cat([each[0, :, :, :-1].flatten(1) for each in scores], dim=1).sort(descending=True).values
        apart = list[float]()
        for row, tree in enumerate(trees):
            known = self.topk > 1 and bool(levels[-1].sure[row])
            least = float(reached[row, len(tree.tokens) - 2]) if known else -math.inf
            apart += _apart(tree, numbers[row, : len(tree.tokens)].tolist(), levels, row, least)
        return apart, max(float((each[1:] - each[0]).abs().nan_to_num(0.0).amax()) for each in scores)

    def _numbers(self, tokens: torch.Tensor) -> torch.Tensor:
        """The draft model's own numbers of tokens, -1 of those that it does not know."""
        places = torch.searchsorted(self.named, tokens).clamp(max=len(self.named) - 1)
        return places.where(self.named[places] == tokens, -1)

    def _levels(
        self, by: Rounding, text: torch.Tensor, hidden: torch.Tensor, starts: torch.Tensor, claimed: torch.Tensor
    ) -> list[_Level]:
        """starts: of the rounds. claimed: the numbers of their drafts, of which a chain goes over its own."""
        kept, topk, rows = _Kept(), self.topk, torch.arange(len(starts))[:, None]
        places = torch.arange(hidden.shape[1])
        tokens = Tokens(ids=text[1:], positions=places, hidden=hidden if self.takes_states else None)
        logits, states = self.model(by, tokens, kept.attending(by, _causal(places)))
        logits, states = logits[:, starts - 1, None], states[:, starts - 1, None]
        scores, sure = logits.new_zeros(logits.shape[:3]), torch.ones(len(starts), dtype=torch.bool)
        origins, levels = torch.full((len(starts), 1, 2), -1), list[_Level]()
        for step in range(self.steps or claimed.shape[1] - 1):
            if step:
                picked, apart = _picked(levels[-1].candidates(), topk)
                parents, numbers = picked // (topk + 1), levels[-1].children.flatten(1).gather(1, picked)
                if topk == 1:
                    numbers = claimed[:, step : step + 1].clamp(min=0)
                else:
                    sure = sure & apart
                scores = scores[:, rows, parents] + levels[-1].behind[:, rows, parents, numbers]
                origins = torch.stack((parents, numbers), dim=-1)
                positions, sees = _branches(places, starts, topk, step, unseen=self.shares)
                inputs = states[:, rows, parents].flatten(1, 2) if self.takes_states else None
                tokens = Tokens(ids=self.named[numbers].flatten(), positions=positions, hidden=inputs)
                follows = (starts - 1).repeat_interleave(topk) if self.shares else None
                results = self.model(by, tokens, kept.attending(by, sees, follows))
                logits, states = (each.unflatten(1, (-1, topk)) for each in results)
            behind = logits.log_softmax(dim=-1)
            children = behind[0].topk(topk + 1, dim=-1).indices
            levels.append(_Level(scores=scores, behind=behind, children=children, origins=origins, sure=sure))
        return levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Layered:
    """Draft models that draft a token each. Each goes over the rows of the one before, moved up by a token: at the end
    of what a round has, by what was drafted. No later round makes these rows again (_draft_extend_for_decode of
    multi_layer_eagle_worker_v2.py)."""

    models: Sequence[Model]

    def behind(
        self, by: Rounding, text: Ints, hidden: torch.Tensor, drafted: Sequence[Drafted]
    ) -> tuple[list[float], float]:
        chains = [each for each in drafted if each.start <= hidden.shape[1]]
        if not chains:
            return [], 0.0
        places, starts = torch.arange(hidden.shape[1]), torch.tensor([chain.start for chain in chains])
        apart, noise = list[float](), 0.0
        for number in range(min(len(self.models), *(len(chain.tokens) - 1 for chain in chains))):
            tokens = Tokens(ids=_moved_up(text, chains, number), positions=places, hidden=hidden)
            logits, _ = self.models[number](by, tokens, _Kept().attending(by, _causal(places)))
            logits = logits[:, starts - 1]
            noise = max(noise, float((logits[1:] - logits[0]).abs().amax()))
            ids = torch.tensor([chain.tokens[number + 1] for chain in chains])
            known = (ids >= 0) & (ids < logits.shape[2])
            behind = logits[0].amax(dim=1) - logits[0].gather(1, ids.where(known, 0)[:, None])[:, 0]
            apart += behind.where(known, math.inf).tolist()
        return apart, noise


def _moved_up(text: Ints, chains: Sequence[Drafted], number: int) -> torch.Tensor:
    """The tokens of a model's rows, the first model's being 0; known to as many places as there are."""
    ids = torch.from_numpy(text)[1 + number :]
    ids = torch.cat((ids, ids.new_zeros(number)))
    first = 0
    for chain in sorted(chains, key=lambda chain: chain.start):
        for place in range(max(first, chain.start - number), chain.start):
            ids[place] = max(0, chain.tokens[place + 1 + number - chain.start])
        first = chain.start
    return ids


def _causal(places: torch.Tensor) -> Sees:
    return lambda window: (places <= places[:, None]) & _within(places, places, window)


def _branches(
    places: torch.Tensor, starts: torch.Tensor, topk: int, step: int, *, unseen: bool
) -> tuple[torch.Tensor, Sees]:
    """The positions of the tokens that a step goes over, the first step behind the text being 1, and what they see:
    the text before their round, and the KV slots of their own branch, which is that of their rank, whatever they
    come behind (select_top_k_tokens chooses hidden states alone, spec_utils.py, 0.5.23:464). unseen: they see the text
    alone."""
    first = starts.repeat_interleave(topk)
    positions = first + step - 1
    at = torch.cat((places, (first + torch.arange(step)[:, None]).flatten()))
    slots = torch.eye(len(first), dtype=torch.bool).repeat(1, step) & (not unseen)
    seen = torch.cat((places < first[:, None], slots), dim=1)
    return positions, lambda window: seen & _within(positions, at, window)


def _picked(candidates: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The best of a step's candidates, in their order, [rounds, topk], and whether rounding explains no other choice,
    nor another order, bool [rounds]. A branch's last candidate is none."""
    flat = candidates.flatten(2)
    best = flat[0].topk(min(topk + 1, flat.shape[2]), dim=-1)
    noise = (flat[1:] - flat[0]).abs().amax(dim=(0, 2))
    gaps = (best.values[:, :-1] - best.values[:, 1:]).amin(dim=1)
    return best.indices[:, :topk], gaps > _SURE * noise


def _apart(tree: Drafted, numbers: Sequence[int], levels: Sequence[_Level], row: int, least: float) -> list[float]:
    """The distances of one round's drafts, in the words of Drafter. least: the score of the last token in a tree
    of this size."""
    # Where each token is gone over, level and branch; or how far it lies behind those that are.
    places: list[tuple[int, int] | float] = [(0, 0)]
    apart, met = list[float](), set[tuple[int, int]]()
    for node, number in enumerate(numbers[1:], start=1):
        parent = tree.parents[node]
        place = places[parent] if parent >= 0 else _orphan(levels, row, number, least)
        if not isinstance(place, tuple):
            apart.append(place)
            places.append(place)
            continue
        step, branch = place
        level = levels[step]
        behind = level.behind[0, row, branch]
        score = level.scores[0, row, branch] + behind[number]
        last = behind[level.children[row, branch, -2]]
        lies = max(0.0, float(last - behind[number]), float(least - score)) if _is_known(behind) else math.nan
        apart.append(math.inf if number < 0 or (parent, number) in met else lies)
        met.add((parent, number))
        places.append(_place(levels, step + 1, row, (branch, max(number, 0)), score))
    return apart


def _is_known(scores: torch.Tensor) -> bool:
    return not bool(scores.isnan().any())


def _orphan(levels: Sequence[_Level], row: int, number: int, least: float) -> float:
    """The distance of a token in a tree from one that is as likely as a token before it that the tree lacks. sglang
    keeps either of the two then (organize_draft_results, eagle_utils.py)."""
    if number < 0 or levels[0].children.shape[2] == 2:  # a chain has them all
        return math.inf
    if not levels[-1].sure[row]:
        return math.nan
    gaps = [-level.behind[0, row, :, number] for level in levels[1:]]
    short = [least - level.scores[0, row] + gap for level, gap in zip(levels[1:], gaps, strict=True)]
    return float(torch.maximum(torch.cat(gaps), torch.cat(short)).min())


def _place(
    levels: Sequence[_Level], step: int, row: int, origin: tuple[int, int], score: torch.Tensor
) -> tuple[int, int] | float:
    if step == len(levels):
        return math.inf
    level = levels[step]
    if not level.sure[row]:
        return math.nan
    matches = (level.origins[row] == torch.tensor(origin)).all(dim=1).nonzero()
    return (step, int(matches[0])) if len(matches) else float(level.scores[0, row, -1] - score)


def _within(positions: torch.Tensor, others: torch.Tensor, window: int) -> torch.Tensor:
    """True of the others in the window before each position, bool [n, others]; of all where it is negative."""
    return (positions[:, None] - others <= window) | (window < 0)
