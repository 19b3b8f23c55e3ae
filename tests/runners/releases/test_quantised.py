"""Keys and values of eight bits: what a setup makes of them, and that what sglang does for them alone is watched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fuzz.draw.rounds import examples
from fuzz.draw.strategies import setups
from fuzz.draw.swarm import EVERYTHING
from fuzz.mutation.directed import setups as directed
from fuzz.mutation.sites import mutants
from oracles.catalogue import judge_all, overall
from repro.cases import codec
from repro.cases.case import Case, Target, problems
from repro.cases.launch import flags
from repro.cases.release_list import NEWEST
from repro.cases.rows.bounds import KV_DTYPES
from repro.cases.sort_key import MODEL, sort_key
from repro.cases.words import paragraph
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from tests.builders.cases import FULL, PADDED, SINGLE, setup_of, step

RUNNERS = ("draft", "draft_extend", "decode", "verify")
SETUP = replace(setup_of("draft", topk=1), kv_dtype="fp8_e4m3", head_dim=32)


def case_of(runner: str, kv_dtype: str = "fp8_e4m3") -> Case:
    setup = replace(setup_of(runner, topk=1), dtype="float16", kv_dtype=kv_dtype, head_dim=32)
    return Case(setup=setup, steps=tuple(step(*batch) for batch in (FULL, PADDED, SINGLE)))


def test_a_setup_says_so_and_others_keep_their_digests() -> None:
    case = Case(setup=SETUP, steps=(step(*FULL),))
    plain = replace(case, setup=replace(SETUP, kv_dtype=""))
    assert problems(case) == problems(plain) == []
    assert codec.loads(codec.dumps(codec.Seed(about={}, case=case))).case == case
    assert "kv_dtype" not in codec.dumps(codec.Seed(about={}, case=plain))
    assert "options: keys and values in fp8_e4m3" in list(paragraph(codec.Seed(about={}, case=case)))
    assert "--kv-cache-dtype fp8_e4m3" in flags(SETUP) and "kv-cache" not in str(flags(plain.setup))
    assert ("kv_dtype",) in MODEL and sort_key(plain) < sort_key(case)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 16}, "fp8_e4m3 needs heads above 16"),
        ({"kv_dtype": "int8"}, "kv_cache_dtype 'int8' is not one of fp8_e4m3, fp8_e5m2"),
        ({"backend": "flashinfer"}, "are unsupported on flashinfer"),
        ({"algorithm": "NEXTN"}, "a family other than Llama caches keys and values only in the model's type"),
        ({"runner": "multi_layer"}, "the multi_layer runner caches keys and values only in the model's type"),
    ],
)
def test_where_there_are_none(changes: dict[str, Any], reason: str) -> None:
    case = Case(setup=replace(SETUP, **changes), steps=(step(*FULL),))
    assert any(reason in text for text in problems(case))


@pytest.mark.parametrize("runner", RUNNERS)
def test_they_are_drawn_now_and_then(runner: str) -> None:
    draw = examples(setups(runner, "triton", EVERYTHING.having("kv_dtype")))
    drawn = {setup.kv_dtype for setup in (draw(f"setup {number}") for number in range(30))}
    assert drawn >= set(KV_DTYPES)
    assert any(setup.kv_dtype for setup in directed(runner, "triton"))


# Of the newest release: where a cache of bytes is read as what it is, and what becomes of that.
_POOL = "sglang/srt/mem_cache/memory_pool.py"
_GUARD = "if self.store_dtype != self.dtype:"


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(
    "runner", [pytest.param(runner, marks=() if runner == "verify" else pytest.mark.exhaustive) for runner in RUNNERS]
)
def test_the_newest_release_is_right_and_what_only_they_run_is_watched(runner: str, newest: Pool) -> None:
    target = Target(NEWEST, "emulated")
    every = mutants(_POOL, (sglang_path(target) / _POOL).read_text())
    planted = next(m for m in every if (m.old, m.new) == (_GUARD, "if False:") and "_get_key_buffer" in m.function)
    for kv_dtype in KV_DTYPES:
        case = case_of(runner, kv_dtype)
        trace = newest.run(case)
        assert trace.ended.how is Termination.DONE, trace.ended
        assert overall(judge_all(case, trace)) is Status.PASS
    newest.change({"edit": planted.change()})
    verdicts = {
        kv_dtype: overall(judge_all(case, newest.run(case)))
        for kv_dtype, case in (("", case_of(runner, "")), ("fp8_e4m3", case_of(runner)))
    }
    assert verdicts == {"": Status.PASS, "fp8_e4m3": Status.FAIL}
