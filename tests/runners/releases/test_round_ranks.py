"""Rounds beside another rank of data-parallel attention, on the newest release: texts do not depend on it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from fuzz.draw.rounds import round_cases
from oracles import bucket, padded
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Request, Setup, Step, problems
from repro.cases.families import DEEPSEEK, GDN, GLM
from repro.cases.release_list import NEWEST
from repro.traces.finding import Status
from repro.traces.paths import Recorded
from repro.traces.trace import Trace
from runners.processes.pool import Pool
from tests.runners.releases.test_round import CHAIN
from tests.runners.releases.test_round_plants import Plant, assert_seen

RANKED = replace(
    CHAIN,
    dp_attention=True,
    family=GLM,
    hidden_size=512,
    head_dim=64,
    dtype="float16",
    capture_bs=(1, 2),
    slots=3,
)
FA3 = replace(RANKED, backend="fa3")
# Beside a busier rank, without requests beside a busy one, and beside one whose batch no graph holds.
STEPS = (
    Step(requests=(), elsewhere=1),
    Step(requests=(Request(slot=1, seq_len=5, data=1, further=9),), wait=2, elsewhere=2),
    Step(requests=(Request(slot=1, seq_len=7, data=2, further=4),), wait=4, elsewhere=0),
    Step(requests=(), wait=2, elsewhere=2),
)
BEYOND = (Step(requests=STEPS[1].requests, elsewhere=3), Step(requests=(), wait=5, elsewhere=3))
SETUPS = {
    "triton, latent attention, the overlap schedule": replace(RANKED, backend="triton", family=DEEPSEEK, overlap=True),
    "triton, a tree": replace(RANKED, backend="triton", topk=2, num_steps=2, num_draft_tokens=4),
    "triton, states": replace(RANKED, backend="triton", family=GDN),
    "flashinfer, pages": replace(RANKED, backend="flashinfer", page_size=4, overlap=True),
}


BATCHES = "sglang/srt/model_executor/forward_batch_info.py"
PLANTS = {
    "lists are lengthened in place": Plant(
        file=BATCHES,
        function="ForwardBatch._pad_inputs_to_size",
        old="self.extend_logprob_start_lens_cpu = self.extend_logprob_start_lens_cpu + (",
        new="self.extend_logprob_start_lens_cpu += (",
        setup=FA3,
        steps=BEYOND,
        seen_by=((padded.ORACLE, padded.LISTS),),
    ),
    "an idle rank keeps the padding of a draft step": Plant(
        file=BATCHES,
        function="ForwardBatch.post_forward_mlp_sync_batch",
        old="if self.forward_mode.is_idle():\n                    self.positions",
        new="if False:\n                    self.positions",
        setup=FA3,
        steps=BEYOND,
        seen_by=((padded.ORACLE, padded.ROWS),),
    ),
    "the tokens of the batch are counted, not of its bucket": Plant(
        file="sglang/srt/speculative/eagle_draft_cuda_graph_runner.py",
        function="EAGLEDraftCudaGraphRunner.execute",
        old="buffers.global_num_tokens_gpu.fill_(bs *",
        new="buffers.global_num_tokens_gpu.fill_(raw_bs *",
        setup=FA3,
        steps=STEPS,
        seen_by=((bucket.ORACLE, bucket.RANKS),),
    ),
}


def launches(trace: Trace, name: str) -> list[int]:
    return [int(seen.array) for seen in trace.seen if seen.path == Recorded.ROUND_LAUNCH and seen.name.endswith(name)]


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_texts_do_not_depend_on_the_other_rank(newest: Pool) -> None:
    case = Case(setup=FA3, steps=STEPS)
    trace = newest.run(case)
    assert overall(judge_all(case, trace)) is Status.PASS, judge_all(case, trace)
    sizes = set(zip(launches(trace, "launch/raw_bs"), launches(trace, "launch/bs"), strict=True))
    assert {(0, 1), (1, 2), (1, 1), (0, 2)} <= sizes, "idle, beside a busier rank, beside an idle one, idle again"


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", SETUPS)
def test_so_it_is_over_each_backend_and_family(name: str, newest: Pool) -> None:
    case = Case(setup=SETUPS[name], steps=STEPS)
    trace = newest.run(case)
    assert overall(judge_all(case, trace)) is Status.PASS, judge_all(case, trace)


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_states_leave_each_rank_as_many_requests(newest: Pool) -> None:
    # sglang shares out the slots of states, as it does requests.
    case = Case(setup=replace(SETUPS["triton, states"], capture_bs=(3, 4), slots=4), steps=STEPS)
    trace = newest.run(case)
    assert overall(judge_all(case, trace)) is Status.PASS, judge_all(case, trace)
    assert {*launches(trace, "launch/bs")} == {3}


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_what_no_graph_holds_is_padded_without_one(newest: Pool) -> None:
    case = Case(setup=FA3, steps=BEYOND)
    trace = newest.run(case)
    assert not launches(trace, "launch/raw_bs")
    verdicts = [v for v in judge_all(case, trace) if v.oracle in ("text", "logits", "progress", "leaks", "kv_rows")]
    assert {verdict.status for verdict in verdicts} == {Status.PASS}, verdicts


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str, newest: Pool) -> None:
    assert_seen(PLANTS[name], newest)


def test_drawn_arrivals_come_to_both_ranks() -> None:
    drawn = [case for n in range(40) for case in islice(round_cases(5, n, "round", "triton", 6), 4)]
    assert [problems(case) for case in drawn] == [[]] * len(drawn)
    steps = [step for case in drawn if case.setup.dp_attention for step in case.steps]
    assert any(step.elsewhere and not step.requests for step in steps)
    assert any(step.elsewhere > len(step.requests) > 0 for step in steps)
    assert any(step.requests and not step.elsewhere for step in steps)


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        (
            replace(CHAIN, dp_attention=True),
            "in rounds these models' layers are unsupported with data-parallel attention",
        ),
    ],
)
def test_models_whose_layers_gather_nothing_are_refused(setup: Setup, why: str) -> None:
    assert problems(Case(setup=setup, steps=STEPS)) == [f"setup: {why}"]
