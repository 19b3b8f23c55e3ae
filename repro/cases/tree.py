"""Facts that follow from a tree of drafts alone: which token attends to which, and which is whose child."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repro.cases.layout import Ints, Paged

NONE = -1  # no token: a root's parent, and that of a token whose parent was not kept
TWICE = -2


def parents_of(setup: Paged, selected: Ints, parents: Ints) -> list[int]:
    """The parent of each token of the tree, the root first. selected: the candidates that became its tokens
    behind the root; the topk candidates of one parent are neighbours, and `parents` says which candidate that parent
    was."""
    place = {int(candidate): token for token, candidate in reversed(list(enumerate(selected.reshape(-1), start=1)))}
    families = [candidate // setup.topk for candidate in selected.reshape(-1).tolist()]
    above = (place.get(int(parents.reshape(-1)[family]), NONE) if family else 0 for family in families)
    return [NONE, *above]


def reached(parents: list[int]) -> list[int]:
    """The same, with NONE for what the root does not lead to: a token whose parent was not kept, and all below it."""
    chain = list(parents)
    for token, parent in enumerate(parents):  # rising: parents come before their children
        if parent > 0 and chain[parent] == NONE:
            chain[token] = NONE
    return chain


def ancestors(parents: Sequence[int]) -> Ints:
    """The tokens of the tree that each of its tokens attends to, [num_draft_tokens, num_draft_tokens]."""
    attends = np.eye(len(parents), dtype=np.int64)
    attends[:, 0] = 1
    # Rising: candidates come after their parents, and so do the tokens that they became.
    for token, parent in enumerate(parents):
        if parent > 0:
            attends[token] |= attends[parent]
    return attends


def descent(next_token: Ints, next_sibling: Ints, drafts: int, data: int) -> list[int]:
    """A way from the root down through so many drafts, or as many as there are: at each token to a child that `data`
    picks. The links are those of `linked`."""
    way = [0]
    while len(way) <= drafts:
        children, child = list[int](), int(next_token[way[-1]])
        while child != NONE and child not in children:
            children.append(child)
            child = int(next_sibling[child])
        if not children:
            break
        way.append(children[data % len(children)])
    return way


def linked(next_token: Ints, next_sibling: Ints) -> list[int]:
    """The parent of each token, by the links from a token to its first child and from a child to its next sibling: NONE
    for a token that no link reaches, TWICE for one that two links reach, and for the root if a link leaves the tree."""
    parents = [NONE] * len(next_token)
    waiting = [0]
    while waiting:
        parent = waiting.pop()
        child = int(next_token[parent])
        while child != NONE:
            place = child if 0 <= child < len(parents) else 0
            if not place or parents[place] != NONE:
                parents[place] = TWICE
                break
            parents[place] = parent
            waiting.append(place)
            child = int(next_sibling[place])
    return parents
