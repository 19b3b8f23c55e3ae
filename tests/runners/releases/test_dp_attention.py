"""Two ranks under data-parallel attention: the busiest says which graph all replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz.draw.rounds import examples
from fuzz.draw.states import possible, reached
from fuzz.draw.strategies import cases, setups
from fuzz.draw.swarm import EVERYTHING
from fuzz.draw.transitions import exercised
from fuzz.mutation.directed import setups as directed
from fuzz.mutation.sites import mutants
from oracles.catalogue import judge_all, overall
from repro.cases import codec
from repro.cases.case import Case, Target, problems
from repro.cases.launch import flags
from repro.cases.release_list import NEWEST
from repro.cases.runner_facts import RUNNER_FACTS
from repro.cases.sort_key import MODEL, sort_key
from repro.cases.words import paragraph
from repro.shrinking.shrink import shrink
from repro.traces.finding import Status
from repro.traces.paths import Recorded
from repro.traces.trace import Termination
from repro.upstream.edits import Edit
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from runners.targets.mended import mended
from runners.targets.overlay import Overlay, make_overlay
from tests.builders.cases import FULL, PADDED, PAIR, SINGLE, setup_of, step

RUNNERS = tuple(runner for runner, facts in RUNNER_FACTS.items() if facts.rank_tokens is not None)
BATCHES = (FULL, SINGLE, PADDED, (), PAIR)
ELSEWHERE = (1, 3, 0, 2, 4)


def case_of(runner: str, backend: str = "") -> Case:
    """A rank that is busier, one that is less so, an idle one beside a busy one, and as many on both."""
    steps = (step(*batch) for batch in BATCHES)
    counted = tuple(replace(each, elsewhere=count) for each, count in zip(steps, ELSEWHERE, strict=True))
    return Case(setup=setup_of(runner, backend, dp_attention=True), steps=counted)


CASE = case_of("draft")


def test_a_setup_says_so_and_others_keep_their_digests() -> None:
    steps = tuple(replace(each, elsewhere=0) for each in CASE.steps)
    alone = Case(setup=replace(CASE.setup, dp_attention=False), steps=steps)
    assert problems(CASE) == problems(alone) == []
    assert codec.loads(codec.dumps(codec.Seed(about={}, case=CASE))).case == CASE
    assert "other_rank_num_reqs" not in codec.dumps(codec.Seed(about={}, case=alone))
    lines = list(paragraph(codec.Seed(about={}, case=CASE)))
    assert "options: one of two ranks under data-parallel attention" in lines
    assert "step 1: 1 request in bucket 4, 3 padded rows, 3 on the other rank" in lines
    assert {"--tp-size 2", "--dp-size 2", "--enable-dp-attention"} <= set(flags(CASE.setup))
    assert ("dp_attention",) in MODEL and sort_key(alone) < sort_key(CASE)


@pytest.mark.parametrize(
    ("changes", "elsewhere", "reason"),
    [
        ({"runner": "multi_layer", "topk": 1, "num_draft_tokens": 4}, 0, "is unsupported with data-parallel attention"),
        ({"dp_attention": False}, 1, "step 0: 1 requests on another rank"),
        ({}, 7, "step 0: 7 requests on another rank"),
        ({}, -1, "step 0: -1 requests on another rank"),
    ],
)
def test_what_cannot_be(changes: dict[str, Any], elsewhere: int, reason: str) -> None:
    case = Case(setup=replace(CASE.setup, **changes), steps=(replace(step(*FULL), elsewhere=elsewhere),))
    assert any(reason in text for text in problems(case)), problems(case)


@pytest.mark.parametrize("runner", RUNNERS)
def test_busier_ranks_are_drawn(runner: str) -> None:
    swarm = EVERYTHING.having("dp_attention")
    seen: set[str] = set()
    for number in range(30):
        case = examples(cases(examples(setups(runner, "triton", swarm))(f"setup {number}"), swarm))(f"case {number}")
        seen |= reached(case, [n for n, s in enumerate(case.steps) if case.setup.replays(s.busiest)])
    assert seen >= {name for name in possible(runner, "triton") if "rank" in name or "data-parallel" in name}
    assert any(setup.dp_attention for setup in directed(runner, "triton"))


def test_buckets_are_those_of_the_busiest() -> None:
    assert [transition.after for transition in exercised(CASE, range(5))] == [4, 4, 4, 2, 4]
    assert [transition.padded for transition in exercised(CASE, range(5))] == [False, True, True, True, True]


def test_other_ranks_go_when_a_case_is_shrunk() -> None:
    def shrunk(still_fails: Callable[[Case], bool]) -> Case:
        return shrink(CASE, still_fails, runs_max=2000, seconds_max=60, on_better=lambda _: None)

    smaller = shrunk(lambda case: True)
    assert not smaller.setup.dp_attention and not any(each.elsewhere for each in smaller.steps)
    needed = shrunk(lambda case: any(each.elsewhere > len(each.requests) for each in case.steps))
    assert needed.setup.dp_attention and [each.elsewhere for each in needed.steps] == [2]


# Of the newest release: which graph is replayed, what it holds of the ranks, and what layers were told at capture.
_DRAFT = "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py"
PLANTED = {
    "max_num_tokens = min(forward_batch.global_num_tokens_cpu)": "bucket",
    "cuda_graph_bs = min(forward_batch.original_global_num_tokens_cpu)": "bucket",
    "buffers.global_num_tokens_gpu.fill_(raw_bs * self.captured_req_width)": "bucket",
    "global_num_tokens_cpu = [num_tokens]": "extents",
}


def mended_for(runner: str, target: Target) -> Target:
    """The target; for verify without the bug that ends an idle batch of its eager pass on Triton."""
    overlay = mended(target, ("verify-idle-without-indices",)) if runner == "verify" else None
    return overlay.target if overlay else target


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("runner", RUNNERS)
def test_the_newest_release_is_right_and_what_only_ranks_run_is_watched(runner: str) -> None:
    target = Target(NEWEST, "emulated")
    case = case_of(runner)
    case = replace(case, steps=(*case.steps, replace(case.steps[1], elsewhere=6)))  # no graph holds so many
    with Pool(mended_for(runner, target), timeout_s=120) as pool:
        trace = pool.run(case)
        assert trace.ended.how is Termination.DONE, trace.ended
        assert overall(judge_all(case, trace)) is Status.PASS
        assert sorted(trace.replayed) == [0, 1, 2, 3, 4]
        assert {name for number in range(5) for name in trace.path(number, "gathered")}
        # The idle rank's own pass beside the busy one, which writes only what padding may.
        assert "kv_slots" in trace.path(BATCHES.index(()), Recorded.EAGER)
        every = mutants(_DRAFT, (sglang_path(target) / _DRAFT).read_text())
        for new, oracle in PLANTED.items() if runner == "draft" else ():
            planted = next(mutant for mutant in every if mutant.new == new)
            pool.change({"edit": planted.change()})
            lines = {verdict.oracle for verdict in judge_all(case, pool.run(case)) if verdict.status is Status.FAIL}
            assert oracle in lines, (new, lines)


@pytest.mark.exhaustive
@pytest.mark.parametrize("runner", RUNNERS)
def test_every_release_holds_the_ranks_tokens(runner: str, target: Target) -> None:
    """Every release names what padding does not show."""
    with Pool(mended_for(runner, target), timeout_s=120) as pool:
        trace = pool.run(case_of(runner))
    assert trace.ended.how is Termination.DONE, trace.ended
    assert all(len(trace.path(number, "gathered")) == 2 for number in range(5))


# Of draft-extend in the newest release, whose head makes one row a request: all tokens are counted as having logits,
# where graphs are captured and where they are replayed, as it was before #16974.
_EXTEND = "sglang/srt/speculative/eagle_draft_extend_cuda_graph_runner.py"
_RUNNER = "EAGLEDraftExtendCudaGraphRunner"
COUNTED = tuple(
    Edit(file=_EXTEND, function=f"{_RUNNER}.{function}", old=old, new=new)
    for function, old, new in (
        ("capture_one_shape", "num_tokens_for_logprob = bs", "num_tokens_for_logprob = num_tokens"),
        ("capture_one_shape", "[bs] * self.attn_dp_size", "[num_tokens] * self.attn_dp_size"),
        (
            "execute",
            "buffers.global_num_tokens_for_logprob_gpu.fill_(bs)",
            "buffers.global_num_tokens_for_logprob_gpu.fill_(bs * self.captured_req_width)",
        ),
    )
)


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_tokens_without_logits_are_not_counted_as_having_some(tmp_path: Path) -> None:
    package = sglang_path(Target(NEWEST, "emulated"))
    path = make_overlay(package, Overlay(release=NEWEST, change="counted"), COUNTED, tmp_path)
    case = case_of("draft_extend")
    with Pool(Target(str(path), "emulated"), timeout_s=120) as pool:
        failed = {(v.oracle, v.where) for v in judge_all(case, pool.run(case)) if v.status is Status.FAIL}
    assert failed == {
        ("bucket", "tokens of the ranks"),
        ("extents", "length of global_num_tokens_for_logprob_cpu, captured"),
    }
