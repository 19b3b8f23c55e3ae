"""What a tree of drafts says by itself: which of its tokens attends to which."""

from __future__ import annotations

import numpy as np

from repro.cases.layout import Ints, Paged


def ancestors(setup: Paged, selected: Ints, parents: Ints) -> Ints:
    """Which tokens of the tree each of its tokens attends to, [num_draft_tokens, num_draft_tokens]. selected: the
    candidates that became its tokens behind the root; the topk candidates of one parent are neighbours, and `parents`
    says which candidate that parent was."""
    attends = np.eye(setup.num_draft_tokens, dtype=np.int64)
    attends[:, 0] = 1
    place = {int(candidate): token for token, candidate in reversed(list(enumerate(selected.reshape(-1), start=1)))}
    # Rising: candidates come after their parents, and so do the tokens that they became.
    for token, candidate in enumerate(selected.reshape(-1).tolist(), start=1):
        family = candidate // setup.topk
        parent = place.get(int(parents.reshape(-1)[family])) if family else 0
        if parent:
            attends[token] |= attends[parent]
    return attends
