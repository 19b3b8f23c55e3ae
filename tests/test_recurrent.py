"""Families with recurrent layers: the states beside the KV cache, and the oracles that judge them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fuzz.mutation.sites import mutants
from oracles.catalogue import judge_all
from repro.cases.case import Case, Target, engine_refuses
from repro.cases.families import GDN, fitted
from repro.cases.layout import state_rows, state_slots
from repro.cases.release_list import NEWEST
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from tests.builders.cases import PADDED, PAIR, SINGLE, setup_of, step

TARGET = Target(NEWEST, "emulated")
BACKEND = "sglang/srt/layers/attention/hybrid_linear_attn_backend.py"
DECODE = fitted(setup_of("decode", capture_bs=(4,), family=GDN))
CASE = Case(setup=DECODE, steps=(step(*SINGLE), replace(step(*PADDED), layout=3), replace(step(*PAIR), layout=5)))


def test_state_slots_belong_to_requests_and_move_with_the_layout() -> None:
    layouts = [state_slots(DECODE, layout) for layout in range(20)]
    for slots in layouts:
        assert slots[0] == 0
        assert len(set(slots.tolist())) == len(slots) == DECODE.slots + 1
        assert slots.max() <= state_rows(DECODE)
    assert not all(np.array_equal(layouts[0], slots) for slots in layouts)
    assert not np.array_equal(layouts[0], np.arange(DECODE.slots + 1))


def test_bfloat16_is_refused_over_every_backend() -> None:
    for backend in ("triton", "fa3"):
        setup = replace(DECODE, backend=backend, head_dim=64, dtype="bfloat16")
        assert "no bfloat16" in engine_refuses(setup, "emulated")
        assert not engine_refuses(setup, "cuda")
    assert not engine_refuses(replace(DECODE, family="", backend="fa3", dtype="bfloat16"), "emulated")


def planted(file: str, function: str, old: str, new: str) -> dict[str, object]:
    """The change of a session in which the function's first text of this kind, in one line, is another."""
    source = (sglang_path(TARGET) / file).read_text()
    first_line = next(mutant.first_line for mutant in mutants(file, source) if mutant.function == function)
    lines = source.splitlines()
    line = next(number for number in range(first_line, len(lines)) if old in lines[number - 1])
    column = lines[line - 1].index(old)
    place = {"start": (line, column), "end": (line, column + len(old)), "text": new}
    return {"edit": {"file": file, "function": function, "first_line": first_line, **place}}


def failing(pool: Pool, case: Case) -> set[tuple[str, str]]:
    trace = pool.run(case)
    assert trace.ended.how is Termination.DONE, trace.ended
    return {(v.oracle, v.where) for v in judge_all(case, trace) if v.status is Status.FAIL}


@pytest.mark.emulated(NEWEST)
def test_oracles_see_states_that_are_not_the_requests_own() -> None:
    """A padded row whose state is written; state slots that stay those of the capture."""
    replayed = "MambaAttnBackendBase._replay_metadata"
    with Pool(TARGET, timeout_s=120) as pool:
        assert failing(pool, CASE) == set()
        pool.change(planted(BACKEND, replayed, "bs - int(num_padding),", "bs,"))
        assert ("state_writes", "graph: temporal of padding") in failing(pool, CASE)
        pool.change(planted(BACKEND, replayed, "list[bs - 1],", "list[bs - 1].clone(),"))
        assert ("state_values", "temporal states of graph") in failing(pool, CASE)
