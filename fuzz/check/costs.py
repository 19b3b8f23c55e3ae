"""Processor seconds of sessions, by which a plan is fitted into its time. Each row was measured on 0.5.23 (emulated, a
process for each session, a loaded machine): the plain setup of each pair, and a setup of each family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repro.cases.case import Case
from repro.cases.runner_facts import RUNNER_FACTS


@dataclass(frozen=True, slots=True)
class Cost:
    """opening: seconds of a session. step: of each step of its cases, by graph, eager and the reference, and judged."""

    opening: float
    step: float


# Two backends of a runner differ less than two runs of the same session.
_RUNNERS: Mapping[str, Cost] = {
    "draft": Cost(0.52, 0.11),
    "decode": Cost(0.32, 0.04),
    "cpu_decode": Cost(0.32, 0.04),
    "verify": Cost(0.44, 0.12),
    "frozen_kv_mtp": Cost(1.53, 0.29),
    "draft_extend": Cost(0.54, 0.10),
    "multi_layer": Cost(1.00, 0.23),
    "verify_eager": Cost(0.23, 0.07),
    "verify_eager_tree": Cost(0.22, 0.07),
    "verify_eager_multi_layer": Cost(0.24, 0.06),
    "kv_move": Cost(0.07, 0.01),
    "round": Cost(1.13, 1.00),
}
_UNMEASURED = Cost(1.0, 0.2)
# A session of these takes so many times what it takes of a Llama.
_FAMILIES: Mapping[str, float] = {
    "deepseek_v3": 2.0,
    "glm4_moe": 1.4,
    "gpt_oss": 1.2,
    "kimi_linear": 3.5,
    "nemotron_h": 3.5,
    "qwen3_next": 2.0,
}
# A bucket that is compiled.
_COMPILED = 18.0


def seconds(cases: Sequence[Case]) -> float:
    """The processor seconds of a session of its own that runs these cases of one setup."""
    setup = cases[0].setup
    cost = _RUNNERS.get(setup.runner, _UNMEASURED)
    compiled = _COMPILED * len(setup.capture_bs) if RUNNER_FACTS[setup.runner].compiled else 0.0
    steps = sum(len(case.steps) for case in cases)
    return (cost.opening + steps * cost.step) * _FAMILIES.get(setup.family, 1.0) + compiled
