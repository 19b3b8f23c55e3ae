"""Differences between sglang's speculative algorithms, the same in each release: models, vocabularies, KV caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from repro.cases.case import Setup
from repro.cases.families import GDN, GLM, is_latent
from repro.cases.layout import Ints
from runners.releases import model
from runners.releases.options import mrope
from runners.releases.options.deepseek import deepseek
from runners.releases.options.gdn import gdn
from runners.releases.options.glm import glm

AUXILIARY = 3  # layers of the target whose hidden states EAGLE3's draft model is given


def configs(setup: Setup) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The configurations of target and draft model."""
    if setup.algorithm == "EAGLE3":
        draft_only = {"draft_vocab_size": draft_vocab(setup), **mrope.config(setup)}
        return model.llama(setup), model.llama(setup, "LlamaForCausalLMEagle3") | draft_only
    if is_latent(setup):
        return deepseek(setup), deepseek(setup)
    if setup.family == GLM:
        return glm(setup), glm(setup)
    if setup.family == GDN:
        return gdn(setup), gdn(setup)
    return model.llama(setup), model.llama(setup, "LlamaForCausalLMEagle")


def hot_tokens(setup: Setup) -> Ints:
    """The tokens of the target that an EAGLE3 draft model knows, under its own numbers 0, 1, ...: every other one."""
    return np.arange(1, setup.vocab_size, 2, dtype=np.int64)


def draft_vocab(setup: Setup) -> int:
    """The number of tokens that the draft model knows; topk_index names them by its own numbers."""
    return len(hot_tokens(setup)) if setup.algorithm == "EAGLE3" else setup.vocab_size


def verified_size(setup: Setup) -> int:
    """The width of the hidden states that the target hands to the draft model after a verify."""
    return setup.hidden_size * (AUXILIARY if setup.algorithm == "EAGLE3" else 1)
