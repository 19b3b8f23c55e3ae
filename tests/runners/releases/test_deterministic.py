"""Deterministic inference without a GPU: splits and kernels of their own are driven and watched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuzz.draw.rounds import examples
from fuzz.draw.strategies import setups
from fuzz.draw.swarm import EVERYTHING
from fuzz.mutation.directed import setups as directed
from fuzz.mutation.sites import mutants
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Target, engine_refuses, setup_problems
from repro.cases.release_list import NEWEST
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from tests.builders.cases import FULL, PAIR, case_of, setup_of
from tests.builders.tiers import few

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
