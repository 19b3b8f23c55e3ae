"""The draft model of a setup in float64, where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from repro.cases.case import Setup
from repro.cases.runner_facts import IN_BLOCKS
from runners.releases.options import algorithms
from runners.releases.options.blocks import mask_token
from runners.releases.reference.blocks import Blocks
from runners.releases.reference.drafts import Branching, Drafter, Layered
from runners.releases.reference.models import read_whole


def drafter(setup: Setup, target: Any, drafts: Sequence[Any]) -> Drafter | str:
    """target, drafts: sglang's networks. A reason in words where nothing is known of what should be drafted."""
    if setup.algorithm in IN_BLOCKS:
        mask = mask_token(setup.vocab_size)
        return Blocks.of(drafts[0], target, setup.vocab_size, mask, samples=setup.sampled)
    if not drafts or setup.images:
        return "prompts bring images" if drafts else "no model drafts"
    models = [read_whole(draft, algorithms.draft_vocab(setup)) for draft in drafts]
    known = [model for model in models if model is not None]
    if len(known) < len(models):
        return f"there is no reference for {type(drafts[0]).__name__}"
    if len(known) > 1:
        return Layered(models=known)
    hot = setup.algorithm == "EAGLE3"
    return Branching(
        model=known[0],
        topk=setup.topk,
        steps=setup.num_steps if setup.topk > 1 else 0,
        named=torch.from_numpy(algorithms.hot_tokens(setup)) if hot else torch.arange(setup.vocab_size),
        takes_states=setup.algorithm != "STANDALONE",
        shares=setup.index_share,
    )
