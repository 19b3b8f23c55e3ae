"""sgl_kernel's and flashinfer's functions that verify trees by sampling, in plain torch, for machines that cannot load
them."""

from __future__ import annotations

import torch

from runners.engines.standins.verify import NONE


def top_k_renorm_prob(probs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """probs: [n, vocabulary]. top_k: [n]; tokens as likely as the last one count as well."""
    ranked = probs.sort(dim=-1, descending=True).values
    last = ranked.gather(-1, (top_k.long().clamp(1, probs.shape[-1]) - 1)[:, None])
    return _scaled(probs.masked_fill(probs < last, 0))


def top_p_renorm_prob(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """probs: [n, vocabulary]. top_p: [n]; the fewest of the likeliest tokens that together have this probability."""
    ranked = probs.sort(dim=-1, descending=True).values
    before = ranked.cumsum(dim=-1) - ranked
    fewest = (before < top_p[:, None]).sum(dim=-1, keepdim=True).clamp(min=1)
    return _scaled(probs.masked_fill(probs < ranked.gather(-1, fewest - 1), 0))


def _scaled(probs: torch.Tensor) -> torch.Tensor:
    return probs / probs.sum(dim=-1, keepdim=True)


def tree_speculative_sampling_target_only(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Walk each request's tree from its root. Of a node's children the first is accepted at which the coin of the node
    lies within the probability of the children up to it, or whose own reaches threshold_single; behind the last one a
    token is drawn from what the refused children left.

    predicts, accept_index, accept_token_num, candidates and retrive_*: as verify_tree_greedy has them.
    uniform_samples: [requests, nodes], a node's coin. uniform_samples_for_final_sampling: [requests]. target_probs,
    draft_probs: [requests, nodes, vocabulary], of which the latter gets what refused children had.
    """
    for row, (tokens, numbers, children, siblings) in enumerate(
        zip(*(t.tolist() for t in (candidates, retrive_index, retrive_next_token, retrive_next_sibling)), strict=True)
    ):
        node, accepted = 0, 0
        accept_index[row, 0] = numbers[0]
        while accepted + 1 < accept_index.shape[1]:
            probs, coin, together = target_probs[row, node], float(uniform_samples[row, node]), 0.0
            child = children[node]
            while child != NONE:
                single = float(probs[tokens[child]])
                together += single
                if coin <= together / threshold_acc or single >= threshold_single:
                    break
                draft_probs[row, node, tokens[child]] = single
                child = siblings[child]
            if child == NONE:
                break
            predicts[numbers[node]] = tokens[child]
            node, accepted = child, accepted + 1
            accept_index[row, accepted] = numbers[node]
        accept_token_num[row] = accepted
        left = (target_probs[row, node] - draft_probs[row, node]).clamp(min=0).cumsum(dim=0)
        drawn = int((left <= float(uniform_samples_for_final_sampling[row]) * float(left[-1])).sum())
        predicts[numbers[node]] = min(drawn, len(left) - 1)
