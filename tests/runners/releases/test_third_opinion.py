"""The third opinion on real sglang: sound calls lie within its bounds, and what graph and eager have wrong alike fails,
on every runner that attends."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from oracles import graph_equals_eager, reference
from oracles.reference_record import ALL, BOUND, NORM
from oracles.tolerance import EPSILON, NOISE_FACTOR, NOISE_ULPS_MAX, ULPS
from repro.cases.case import Case, Request, Setup, Step, Target, problems
from repro.cases.families import GLM, fitted
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import TIE, Status
from repro.traces.trace import Termination, Trace
from runners.processes.pool import Pool

RELEASE = "0.5.15.post1"
pytestmark = pytest.mark.emulated(RELEASE)

DRAFT = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1, 3), slots=4)
HALF = replace(DRAFT, backend="flashinfer", dtype="float16", head_dim=64)
SETUPS = {
    "draft": DRAFT,
    "draft of EAGLE3 on pages": replace(DRAFT, algorithm="EAGLE3", page_size=4),
    "draft of NEXTN": replace(DRAFT, algorithm="NEXTN"),
    "draft_extend of NEXTN on pages": replace(DRAFT, runner="draft_extend", algorithm="NEXTN", page_size=4),
    "draft of GLM-4.5": fitted(replace(DRAFT, family=GLM)),
    "draft in halves": HALF,
    "draft_extend in halves": replace(HALF, runner="draft_extend"),
    "draft_extend in bfloat16": replace(HALF, runner="draft_extend", dtype="bfloat16"),
    "verify": replace(DRAFT, runner="verify"),
    "verify of a sliding and a full layer": replace(DRAFT, runner="verify", topk=1, window=2, swa=True),
    "multi_layer": replace(DRAFT, runner="multi_layer", topk=1),
    "frozen_kv_mtp": replace(DRAFT, runner="frozen_kv_mtp", topk=3, num_draft_tokens=6),
    "decode in halves": replace(HALF, runner="decode", topk=1, num_steps=1, num_draft_tokens=2, num_kv_heads=1),
    "decode of keys and values of eight bits": replace(
        DRAFT, runner="decode", topk=1, num_steps=1, num_draft_tokens=2, kv_dtype="fp8_e4m3", head_dim=32
    ),
    "cpu_decode": replace(
        DRAFT, runner="cpu_decode", backend="intel_amx", topk=1, num_steps=1, num_draft_tokens=2, capture_bs=(3,)
    ),
}


def case(setup: Setup) -> Case:
    """A full bucket and a padded one."""
    full = [Request(slot=slot, seq_len=3 + 4 * slot, data=slot) for slot in (1, 2, 3)]
    padded = [Request(slot=slot, seq_len=5 + slot, data=10 + slot) for slot in (4, 1)]
    example = Case(setup=setup, steps=tuple(Step(requests=tuple(rows)) for rows in (full, padded)))
    assert problems(example) == []
    return example


def test_it_is_asked_wherever_noise_might_not_be_enough() -> None:
    """Imported here: this module is read where torch need not be."""
    third_opinion = importlib.import_module("runners.sessions.third_opinion")
    limits = (third_opinion.UNITS, third_opinion.NOISES, third_opinion.NOISE_UNITS_MAX)
    assert limits == (ULPS, NOISE_FACTOR, NOISE_ULPS_MAX)
    unit = EPSILON["float16"] / 2
    eager = {"logits": np.array([[1.0, 16.0], [0.0, 2.0]], dtype=np.float32), "index": np.array([[1], [2]])}

    def moved(by: float, index: int = 1) -> dict[str, np.ndarray]:
        by_that = np.array([[0, by], [0, 0]], dtype=np.float32)
        return {"logits": eager["logits"] + by_that, "index": np.array([[index], [2]])}

    # A row's largest value is 16, whose last place is 2**-6 wide: four of them, and four times the noise.
    for graph, variants, asks in (
        (moved(2.0**-5), [], False),
        (moved(2.0**-3), [], True),
        (moved(2.0**-3), [moved(2.0**-5)], False),
        (moved(1.0), [moved(2.0**-5)], True),
        (moved(2.0**-3), [moved(2.0**-5, index=5)], True),  # it made another choice
        (moved(8.0), [moved(8.0)], True),  # no noise any more
        (moved(np.nan), [], True),
        (moved(0.0, index=5), [], True),
    ):
        assert third_opinion.apart(graph, eager, variants, unit) is asks
    nothing = {"kv": np.empty((0, 8), dtype=np.float32)}
    assert not third_opinion.apart(nothing, nothing, [], unit)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    log = tmp_path_factory.mktemp("sound") / "log"
    with Pool(Target(RELEASE, "emulated"), log=log) as pool:
        yield pool


@pytest.fixture(scope="module")
def misled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    log = tmp_path_factory.mktemp("misled") / "log"
    target = Target(RELEASE, "emulated")
    with Pool(target, log=log, session="tests.builders.misled_session") as pool:
        yield pool


def known(trace: Trace, step: int) -> float:
    """The part of what is recorded of a step's reference that has a bound."""
    example = trace.path(step, "reference")
    bounds = [array.reshape(-1) for name, array in example.items() if name.endswith((BOUND, NORM, ALL))]
    return float(np.isfinite(np.concatenate(bounds)).mean())


# Of each runner the first; what is compiled takes each of its sessions ten seconds.
FIRST = {setup.runner: name for name, setup in reversed(SETUPS.items()) if not RUNNER_FACTS[setup.runner].compiled}
each_setup = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FIRST.values() else pytest.mark.exhaustive) for name in SETUPS]
)


@each_setup
def test_a_sound_call_lies_within_its_bounds(name: str, sound: Pool) -> None:
    example = case(SETUPS[name])
    trace = sound.run(example)
    assert trace.ended.how is Termination.DONE, trace.ended
    verdict = graph_equals_eager.judge(example, trace)
    assert verdict.status is Status.PASS or (verdict.status, verdict.where) == (Status.UNKNOWN, TIE)
    assert "reference" not in trace.facts, trace.facts["reference"]
    assert reference.judge(example, trace).status is Status.PASS
    for step in range(len(example.steps)):
        # Of a draft whose tokens tie, those are not known that were gone over and not kept.
        assert known(trace, step) > (0.5 if name == "draft in halves" else 0.99)


@each_setup
def test_a_slot_that_both_read_wrongly_is_seen(name: str, misled: Pool) -> None:
    example = case(SETUPS[name])
    trace = misled.run(example)
    assert trace.ended.how is Termination.DONE, trace.ended
    verdict = reference.judge(example, trace)
    assert verdict.status is Status.FAIL, verdict
    assert verdict.where.startswith(reference.WRONG), verdict
    assert verdict.cell is not None
