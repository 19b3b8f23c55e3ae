"""Processor seconds of setups, by which a plan is fitted into its time. Each row is fitted to all setups of a plan that
were measured on 0.5.23 (emulated, one process after the other for each kind of setup, a loaded machine)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repro.cases.case import Case
from repro.cases.runner_facts import RUNNER_FACTS


@dataclass(frozen=True, slots=True)
class Cost:
    """opening: seconds of a setup. step: of each step of its cases, by graph, eager and the reference, and judged."""

    opening: float
    step: float


# Two backends of a runner differ less than two runs of the same session.
_RUNNERS: Mapping[str, Cost] = {
    "draft": Cost(0.48, 0.07),
    "decode": Cost(0.21, 0.04),
    "cpu_decode": Cost(0.21, 0.04),
    "verify": Cost(0.24, 0.10),
    "frozen_kv_mtp": Cost(0.10, 0.20),
    "draft_extend": Cost(0.21, 0.09),
    "multi_layer": Cost(0.18, 0.14),
    "verify_eager": Cost(0.30, 0.04),
    "verify_eager_tree": Cost(0.23, 0.06),
    "verify_eager_multi_layer": Cost(0.30, 0.04),
    "kv_move": Cost(0.02, 0.02),
    "round": Cost(0.87, 0.48),
}
_UNMEASURED = Cost(1.0, 0.2)
# A session of these takes so many times what it takes of a Llama.
_FAMILIES: Mapping[str, float] = {
    "deepseek_v3": 2.1,
    "glm4_moe": 2.1,
    "gpt_oss": 1.5,
    "kimi_linear": 3.0,
    "nemotron_h": 2.4,
    "qwen3_5": 1.9,
    "qwen3_next": 1.9,
}
# A bucket that is compiled.
_COMPILED = 7.0


def seconds(cases: Sequence[Case]) -> float:
    """The processor seconds of these cases of one setup."""
    setup = cases[0].setup
    cost = _RUNNERS.get(setup.runner, _UNMEASURED)
    compiled = _COMPILED * len(setup.capture_bs) if RUNNER_FACTS[setup.runner].compiled else 0.0
    steps = sum(len(case.steps) for case in cases)
    return (cost.opening + steps * cost.step) * _FAMILIES.get(setup.family, 1.0) + compiled
