"""sgl_kernel's verify_tree_greedy in plain torch, for machines that cannot load it."""

from __future__ import annotations

import torch

NONE = -1  # what ends a chain of siblings


def verify_tree_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each request's tree from its root along the tokens that the target predicts.

    predicts: [requests * nodes], gets the target's token at each accepted node. accept_index: [requests, depth], gets
    the nodes, numbered over the whole batch. accept_token_num: [requests], gets their number without the root. The
    others are [requests, nodes]: drafted tokens, a node's number, first child and next sibling, the target's tokens.
    """
    tables = (candidates, retrive_index, retrive_next_token, retrive_next_sibling, target_predict)
    for row, (tokens, numbers, children, siblings, predicted) in enumerate(
        zip(*(t.tolist() for t in tables), strict=True)
    ):
        node, accepted = 0, 0
        accept_index[row, 0] = numbers[0]
        while accepted + 1 < accept_index.shape[1]:
            child = children[node]
            while child != NONE and tokens[child] != predicted[node]:
                child = siblings[child]
            if child == NONE:
                break
            predicts[numbers[node]] = predicted[node]
            node, accepted = child, accepted + 1
            accept_index[row, accepted] = numbers[node]
        accept_token_num[row] = accepted
        predicts[numbers[node]] = predicted[node]
