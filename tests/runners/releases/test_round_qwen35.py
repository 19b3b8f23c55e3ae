"""Rounds of Qwen3.5 on the newest release: recurrent layers, positions in three dimensions, prompts with images and a
next-token layer; clean and with planted bugs."""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fuzz.draw.aim import aim_of_values
from fuzz.draw.rounds import round_setup
from oracles import logits
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, problems
from repro.cases.families import QWEN35, fitted
from repro.cases.release_list import NEWEST
from repro.cases.rows.serving import launched
from repro.traces.finding import Status
from runners.processes.pool import Pool
from tests.builders.accepted import most_accepted
from tests.runners.releases.test_round import CHAIN, STEPS, TREE
from tests.runners.releases.test_round_plants import OF_TEXT, Plant, assert_seen

SERVED = fitted(replace(CHAIN, family=QWEN35, head_dim=64))
SETUPS = {
    "triton, a chain": replace(SERVED, overlap=True),
    "flashinfer, a tree": replace(SERVED, backend="flashinfer", topk=TREE.topk, num_draft_tokens=TREE.num_draft_tokens),
    "fa3, images": replace(SERVED, backend="fa3", images=True, overlap=True),
}
PLANTS = {
    "a recurrent layer's gate is that of the token before": Plant(
        file="sglang/srt/models/qwen3_5.py",
        function="Qwen3_5GatedDeltaNet.forward",
        old="core_attn_out = self.norm(core_attn_out, z)",
        new="core_attn_out = self.norm(core_attn_out, z.roll(self.num_v_heads, 0))",
        setup=SERVED,
        seen_by=OF_TEXT,
    ),
    "the draft is given hidden states without their norm": Plant(
        file="sglang/srt/models/qwen3_5_mtp.py",
        function="Qwen3_5ForCausalLMMTP.forward",
        old="hidden_states = self.pre_fc_norm_hidden(hidden_states)",
        new="hidden_states = 3 * self.pre_fc_norm_hidden(hidden_states)",
        setup=replace(SERVED, disagreement=100),
        seen_by=((logits.ORACLE, logits.DRAFTED),),
    ),
}


def test_its_draft_has_its_targets_positions() -> None:
    assert launched(SERVED, "draft").mrope and not launched(SERVED, "verify").mrope
    assert problems(Case(setup=replace(SERVED, mrope=True), steps=STEPS))
    drawn = [round_setup(1, number, "round", "fa3", aim_of_values({"family": QWEN35}))[1] for number in range(12)]
    assert {setup.images for setup in drawn} == {True, False} and not any(setup.mrope for setup in drawn)


@pytest.mark.emulated
def test_axes_take_turns_as_long_as_they_have_pairs() -> None:
    llama: Any = importlib.import_module("runners.releases.reference.llama")
    rotary = SimpleNamespace(mrope_section=[4, 2, 2])
    assert llama.axes_of(rotary) == (0, 0, 0, 0, 1, 1, 2, 2)
    rotary.mrope_interleaved = True
    assert llama.axes_of(rotary) == (0, 1, 2, 0, 1, 2, 0, 0)
    assert llama.axes_of(SimpleNamespace()) == ()


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", SETUPS)
def test_texts_are_the_targets(name: str, newest: Pool) -> None:
    case = Case(setup=SETUPS[name], steps=STEPS)
    trace = newest.run(case)
    assert overall(judge_all(case, trace)) is Status.PASS, judge_all(case, trace)
    assert np.isfinite(trace.path(0, "served")["state_temporal0"]).any(), "no state was judged"
    assert most_accepted(trace) > 1, "no draft was accepted"


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str, newest: Pool) -> None:
    assert_seen(PLANTS[name], newest)
