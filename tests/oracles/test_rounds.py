"""Rounds by graph and without, on records made by hand: the first difference, and noise that excuses one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles import rounds
from repro.cases.rows.serving import GONE
from repro.traces.finding import Status
from repro.traces.trace import End, RecordedArray, Termination, Trace
from tests.builders.only_verdict import only
from tests.runners.releases.test_round import SMALL


def rounds_of(path: str, **changes: object) -> tuple[RecordedArray, ...]:
    """Two rounds of one request."""
    arrays: dict[str, object] = {
        "requests": [0],
        "drafted": [[5, 6, 7, 8]],
        "logits": [[0.5, 1.5, 2.5, 3.5]],
        "accepted": [2],
        "topk_p": [[1.0]],
        "topk_index": [[5]],
        "hidden_states": [[1.0, 2.0]],
        "draft_k0": [[1.0, 0.0]],
    }
    return tuple(
        RecordedArray(step=number, path=path, name=name, array=np.asarray(values))
        for number, altered in enumerate(({}, changes))
        for name, values in (arrays | altered).items()
    )


def by_both(*nudged: tuple[RecordedArray, ...], **changes: object) -> Trace:
    """changes: of what the second round by graph gave."""
    seen = (rounds_of("round_graph", **changes), rounds_of("round_eager"), *nudged)
    return Trace(ended=End(how=Termination.DONE), seen=tuple(array for each in seen for array in each))


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"drafted": [[5, 6, 7, 9]], "accepted": [1]}, "draft drafted"),
        ({"accepted": [1], "hidden_states": [[1.0, 9.0]]}, "verify accepted"),
        ({"hidden_states": [[1.0, 2.001]]}, "draft_extend hidden_states"),
        ({"hidden_states": [[1.0, np.nan]]}, "draft_extend hidden_states"),
        ({"draft_k0": [[1.1, 0.0]]}, "KV rows of the draft"),
        ({"requests": [0, 1]}, "schedule requests"),
        ({"topk_p": [[0.5]], "topk_index": [[6]]}, "draft_extend topk_index"),
        ({"topk_p": [[0.5]]}, "draft_extend topk_p"),
    ],
)
def test_the_first_difference_without_graphs_is_named(changes: dict[str, object], where: str) -> None:
    verdict = only(rounds.judge, SMALL, by_both(**changes))
    assert (verdict.status, verdict.where) == (Status.FAIL, where)
    assert verdict.cell and verdict.cell.step == 1


@pytest.mark.parametrize(("without", "status"), [(GONE, Status.PASS), (0, Status.FAIL)])
def test_values_of_a_request_that_ended_before_the_round_are_dropped(without: int, status: Status) -> None:
    by_graph = rounds_of("round_graph", requests=[GONE], logits=[[9.0, 1.5, 2.5, 3.5]], accepted=[1])
    trace = Trace(ended=End(how=Termination.DONE), seen=(*by_graph, *rounds_of("round_eager", requests=[without])))
    verdict = only(rounds.judge, SMALL, trace)
    assert verdict.status is status and (status is Status.PASS or verdict.where == "schedule requests")


def test_rounding_is_no_difference() -> None:
    assert only(rounds.judge, SMALL, by_both()).status is Status.PASS
    assert only(rounds.judge, SMALL, by_both(hidden_states=[[1.0, 2.00001]])).status is Status.PASS
    drafted = {"drafted": [[5, 6, 7, 9]]}
    turned = rounds_of("round_nudged_up", **drafted)
    verdict = only(rounds.judge, SMALL, by_both(turned, rounds_of("round_nudged_down"), **drafted))
    assert (verdict.status, verdict.where) == (Status.UNKNOWN, rounds.TIES)
    behind = rounds_of("round_nudged_up", hidden_states=[[1.0, 9.0]], accepted=[1], logits=[[0.5, 1.5, 2.5, 9.5]])
    assert only(rounds.judge, SMALL, by_both(behind, **drafted)).where == rounds.TIES
    unturned = rounds_of("round_nudged_up", logits=[[0.5, 1.5, 2.5, 9.5]])
    assert only(rounds.judge, SMALL, by_both(unturned, **drafted)).status is Status.FAIL
    sure = only(rounds.judge, SMALL, by_both(rounds_of("round_nudged_up"), rounds_of("round_nudged_down"), **drafted))
    assert sure.status is Status.FAIL
    alone = Trace(ended=End(how=Termination.DONE), seen=rounds_of("round_graph"))
    assert only(rounds.judge, SMALL, alone).status is Status.UNKNOWN


@pytest.mark.parametrize(("accepted", "status"), [([1, 2], Status.UNKNOWN), ([2, 1], Status.FAIL)])
def test_noise_excuses_the_request_whose_choice_it_turns(accepted: list[int], status: Status) -> None:
    both: dict[str, object] = {"requests": [0, 1], "accepted": [2, 2], "drafted": [[5, 6, 7, 8], [1, 2, 3, 4]]}
    both |= {"logits": [[0.5, 1.5, 2.5, 3.5]] * 2}
    graph = rounds_of("round_graph", **both | {"drafted": [[5, 6, 7, 9], [1, 2, 3, 4]]})
    nudged = rounds_of("round_nudged_up", **both | {"logits": [[0.5, 1.5, 2.5, 9.5]] * 2, "accepted": accepted})
    trace = Trace(ended=End(how=Termination.DONE), seen=(*graph, *rounds_of("round_eager", **both), *nudged))
    assert only(rounds.judge, SMALL, trace).status is status


@pytest.mark.parametrize(("value", "status"), [(2.01, Status.PASS), (2.2, Status.FAIL)])
def test_rounding_of_float32_is_that_of_tensor_cores_on_a_gpu(value: float, status: Status) -> None:
    trace = replace(by_both(hidden_states=[[1.0, value]]), facts={"engine": "cuda"})
    assert only(rounds.judge, SMALL, trace).status is status


@pytest.mark.parametrize(
    ("engine", "changes", "status"),
    [
        ("emulated", {"hidden_states": [[1.0, 2.0000002]]}, Status.FAIL),
        ("cuda", {"hidden_states": [[1.0, 2.0000002]]}, Status.PASS),
        ("emulated", {}, Status.PASS),
        ("emulated", {"accepted": [1]}, Status.FAIL),
        ("cuda", {"accepted": [1]}, Status.UNKNOWN),
    ],
)
def test_deterministic_inference_gives_the_same_bits(engine: str, changes: dict[str, object], status: Status) -> None:
    case = replace(SMALL, setup=replace(SMALL.setup, deterministic=True))
    nudged = rounds_of("round_nudged_up", accepted=[3])
    trace = replace(by_both(nudged, **changes), facts={"engine": engine})
    assert only(rounds.judge, case, trace).status is status
