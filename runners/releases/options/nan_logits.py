"""A token whose embedding is not a number: behind it no logit is one, of both models or of the draft model alone."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from repro.cases.case import Setup
from repro.cases.layout import Ints
from repro.cases.rows.requests import OF_DRAFT, OF_TARGET, lacks_numbers
from repro.cases.runner_facts import FROM_TABLE

# Before, no release has a sanitizer.
SANITIZED_SINCE = "0.5.14"
# Methods by which a draft model is given its target's embeddings.
_SHARED = ("set_embed_and_head", "set_embed")


def token_of(setup: Setup) -> int:
    """The token; the one behind it stands for masks of blocks."""
    return setup.vocab_size - 2


def is_among(tokens: Collection[int], setup: Setup) -> bool:
    """True of a prompt and its text behind one of whose tokens logits are not numbers."""
    return bool(setup.nan_logits) and token_of(setup) in tokens


def put_into(prompt: Ints, setup: Setup, step: int, row: int, data: int) -> None:
    """Have a prompt hold the token if its request is to lack numbers, and else not: behind its first token, which no
    draft is given, or as the first one that its model is given where other requests may get what lies before it, by the
    radix cache or as a table's draft. Attention multiplies masked values by zero, and NaN stays NaN: rows before the
    token hold no numbers, either."""
    prompt[prompt == token_of(setup)] = 0
    if lacks_numbers(setup, step, row):
        behind = len(prompt) - 1
        shared = setup.radix or setup.algorithm in FROM_TABLE
        place = int(setup.nan_logits == OF_DRAFT) if shared else 1 + data % max(1, behind)
        prompt[min(place, behind)] = token_of(setup)


def fill_target(target: torch.nn.Module, setup: Setup) -> None:
    """No model prefers the token, so that other requests hardly ever meet it."""
    if setup.nan_logits:
        for name, parameter in target.named_parameters():
            if "lm_head" in name:
                parameter.data[token_of(setup)] = 0.0
            if "embed_tokens" in name and setup.nan_logits == OF_TARGET:
                parameter.data[token_of(setup)] = torch.nan


def fill_draft(draft: Any, setup: Setup) -> None:
    """Embeddings of its own, whether it has them or is given its target's."""
    if setup.nan_logits != OF_DRAFT:
        return
    for name, parameter in draft.named_parameters():
        if "embed_tokens" in name:
            parameter.data[token_of(setup)] = torch.nan
    for name in _SHARED:
        if hasattr(draft, name):
            setattr(draft, name, _giver(getattr(draft, name), setup))


def _giver(give: Callable[..., None], setup: Setup) -> Callable[..., None]:
    def shared_copy(embeddings: torch.Tensor, *others: Any) -> None:
        rows = embeddings.detach().clone()
        rows[token_of(setup)] = torch.nan
        give(torch.nn.Parameter(rows, requires_grad=False), *others)

    return shared_copy
