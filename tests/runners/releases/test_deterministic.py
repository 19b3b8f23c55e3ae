"""Deterministic inference without a GPU: splits and kernels of their own are driven and watched, in rounds to the last
bit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuzz.draw.rounds import examples
from fuzz.draw.strategies import setups
from fuzz.draw.swarm import EVERYTHING
from fuzz.mutation.directed import setups as directed
from fuzz.mutation.sites import mutants
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Setup, Target, engine_refuses, setup_problems
from repro.cases.release_list import NEWEST
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from tests.builders.cases import FULL, PAIR, case_of, failures, setup_of
from tests.builders.planted import planted
from tests.builders.tiers import few
from tests.runners.releases.test_round import CHAIN, STEPS, TREE

TARGET = Target(NEWEST, "emulated")
RUNNERS = ("decode", "draft", "verify", "draft_extend")
ATTENTION = "sglang/srt/layers/attention/triton_backend.py"


def case(runner: str) -> Case:
    """Some requests longer than a split, some not."""
    return case_of(setup_of(runner, deterministic=True), FULL, (*PAIR, (5, 40, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
def test_it_is_drawn_now_and_then(runner: str) -> None:
    draw = examples(setups(runner, "triton", EVERYTHING.having("deterministic")))
    drawn = [draw(f"setup {number}") for number in range(100)]
    having = [setup for setup in drawn if setup.deterministic]
    assert len(having) > 50
    assert not any(setup_problems(setup) or engine_refuses(setup, "emulated") for setup in having)
    assert (runner == "verify") == any(setup.window for setup in having)
    assert any(setup.deterministic for setup in directed(runner, "triton"))


def test_stand_ins_have_no_such_kernels() -> None:
    setup = replace(setup_of("verify", backend="flashinfer"), deterministic=True)
    assert "knows nothing of deterministic inference" in engine_refuses(setup, "emulated")
    assert engine_refuses(setup, "cuda") == engine_refuses(replace(setup, deterministic=False), "emulated") == ""


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("runner", RUNNERS)
def test_the_newest_release_is_right(runner: str, newest: Pool) -> None:
    trace = newest.run(case(runner))
    assert overall(judge_all(case(runner), trace)) is Status.PASS


# Of the newest release, in code that nothing else runs through: function, statement, what takes its place, what fails.
PLANTED = {
    "no split for the last tokens": (
        *("decode", "TritonAttnBackend.get_num_kv_splits"),
        "num_kv_splits[:] = (expanded_seq_lens + self.split_tile_size - 1) // self.split_tile_size",
        "num_kv_splits[:] = (expanded_seq_lens - 1) // self.split_tile_size",
        "kv_reads",
    ),
    "counts for slots": (
        *("draft_extend", "TritonAttnBackend._forward_extend_unified"),
        "extend_kv_indices = forward_batch.out_cache_loc",
        "extend_kv_indices = forward_batch.extend_seq_lens",
        "kv_reads",
    ),
}


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", few(PLANTED, 1))
def test_what_only_it_shows(name: str, newest: Pool) -> None:
    runner, function, old, new, oracle = PLANTED[name]
    every = mutants(ATTENTION, (sglang_path(TARGET) / ATTENTION).read_text())
    newest.change({"edit": next(m for m in every if (m.function, m.old, m.new) == (function, old, new)).change()})
    plain = case_of(setup_of(runner), FULL)
    assert overall(judge_all(plain, newest.run(plain))) is Status.PASS
    trace = newest.run(case(runner))
    assert trace.ended.how is Termination.DONE, trace.ended
    assert oracle in {v.oracle for v in judge_all(case(runner), trace) if v.status is Status.FAIL}


ALIKE = replace(CHAIN, deterministic=True)
IN_WINDOW = replace(ALIKE, algorithm="DFLASH", num_steps=1, window=7, chunk=8)
SEEDED = replace(ALIKE, sampled=True, overlap=True, disagreement=30)
ON_FA3 = replace(ALIKE, backend="fa3", dtype="float16", head_dim=64)


def test_rounds_are_drawn_with_it() -> None:
    draw = examples(setups("round", "fa3", EVERYTHING.having("deterministic")))
    drawn = [draw(f"setup {number}") for number in range(60)]
    assert any(setup.deterministic for setup in drawn)
    assert any(setup.deterministic and setup.window for setup in drawn)
    assert not any(setup_problems(setup) or engine_refuses(setup, "emulated") for setup in drawn)
    assert setup_problems(replace(ALIKE, family="glm4_moe", algorithm="NEXTN", hidden_size=512)) == [
        "setup: rounds of glm4_moe models are not driven under deterministic inference"
    ]


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("setup", [replace(TREE, deterministic=True), IN_WINDOW, SEEDED, ON_FA3])
def test_rounds_of_the_newest_release_are_right(setup: Setup, newest: Pool) -> None:
    case = Case(setup=setup, steps=STEPS)
    assert failures(case, newest.run(case)) == {}


# Changes of the newest release that move no value by more than rounding: function, statement, what takes its place.
ROUNDED = {
    "a batch of three goes through another kernel": (
        *(ALIKE, "TritonAttnBackend.forward_extend"),
        "if self.enable_deterministic:\n",
        "if self.enable_deterministic and forward_batch.batch_size != 3:\n",
        ("rounds", "verify logits"),
    ),
    "a window's tiles begin where it does": (
        *(IN_WINDOW, "TritonAttnBackend.init_forward_metadata"),
        "if self.enable_deterministic:\n",
        "if False:\n",
        ("kv_rows", "rows of the target"),
    ),
}


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", few(ROUNDED, 1))
def test_what_moves_the_last_bits_is_seen(name: str, newest: Pool) -> None:
    setup, function, old, new, seen = ROUNDED[name]
    newest.change(planted(TARGET, ATTENTION, function, old, new))
    case = Case(setup=setup, steps=STEPS)
    oracle, where = seen
    assert where in failures(case, newest.run(case)).get(oracle, set())
