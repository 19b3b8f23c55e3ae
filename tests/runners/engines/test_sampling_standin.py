"""The stand-ins for functions that verify trees by sampling."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from runners.engines.standins import sampling
from runners.engines.standins.verify import verify_tree_greedy

pytestmark = pytest.mark.emulated

VOCAB, NONE = 8, -1
# Two requests, each with a root, its two children, and a child of the second one.
CHILDREN = torch.tensor([[1, NONE, 3, NONE]] * 2)
SIBLINGS = torch.tensor([[NONE, 2, NONE, NONE]] * 2)
TOKENS = torch.tensor([[0, 1, 2, 3], [0, 4, 5, 6]])
NUMBERS = torch.arange(8).view(2, 4)


def sampled(probs: torch.Tensor, coins: torch.Tensor, last: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Predictions, accepted nodes and their number."""
    results = torch.full((8,), NONE), torch.full((2, 3), NONE), torch.zeros(2, dtype=torch.long)
    tree = (TOKENS, NUMBERS, CHILDREN, SIBLINGS)
    sampling.tree_speculative_sampling_target_only(*results, *tree, coins, last, probs, torch.zeros_like(probs))
    return results


@pytest.mark.parametrize("seed", range(8))
def test_a_target_without_doubt_is_the_greedy_one(seed: int) -> None:
    by = torch.Generator().manual_seed(seed)
    predicted = torch.randint(1, VOCAB, (2, 4), generator=by)
    predicted[0, 0], predicted[0, 2] = 2, 3
    greedy = torch.full((8,), NONE), torch.full((2, 3), NONE), torch.zeros(2, dtype=torch.long)
    verify_tree_greedy(*greedy, TOKENS, NUMBERS, CHILDREN, SIBLINGS, predicted)
    probs = torch.nn.functional.one_hot(predicted, VOCAB).double()
    coins = torch.rand((2, 4), generator=by)
    assert all(
        torch.equal(*pair) for pair in zip(sampled(probs, coins, torch.rand(2, generator=by)), greedy, strict=True)
    )
    assert greedy[2].max() == 2


def test_the_first_token_is_distributed_as_the_targets() -> None:
    probs = torch.tensor([0.125, 0.25, 0.125, 0.0, 0.0, 0.25, 0.0, 0.25]).expand(2, 4, VOCAB)
    places = (torch.arange(32) + 0.5) / 32
    drawn: Counter[int] = Counter()
    for coin in places:
        for last in places:
            predicts, accepted, _ = sampled(probs, coin.expand(2, 4), last.expand(2))
            assert accepted[0, 0] == 0
            drawn[int(predicts[0])] += 1
    assert [drawn[token] / 1024 for token in range(VOCAB)] == pytest.approx(probs[0, 0].tolist(), abs=0.02)


def test_what_is_left_out_has_no_probability() -> None:
    probs = torch.tensor([[0.5, 0.25, 0.125, 0.125]] * 2)
    assert sampling.top_k_renorm_prob(probs, torch.tensor([1, 1 << 30])).tolist() == [[1, 0, 0, 0], probs[1].tolist()]
    kept = sampling.top_p_renorm_prob(probs, torch.tensor([0.6, 1.0]))
    assert kept[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert kept[1].tolist() == probs[1].tolist()
