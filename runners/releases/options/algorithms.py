"""Differences between sglang's speculative algorithms, the same in each release: models, vocabularies, KV caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from repro.cases.case import Setup
from repro.cases.families import DSA, GDN, GEMMA, GLM, GPT_OSS, KDA, MAMBA2, MIMO, QWEN35, QWEN_VL, V4, is_latent
from repro.cases.layout import Ints
from repro.cases.runner_facts import IN_BLOCKS, RUNNER_FACTS
from repro.cases.setup import as_drafted
from runners.releases import model
from runners.releases.options import blocks, dsa, dsv4, gemma4, mimo, mrope
from runners.releases.options.deepseek import deepseek
from runners.releases.options.gdn import gdn
from runners.releases.options.glm import glm
from runners.releases.options.gpt_oss import gpt_oss
from runners.releases.options.kda import kda
from runners.releases.options.mamba2 import mamba2
from runners.releases.options.qwen35 import qwen35
from runners.releases.options.qwen_vl import qwen_vl

AUXILIARY = 3  # layers of the target whose hidden states EAGLE3's draft model is given
# The layers behind which a target that is driven alone gives them: two, as each takes time on the emulated engine. In
# 0.5.13 graphs of draft-extend, which rounds have as well, take three for granted.
_AUXILIARY_BEHIND = (0, 1)


# Recurrent targets that a Llama drafts for.
_TARGETS = {MAMBA2: mamba2, KDA: kda}
# Others for which drafts of a Llama's own algorithms are made.
_DRAFTED_FOR = {GPT_OSS: gpt_oss, QWEN_VL: qwen_vl}


def configs(setup: Setup) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The configurations of target and draft model."""
    if setup.family in _TARGETS:
        return _TARGETS[setup.family](setup), model.llama(as_drafted(setup), "LlamaForCausalLMEagle")
    if setup.family == DSA:
        return dsa.config(setup), dsa.config(setup)
    if setup.family == V4:
        return dsv4.config(setup), dsv4.config(setup)
    if setup.family == MIMO:
        return mimo.configs(setup)
    if setup.family == GEMMA:
        return gemma4.served(setup)
    if is_latent(setup):
        return deepseek(setup), blocks.config(setup) if setup.algorithm in IN_BLOCKS else deepseek(setup)
    if setup.family == GLM:
        return glm(setup), glm(setup)
    if setup.family == QWEN35:
        return qwen35(setup), qwen35(setup)
    if setup.family == GDN:
        return gdn(setup), blocks.config(setup) if setup.algorithm in IN_BLOCKS else gdn(setup)
    target = _DRAFTED_FOR.get(setup.family, model.llama)(setup)
    if setup.algorithm == "EAGLE3":
        draft_only = {"draft_vocab_size": draft_vocab(setup), **mrope.config(as_drafted(setup))}
        if setup.draft_hidden_size:
            draft_only["target_hidden_size"] = setup.hidden_size
        return target, model.llama(as_drafted(setup), "LlamaForCausalLMEagle3") | draft_only
    if setup.algorithm == "STANDALONE":
        return target, model.llama(as_drafted(setup))
    if setup.algorithm in IN_BLOCKS:
        return target, blocks.config(setup)
    return target, model.llama(as_drafted(setup), "LlamaForCausalLMEagle")


def verifying(setup: Setup) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The same where the target gives the hidden states that a draft model of its algorithm is given: EAGLE3's come
    from behind several layers, with more behind them."""
    target, draft = configs(setup)
    if setup.algorithm in IN_BLOCKS:
        return _deepened(target, blocks.FEATURES), draft
    if setup.algorithm != "EAGLE3":
        return target, draft
    behind = tuple(range(AUXILIARY)) if RUNNER_FACTS[setup.runner].serves else _AUXILIARY_BEHIND
    return _deepened(target, behind), {**draft, "eagle_config": {"eagle_aux_hidden_state_layer_ids": behind}}


def _deepened(target: Mapping[str, Any], behind: tuple[int, ...]) -> Mapping[str, Any]:
    """The target with one layer more than those behind which it gives hidden states."""
    kinds = {name: target[name] for name in ("hybrid_layer_pattern", "layer_types") if name in target}
    count = len(behind) + 1
    dense = {name: count for name in ("first_k_dense_replace",) if name in target}
    layers = {name: [each[number % len(each)] for number in range(count)] for name, each in kinds.items()}
    texts = {name: _deepened(target[name], behind) for name in ("text_config",) if name in target}
    return {**target, **layers, **texts, **dense, "num_hidden_layers": count}


def hot_tokens(setup: Setup) -> Ints:
    """The tokens of the target that an EAGLE3 draft model knows, under its own numbers 0, 1, ...: every other one."""
    return np.arange(1, setup.vocab_size, 2, dtype=np.int64)


def draft_vocab(setup: Setup) -> int:
    """The number of tokens that the draft model knows; topk_index names them by its own numbers."""
    return len(hot_tokens(setup)) if setup.algorithm == "EAGLE3" else setup.vocab_size


def verified_size(setup: Setup) -> int:
    """The width of the hidden states that the target hands to the draft model after a verify."""
    return setup.hidden_size * (AUXILIARY if setup.algorithm == "EAGLE3" else 1)
