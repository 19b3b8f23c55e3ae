"""The values that attention's metadata is made of: their record, and the oracle's verdicts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles import planned
from repro.cases.case import Case, Request, Setup, Step
from repro.cases.release_list import has_runner
from repro.traces.finding import Status
from repro.traces.trace import RecordedArray
from runners.processes.pool import Pool
from tests.builders.only_verdict import only
from tests.builders.toy_traces import changed, toy_trace

SETUP = Setup(runner="toy", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(2, 4), slots=5)
CASE = Case(
    setup=SETUP,
    steps=(
        Step(requests=tuple(Request(slot=slot, seq_len=9 * slot, data=slot) for slot in (1, 2, 3, 4))),
        Step(requests=tuple(Request(slot=slot, seq_len=3 * slot, data=slot) for slot in (5, 2, 1))),
    ),
)


def test_the_plan_of_a_sound_runner_passes() -> None:
    assert only(planned.judge, CASE, toy_trace(CASE)).status is Status.PASS


@pytest.mark.parametrize("name", ["batch_size", "seq_lens", "seq_lens_cpu", "seq_lens_sum", "req_pool_indices"])
def test_every_field_is_compared(name: str) -> None:
    trace = changed(toy_trace(CASE), 1, "planned", name, lambda array: array + 1)
    verdicts = planned.judge(CASE, trace)
    assert {verdict.status for verdict in verdicts} == {Status.FAIL}
    assert f"planned with {name}" in {verdict.where for verdict in verdicts}


def test_a_host_mirror_that_is_too_short_fails() -> None:
    trace = changed(toy_trace(CASE), 1, "planned", "seq_lens_cpu", lambda array: array[:3])
    assert only(planned.judge, CASE, trace).where == "planned with seq_lens_cpu"


def test_what_the_backend_does_not_read_is_told_and_is_no_failure() -> None:
    case = replace(CASE, setup=replace(SETUP, runner="cpu_decode", backend="intel_amx"))
    verdict = only(planned.judge, case, toy_trace(CASE, "sum_of_the_batch"))
    assert (verdict.status, verdict.stale) == (Status.PASS, ("seq_lens_sum",))


def test_a_backend_of_another_kind_is_named() -> None:
    case = replace(CASE, setup=replace(SETUP, runner="draft", backend="triton"))
    sound = toy_trace(CASE)
    for kind, status in (("TritonAttnBackend", Status.PASS), ("FlashInferAttnBackend", Status.FAIL)):
        seen = RecordedArray(step=-1, path="backends", name=kind, array=np.array(1))
        verdict = only(planned.judge, case, replace(sound, seen=(*sound.seen, seen)))
        assert (verdict.status, verdict.where == "planned with another backend") == (status, status is Status.FAIL)


def test_eager_plans_with_the_backend_of_the_graph() -> None:
    case = replace(CASE, setup=replace(SETUP, runner="draft", backend="triton"))
    sound = toy_trace(CASE)
    for eager, status in ((3, Status.PASS), (5, Status.FAIL)):
        paths = {"planned": 3, "planned_eager": eager}
        seen = (RecordedArray(step=1, path=p, name="backend", array=np.array(n)) for p, n in paths.items())
        verdict = only(planned.judge, case, replace(sound, seen=(*sound.seen, *seen)))
        assert (verdict.status, verdict.where == "planned with eager's backend") == (status, status is Status.FAIL)


def test_tokens_that_are_planned_with_are_the_batchs() -> None:
    """And behind them those of padded rows, as many as are handed over."""
    trace = toy_trace(CASE)
    places = trace.path(1, "input")["positions"].reshape(-1)
    right = trace.path(1, "launch")["positions"].reshape(-1)
    assert right.size > places.size
    for plan, status in (
        (places, Status.PASS),
        (right, Status.PASS),
        ([places[0] + 1, *places[1:]], Status.FAIL),
        ([*places, 77], Status.FAIL),
        (places[:-1], Status.FAIL),
    ):
        seen = RecordedArray(step=1, path="planned", name="positions", array=np.array(plan))
        verdict = only(planned.judge, CASE, replace(trace, seen=(*trace.seen, seen)))
        assert (verdict.status, verdict.where == "planned with positions") == (status, status is Status.FAIL)


def test_a_batch_without_lengths_on_the_host_is_planned_without() -> None:
    """Whatever the buffer holds; where the release hands it on, and where that is known to be harmless."""
    unpublished = changed(toy_trace(CASE), 1, "before", "seq_lens_cpu", lambda _: None)
    assert only(planned.judge, CASE, unpublished).where == f"planned with {planned.UNPUBLISHED}"
    without = changed(unpublished, 1, "planned", "seq_lens_cpu", lambda _: None)
    assert only(planned.judge, CASE, without).status is Status.PASS


def test_a_plan_without_lengths_is_not_judged() -> None:
    trace = changed(toy_trace(CASE), 1, "planned", "batch_size", lambda array: array + 1)
    assert only(planned.judge, CASE, trace).status is Status.FAIL
    assert only(planned.judge, CASE, changed(trace, 1, "planned", "seq_lens", lambda _: None)).status is Status.PASS


def test_a_run_that_planned_nothing_is_a_doubt() -> None:
    trace = toy_trace(CASE)
    trace = replace(trace, seen=tuple(seen for seen in trace.seen if not seen.path.startswith("planned")))
    assert only(planned.judge, CASE, trace).status is Status.UNKNOWN


@pytest.mark.parametrize("runner", ["draft", "decode", "verify", "draft_extend", "multi_layer", "frozen_kv_mtp"])
def test_every_graph_runner_shows_its_plans(pool: Pool, runner: str) -> None:
    setup = replace(SETUP, runner=runner)
    if runner in ("multi_layer", "draft_extend"):
        setup = replace(setup, topk=1)
    if runner == "decode":
        setup = replace(setup, topk=1, num_steps=1, num_draft_tokens=2)
    trace = pool.run(replace(CASE, setup=setup))
    if not has_runner(pool.target.sglang, runner, setup.backend):
        pytest.skip(f"{pool.target.sglang} has no {runner} runner on {setup.backend}")
    plan = trace.path(1, "planned")
    assert {"batch_size", "seq_lens", "seq_lens_sum", "seq_lens_cpu", "req_pool_indices"} <= plan.keys()
    assert {"batch_size", "seq_lens", "seq_lens_sum"} <= trace.path(1, "planned_eager").keys()
    assert only(planned.judge, replace(CASE, setup=setup), trace).status is not Status.FAIL
