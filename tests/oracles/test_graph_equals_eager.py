"""graph_equals_eager on traces that are changed by hand: what is a failure, a tie, or within measured noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles import graph_equals_eager
from repro.cases.case import Case, Step
from repro.traces.trace import End, RecordedArray, Termination, Trace
from tests.builders.sound_trace import CASE, FAIL, PADDED, PASS, RAW, SETUP, SOUND, THREE, UNKNOWN, told
from tests.builders.toy_traces import changed, put, toy_trace

OUTPUTS = ("tokens", "parents", "scores_index", "kv_slots", "kv_rows")


def varied(step: int, **variants: dict[tuple[str, int], Any]) -> Trace:
    """The sound trace with eager_again and nudged paths recorded, as copies of eager with some rows changed."""
    seen = list(SOUND.seen)
    for path in ("eager_again", "eager_nudged_up", "eager_nudged_down"):
        for name in OUTPUTS:
            array = SOUND.get(step, "eager", name)
            assert array is not None
            array = array.copy()
            for (changed_name, row), value in variants.get(path, {}).items():
                if changed_name == name:
                    array[row] = value
            seen.append(RecordedArray(step=step, path=path, name=name, array=array))
    return replace(SOUND, seen=tuple(seen))


@pytest.mark.parametrize("name", ["tokens", "parents", "scores_index"])
def test_a_single_integer_off_is_a_failure(name: str) -> None:
    trace = changed(
        SOUND, PADDED, "graph", name, lambda array: array + np.eye(*array.shape, dtype=np.int64).astype(array.dtype)
    )
    verdict = graph_equals_eager.judge(CASE, trace)
    assert told(verdict) == (FAIL, "draft tree")
    assert verdict.cell is not None
    assert (verdict.cell.buffer, verdict.cell.row, verdict.cell.column) == (name, 0, 0)


def test_outputs_of_another_shape_are_a_failure() -> None:
    for path in ("graph", "eager"):
        trace = changed(SOUND, PADDED, path, "tokens", lambda array: np.concatenate([array, array[:1]]))
        assert told(graph_equals_eager.judge(CASE, trace)) == (FAIL, "shape of an output")
    # Both paths alike, but not one row per request.
    trace = changed(changed(SOUND, 0, "graph", "tokens", lambda a: a[1:]), 0, "eager", "tokens", lambda a: a[1:] + 1)
    assert told(graph_equals_eager.judge(CASE, trace)) == (FAIL, "shape of an output")


def test_equal_to_eager_at_the_padded_shapes_is_a_pass() -> None:
    trace = varied(PADDED, eager_again={("tokens", 1): 5})
    trace = changed(trace, PADDED, "graph", "tokens", put(1, 5))
    assert graph_equals_eager.judge(CASE, trace).status is PASS


@pytest.mark.parametrize("path", ["eager_again", "eager_nudged_up", "eager_nudged_down"])
def test_a_tie_in_one_row_excuses_no_other_row(path: str) -> None:
    # Eager itself turns over in row 1, though to another token than the graph.
    trace = varied(PADDED, **{path: {("tokens", 1): 6}})
    tied = changed(trace, PADDED, "graph", "tokens", put(1, 5))
    assert told(graph_equals_eager.judge(CASE, tied)) == (UNKNOWN, "tie")
    both = changed(tied, PADDED, "graph", "tokens", put(2, 5))
    verdict = graph_equals_eager.judge(CASE, both)
    assert told(verdict) == (FAIL, "draft tree")
    assert verdict.cell is not None
    assert verdict.cell.row == 2


def test_a_tie_in_one_output_excuses_no_other_output() -> None:
    trace = varied(PADDED, eager_nudged_up={("tokens", 1): 6})
    for also in (trace, changed(trace, PADDED, "graph", "tokens", put(1, 6))):
        other = changed(also, PADDED, "graph", "parents", put(1, 5))
        assert told(graph_equals_eager.judge(CASE, other)) == (FAIL, "draft tree")


def test_a_tie_excuses_no_missing_write() -> None:
    trace = changed(varied(PADDED, eager_nudged_up={("tokens", 1): 6}), PADDED, "graph", "tokens", put(1, 6))
    for name in ("kv_slots", "kv_rows"):
        trace = changed(trace, PADDED, "graph", name, lambda array: np.delete(array, kv_row_of(1) + 1, axis=0))
    assert told(graph_equals_eager.judge(CASE, trace)) == (FAIL, "KV slots written")


def kv_row_of(request: int) -> int:
    """The row of kv_rows of the padded step's eager path that belongs to this request's first draft slot."""
    locs, slots = SOUND.get(PADDED, "input", "out_cache_loc"), SOUND.get(PADDED, "eager", "kv_slots")
    assert locs is not None
    assert slots is not None
    return int(np.flatnonzero(slots == locs[request, 0])[0])


def graph_kv_moved(trace: Trace, request: int, by: float) -> Trace:
    # The graph path has one row more than eager, slot 0 in front, which the padded row wrote.
    row = kv_row_of(request) + 1
    return changed(trace, PADDED, "graph", "kv_rows", put((row, 2), moved(request, by)))


def moved(request: int, by: float) -> np.float32:
    rows = SOUND.get(PADDED, "eager", "kv_rows")
    assert rows is not None
    return np.float32(rows[kv_row_of(request), 2] + np.float32(by))


def test_kv_values_may_differ_by_measured_noise_of_the_same_row_only() -> None:
    noise = 2.0**-19
    calm = np.asarray(SOUND.get(PADDED, "eager", "kv_rows"))[kv_row_of(1)].copy()
    calm[2] += np.float32(noise)
    trace = varied(PADDED, eager_nudged_up={("kv_rows", kv_row_of(1)): calm})
    for by, want in ((noise, PASS), (3 * noise, PASS), (8 * noise, FAIL)):
        assert graph_equals_eager.judge(CASE, graph_kv_moved(trace, 1, by)).status is want
    verdict = graph_equals_eager.judge(CASE, graph_kv_moved(trace, 2, 3 * noise))
    assert told(verdict) == (FAIL, "KV values written")
    assert verdict.cell is not None
    assert verdict.cell.column == 2
    assert "measured noise 0," in verdict.detail


def test_kv_values_without_measured_noise_may_differ_by_a_few_ulps() -> None:
    assert graph_equals_eager.judge(CASE, graph_kv_moved(SOUND, 1, 2.0**-23)).status is PASS
    assert graph_equals_eager.judge(CASE, graph_kv_moved(SOUND, 1, 2.0**-16)).status is FAIL


@pytest.mark.parametrize(("logits", "status"), [(None, FAIL), (1.0, FAIL), (16.0, PASS)])
def test_a_probability_rounds_as_its_logits_do(logits: float | None, status: object) -> None:
    outputs = {"topk_p": np.full((RAW, 1), 0.25, dtype=np.float32)}
    if logits is not None:
        outputs["next_token_logits"] = np.full((RAW, 2), logits, dtype=np.float32)
    seen = list(SOUND.seen)
    for path in ("graph", "eager"):
        for name, array in outputs.items():
            off = 2.0**-20 if (path, name) == ("graph", "topk_p") else 0.0
            seen.append(RecordedArray(step=PADDED, path=path, name=name, array=array + np.float32(off)))
    assert graph_equals_eager.judge(CASE, replace(SOUND, seen=tuple(seen))).status is status


def test_a_hidden_choice_that_eager_turns_over_is_a_doubt() -> None:
    swapped = np.asarray(SOUND.get(PADDED, "eager", "kv_rows"))[kv_row_of(1)] + np.float32(0.25)
    trace = varied(PADDED, eager_nudged_down={("kv_rows", kv_row_of(1)): swapped})
    assert told(graph_equals_eager.judge(CASE, graph_kv_moved(trace, 1, 0.25))) == (UNKNOWN, "tie")
    # Rounding alone is still a pass, and what eager never does is still a failure.
    assert graph_equals_eager.judge(CASE, graph_kv_moved(trace, 1, 2.0**-24)).status is PASS
    assert graph_equals_eager.judge(CASE, graph_kv_moved(trace, 1, 5.0)).status is FAIL


def test_a_variant_that_took_another_branch_measures_no_noise() -> None:
    other = np.asarray(SOUND.get(PADDED, "eager", "kv_rows"))[kv_row_of(1)] + np.float32(0.25)
    turned = {("tokens", 1): 6, ("kv_rows", kv_row_of(1)): other}
    nudged = varied(PADDED, eager_nudged_down=turned)
    assert told(graph_equals_eager.judge(CASE, graph_kv_moved(nudged, 1, 0.25))) == (FAIL, "KV values written")
    all_of_them = varied(PADDED, eager_again=turned, eager_nudged_up=turned, eager_nudged_down=turned)
    assert told(graph_equals_eager.judge(CASE, graph_kv_moved(all_of_them, 1, 0.25))) == (UNKNOWN, "tie")


def test_nan_in_the_same_places_is_equal_and_elsewhere_is_not() -> None:
    row = kv_row_of(1)
    in_eager = changed(SOUND, PADDED, "eager", "kv_rows", put((row, 0), np.nan))
    in_both = changed(in_eager, PADDED, "graph", "kv_rows", put((row + 1, 0), np.nan))
    assert graph_equals_eager.judge(CASE, in_both).status is PASS
    assert told(graph_equals_eager.judge(CASE, in_eager)) == (FAIL, "KV values written")
    # The NaN does not hide a difference beside it.
    assert graph_equals_eager.judge(CASE, graph_kv_moved(in_both, 1, 0.5)).status is FAIL
    assert graph_equals_eager.judge(CASE, graph_kv_moved(in_both, 1, 2.0**-23)).status is PASS


@pytest.mark.parametrize("path", ["graph", "eager"])
def test_a_slot_that_only_one_path_wrote_is_a_failure(path: str) -> None:
    trace = SOUND
    for name in ("kv_slots", "kv_rows"):
        trace = changed(trace, PADDED, path, name, lambda array: array[:-1])
    verdict = graph_equals_eager.judge(CASE, trace)
    assert told(verdict) == (FAIL, "KV slots written")
    assert verdict.cell is not None
    assert verdict.cell.got == ("untouched" if path == "graph" else "written")


def test_a_repeated_request_may_rewrite_what_is_there_already() -> None:
    # In the second step eager writes what it left in the first, so none of its slots change; the graph's do, by a bit.
    case = Case(setup=SETUP, steps=(THREE, THREE))
    trace = toy_trace(case, "rounding")
    graph, eager = (trace.get(1, path, "kv_slots") for path in ("graph", "eager"))
    assert eager is not None
    assert graph is not None
    assert len(eager) == 0 < np.count_nonzero(graph)
    assert graph_equals_eager.judge(case, trace).status is PASS
    # What is known of a slot is forgotten where a prefix was written over it since.
    over = Step(requests=tuple(replace(request, seq_len=request.seq_len + 9) for request in THREE.requests))
    later = Case(setup=SETUP, steps=(THREE, over, THREE))
    seen = tuple(replace(array, step=2) if array.step == 1 else array for array in trace.seen)
    middle = tuple(
        replace(array, step=1) for array in toy_trace(Case(setup=SETUP, steps=(over,))).seen if array.step == 0
    )
    verdict = graph_equals_eager.judge(later, replace(trace, seen=(*seen, *middle)))
    assert told(verdict) == (FAIL, "KV slots written")


def test_a_step_of_a_finished_run_without_outputs_is_unknown() -> None:
    trace = replace(SOUND, seen=tuple(s for s in SOUND.seen if (s.step, s.path) != (1, "graph")))
    assert graph_equals_eager.judge(CASE, trace).status is UNKNOWN
    partly = changed(SOUND, 1, "eager", "parents", lambda _: None)
    verdict = graph_equals_eager.judge(CASE, partly)
    assert (verdict.status, verdict.where) == (FAIL, "missing output")
    # A run that broke off is judged by what it left; how it ended is another oracle's word.
    broken_off = replace(trace, ended=End(how=Termination.CRASHED, step=1, path="graph"))
    assert graph_equals_eager.judge(CASE, broken_off).status is PASS
