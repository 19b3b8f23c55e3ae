"""Workers that change their number of draft steps: what a setup makes of them, and that each place where a release
switches from one state to another is watched."""

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
from repro.cases.release_list import NEWEST
from repro.cases.sort_key import MODEL, sort_key
from repro.cases.words import paragraph
from repro.shrinking.moves import refit
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from tests.builders.cases import FULL, PADDED, SINGLE, setup_of, step
from tests.builders.tiers import few

TARGET = Target(NEWEST, "emulated")
RUNNERS = ("draft", "verify", "draft_extend")
PLAIN = setup_of("draft", topk=1)
SETUP = replace(PLAIN, adaptive=5)


def case_of(runner: str, adaptive: int = 5) -> Case:
    setup = replace(setup_of(runner, topk=1), adaptive=adaptive)
    return Case(setup=setup, steps=tuple(step(*batch) for batch in (FULL, PADDED, SINGLE)))


def test_a_setup_says_so_and_others_keep_their_digests() -> None:
    case = Case(setup=SETUP, steps=(step(*FULL),))
    plain = replace(case, setup=PLAIN)
    assert problems(case) == problems(plain) == []
    assert codec.loads(codec.dumps(codec.Seed(about={}, case=case))).case == case
    assert "adaptive" not in codec.dumps(codec.Seed(about={}, case=plain))
    assert "options: switched to these draft steps from 5" in list(paragraph(codec.Seed(about={}, case=case)))
    assert ("adaptive",) in MODEL and sort_key(plain) < sort_key(case)
    assert sort_key(replace(case, setup=replace(SETUP, adaptive=4))) < sort_key(case)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"topk": 2}, "in chains, with topk 1"),
        ({"algorithm": "NEXTN"}, "a family other than Llama does not change its number of draft steps"),
        ({"runner": "decode"}, "the decode runner does not change its number of draft steps"),
        ({"adaptive": PLAIN.num_steps}, "equals speculative_num_steps: nothing would change"),
        ({"adaptive": -1}, "speculative_adaptive -1 is outside"),
        ({"adaptive": 1, "overhang": 7}, "extra_context_len 7 is more than sglang has room for"),
    ],
)
def test_where_there_are_none(changes: dict[str, Any], reason: str) -> None:
    case = Case(setup=replace(SETUP, **changes), steps=(step(*FULL),))
    assert any(reason in text for text in problems(case))


def test_a_simpler_case_still_changes_its_steps() -> None:
    case = Case(setup=replace(SETUP, num_steps=3, num_draft_tokens=4, adaptive=2), steps=(step(*FULL),))
    fewer = refit(case, num_steps=2)
    assert (fewer.setup.num_steps, fewer.setup.adaptive, problems(fewer)) == (2, 3, [])


@pytest.mark.parametrize("runner", RUNNERS)
def test_they_are_drawn_now_and_then(runner: str) -> None:
    draw = examples(setups(runner, "triton", EVERYTHING.having("adaptive")))
    having = [setup for setup in (draw(f"setup {number}") for number in range(30)) if setup.adaptive]
    assert len(having) > 10 and not any(problems(Case(setup=setup, steps=(step((1, 1, 1)),))) for setup in having)
    assert any(setup.adaptive for setup in directed(runner, "triton"))


# Of the newest release: what is done, what takes its place, the runner that shows it, and the failure that follows.
_WORKER = "sglang/srt/speculative/eagle_worker_v2.py"
_APPLY = "EAGLEWorkerV2.apply_runtime_state"
_STEPS = ("planned", "planned with another number of draft steps")
PLANTED = {
    "the worker's steps": ("self.speculative_num_steps = state.speculative_num_steps", "draft", _STEPS),
    "the draft worker's steps": ("dw.speculative_num_steps = state.speculative_num_steps", "draft", None),
    "the draft's backend": ("dw.draft_attn_backend = state.draft_attn_backend", "draft", None),
    "the draft's graphs": ("dw.cuda_graph_runner = state.cuda_graph_runner", "draft", None),
    "the target's backend": (
        "self._target_worker.model_runner.attn_backend = state.target_attn_backend",
        "verify",
        None,
    ),
    "the draft-extend's backend": (
        "dw.draft_extend_attn_backend = state.draft_extend_attn_backend",
        "draft_extend",
        None,
    ),
}


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if number else ()) for number, name in enumerate(PLANTED)]
)
def test_each_place_is_watched(name: str, newest: Pool) -> None:
    old, runner, failure = PLANTED[name]
    every = mutants(_WORKER, (sglang_path(TARGET) / _WORKER).read_text())
    planted = next(m for m in every if (m.function, m.old, m.new) == (_APPLY, old, "pass"))
    newest.change({"edit": planted.change()})
    case = case_of(runner)
    failing = {(v.oracle, v.where) for v in judge_all(case, newest.run(case)) if v.status is Status.FAIL}
    assert failing if failure is None else failure in failing


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("adaptive", few([1, 5], 1))
@pytest.mark.parametrize("runner", RUNNERS)
def test_the_newest_release_is_right(runner: str, adaptive: int, newest: Pool) -> None:
    case = case_of(runner, adaptive)
    trace = newest.run(case)
    assert trace.ended.how is Termination.DONE, trace.ended
    verdicts = judge_all(case, trace)
    assert overall(verdicts) is Status.PASS, verdicts
    steps = case.setup.num_steps
    assert [set(row.tolist()) for row in trace.path(-1, "switches")["steps"]] == [{steps}, {adaptive}, {steps}]


@pytest.mark.parametrize(
    "release", [pytest.param(r, marks=pytest.mark.emulated(r)) for r in ("0.5.10.post1", "0.5.11")]
)
def test_before_there_were_any(release: str) -> None:
    with Pool(Target(release, "emulated"), timeout_s=120) as pool:
        ended = pool.run(case_of("draft")).ended
    assert (ended.how, ended.what) == (
        Termination.UNSUPPORTED,
        "this release's workers keep their number of draft steps",
    )
