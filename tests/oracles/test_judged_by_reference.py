"""graph_equals_eager and reference where the trace has an opinion: which path is wrong, both, a tie, or nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles import graph_equals_eager, reference
from repro.traces.finding import Verdict
from repro.traces.trace import Array, RecordedArray, Trace
from tests.builders.sound_trace import CASE, FAIL, PADDED, PASS, SOUND, UNKNOWN, told
from tests.builders.toy_traces import changed, put

BOTH = "wrong values"
TREE, VALUES, SLOTS = "draft tree", "KV values written", "KV slots written"
BOUND = 2.0**-20  # of every value
SPREAD = BOUND / 8  # of the whole of a slot


def found(name: str, path: str = "eager") -> Array:
    array = SOUND.get(PADDED, path, name)
    assert array is not None
    return array


def referred(
    trace: Trace = SOUND, *, known: bool = True, path: str = "reference", tokens: Array | None = None
) -> Trace:
    """With a third opinion on the padded step, which is what eager left in the sound trace; and what the trace's paths
    left. known: whether it knows the KV."""
    slots, rows = found("kv_slots"), found("kv_rows").astype(np.float64)
    far = 0.0 if known else np.inf
    arrays: dict[str, Array] = {
        "kv_slots": slots,
        "kv_rows": rows,
        "kv_rows.bound": np.full(rows.shape, BOUND + far),
        "kv_rows.norm": np.full((len(rows), 1), 1.5 * BOUND + far),
        "kv_rows.spread": np.full((len(rows), 1), SPREAD + far),
        "kv_rows.all": np.full((1, 1), 2 * BOUND / SPREAD),
    }
    for name in ("tokens", "parents", "scores_index"):
        arrays[name] = found(name) if name != "tokens" or tokens is None else tokens
        arrays[f"{name}.bound"] = np.zeros(arrays[name].shape)
    for left in ("graph", "eager"):
        seen, numbers = trace.get(PADDED, left, "kv_slots"), trace.get(PADDED, left, "kv_rows")
        assert seen is not None
        assert numbers is not None
        # Of a slot that this path did not write, some other content.
        places = [seen.tolist().index(slot) if slot in seen else -1 for slot in slots.tolist()]
        arrays[f"kv_{left}"] = np.stack(
            [numbers[place] if place >= 0 else np.full_like(numbers[0], 9) for place in places]
        )
    more = tuple(RecordedArray(step=PADDED, path=path, name=name, array=array) for name, array in arrays.items())
    return replace(trace, seen=trace.seen + more)


def kv_moved(path: str, row: int, by: float, trace: Trace = SOUND) -> Trace:
    """With one value of the KV that a path left off by so much; row: of eager's slots."""
    place = found("kv_slots", path).tolist().index(int(found("kv_slots")[row]))
    return changed(
        trace, PADDED, path, "kv_rows", lambda array: put((place, 2), array[place, 2] + np.float32(by))(array)
    )


def both_wrong(trace: Trace) -> Verdict:
    """The failure of a trace in which both paths are wrong and do not differ."""
    assert graph_equals_eager.judge(CASE, trace).status is PASS
    verdict = reference.judge(CASE, trace)
    assert told(verdict) == (FAIL, BOTH)
    return verdict


def test_two_that_lie_within_the_bounds_agree() -> None:
    assert graph_equals_eager.judge(CASE, referred()).status is PASS
    # Without an opinion, so much is a failure.
    apart = kv_moved("graph", 1, 0.9 * BOUND, kv_moved("eager", 1, -0.9 * BOUND))
    assert told(graph_equals_eager.judge(CASE, apart)) == (FAIL, VALUES)
    assert graph_equals_eager.judge(CASE, referred(apart)).status is PASS


@pytest.mark.parametrize("path", ["graph", "eager"])
def test_the_path_that_lies_outside_is_named(path: str) -> None:
    verdict = graph_equals_eager.judge(CASE, referred(kv_moved(path, 1, 8 * BOUND)))
    assert told(verdict) == (FAIL, VALUES)
    assert f"{path} is wrong and the other path right" in verdict.detail
    assert verdict.cell is not None
    assert (verdict.cell.buffer, verdict.cell.row, verdict.cell.column) == ("kv", int(found("kv_slots")[1]), 2)
    trace = changed(SOUND, PADDED, path, "tokens", put((1, 0), 99))
    verdict = graph_equals_eager.judge(CASE, referred(trace))
    assert told(verdict) == (FAIL, TREE)
    assert f"{path} is wrong and the other path right" in verdict.detail


def test_both_outside_alike_are_both_wrong() -> None:
    alike = kv_moved("graph", 1, 8 * BOUND, kv_moved("eager", 1, 8 * BOUND))
    assert both_wrong(referred(alike))
    tokens = found("tokens").copy()
    tokens[1, 0] += 1
    assert both_wrong(referred(tokens=tokens))
    # Each in its own way: that they differ is another failure.
    apart = referred(kv_moved("graph", 1, 80 * BOUND, kv_moved("eager", 1, -80 * BOUND)))
    verdict = graph_equals_eager.judge(CASE, apart)
    assert told(verdict) == (FAIL, VALUES)
    assert "Both are wrong" in verdict.detail
    assert told(reference.judge(CASE, apart)) == (FAIL, BOTH)


def test_both_outside_by_no_more_than_rounding_are_both_wrong() -> None:
    """Their bits differ, and by so little that nothing is wrong between the two."""
    by = 8 * BOUND
    verdict = both_wrong(referred(kv_moved("graph", 1, by, kv_moved("eager", 1, by + 2.0**-23))))
    assert "graph and eager are both wrong" in verdict.detail
    assert verdict.cell is not None
    assert (verdict.cell.buffer, verdict.cell.row) == ("kv", int(found("kv_slots")[1]))


def test_what_is_off_by_a_little_everywhere_is_seen() -> None:
    """Every value by half its bound shows in no slot by itself, and in one slot alone it is nothing."""

    def all_moved(array: Array) -> Array:
        return np.add(array, BOUND / 2, dtype=np.float32)

    alike = changed(changed(SOUND, PADDED, "graph", "kv_rows", all_moved), PADDED, "eager", "kv_rows", all_moved)
    assert "over all tokens" in both_wrong(referred(alike)).detail
    # One of its values a unit further in one path: the bits differ, and the whole is as wrong.
    assert "over all tokens" in both_wrong(referred(kv_moved("graph", 1, 2.0**-23, alike))).detail
    alone = referred(kv_moved("graph", 1, BOUND / 2, kv_moved("eager", 1, BOUND / 2)))
    assert graph_equals_eager.judge(CASE, alone).status is reference.judge(CASE, alone).status is PASS


def test_eager_alone_is_held_to_the_reference() -> None:
    """A step that no graph stands beside."""

    def alone(trace: Trace) -> Trace:
        return replace(trace, seen=tuple(seen for seen in trace.seen if (seen.step, seen.path) != (PADDED, "graph")))

    assert reference.judge(CASE, alone(referred())).status is PASS
    verdict = reference.judge(CASE, alone(referred(kv_moved("eager", 1, 8 * BOUND))))
    assert told(verdict) == (FAIL, BOTH)
    assert "eager, which ran alone, is wrong" in verdict.detail


def test_one_path_that_is_wrong_is_none_of_the_references() -> None:
    for path in ("graph", "eager"):
        assert reference.judge(CASE, referred(kv_moved(path, 1, 8 * BOUND))).status is PASS
    unasked = replace(SOUND, seen=tuple(seen for seen in SOUND.seen if seen.path != "reference"))
    assert told(reference.judge(CASE, unasked)) == (UNKNOWN, reference.NOT_ASKED)


def test_other_choices_that_are_both_right_are_a_tie() -> None:
    tokens = found("tokens").copy()
    tokens[1, 0] += 1
    trace = changed(SOUND, PADDED, "graph", "tokens", lambda _: tokens)
    # The graph made another choice than eager, and what follows from it is recorded for it.
    tied = referred(referred(trace), path="reference_graph", tokens=tokens)
    assert told(graph_equals_eager.judge(CASE, tied)) == (UNKNOWN, "tie")
    assert told(graph_equals_eager.judge(CASE, referred(trace))) == (FAIL, TREE)


def test_what_is_not_known_is_judged_by_eager() -> None:
    trace = kv_moved("graph", 1, 64 * BOUND)
    verdict = graph_equals_eager.judge(CASE, referred(trace, known=False))
    assert told(verdict) == (FAIL, VALUES)
    assert "measured noise" in verdict.detail
    assert graph_equals_eager.judge(CASE, referred(known=False)).status is PASS


def test_no_opinion_excuses_a_write_of_one_path_alone() -> None:
    trace = referred()
    for name in ("kv_slots", "kv_rows"):
        trace = changed(trace, PADDED, "eager", name, lambda array: array[:-1])
    assert told(graph_equals_eager.judge(CASE, trace)) == (FAIL, SLOTS)


def test_a_nan_lies_outside() -> None:
    both_wrong(referred(kv_moved("graph", 1, np.nan, kv_moved("eager", 1, np.nan))))


def with_logits(*, off: float = 0.0, both: bool = False, bound: float = BOUND, norm: float = np.inf) -> Trace:
    """With an output of floats, where one value of the graph's, or of both paths', is off by so much."""
    right = np.linspace(-1, 1, 12, dtype=np.float64).reshape(3, 4)
    wrong = right.copy()
    wrong[1, 2] += off
    paths = {"graph": wrong, "eager": wrong if both else right}
    opinion = {
        "logits": right,
        "logits.bound": np.full(right.shape, bound),
        "logits.norm": np.full((3, 1), norm),
        "logits.spread": np.full((3, 1), SPREAD),
        "logits.all": np.full((1, 1), np.inf),
    }
    more = [RecordedArray(step=PADDED, path=path, name="logits", array=array) for path, array in paths.items()]
    trace = referred()
    more += [RecordedArray(step=PADDED, path="reference", name=name, array=array) for name, array in opinion.items()]
    return replace(trace, seen=(*trace.seen, *more))


def test_a_value_of_an_output_is_held_to_its_bound() -> None:
    assert graph_equals_eager.judge(CASE, with_logits(off=0.9 * BOUND)).status is PASS
    verdict = graph_equals_eager.judge(CASE, with_logits(off=1.1 * BOUND))
    assert told(verdict) == (FAIL, "values of an output")
    assert verdict.cell is not None
    assert (verdict.cell.buffer, verdict.cell.row, verdict.cell.column) == ("logits", 1, 2)
    both_wrong(with_logits(off=1.1 * BOUND, both=True))


def test_a_row_of_an_output_is_held_to_the_bound_of_its_norm() -> None:
    """No value is outside of its own bound; all of a row together are."""
    assert graph_equals_eager.judge(CASE, with_logits(off=BOUND, bound=8 * BOUND)).status is PASS
    trace = with_logits(off=BOUND, bound=8 * BOUND, norm=BOUND / 2)
    verdict = graph_equals_eager.judge(CASE, trace)
    assert told(verdict) == (FAIL, "values of an output")
    assert verdict.cell is not None
    assert (verdict.cell.row, verdict.cell.column) == (1, 2)


def test_without_a_bound_a_value_is_judged_by_eager() -> None:
    """A float32 value that is one unit in the last place off passes as rounding; one that is far off does not."""
    near, far = with_logits(off=2.0**-23, bound=np.inf), with_logits(off=0.5, bound=np.inf)
    assert graph_equals_eager.judge(CASE, near).status is PASS
    verdict = graph_equals_eager.judge(CASE, far)
    assert told(verdict) == (FAIL, "values of an output")
    assert "measured noise" in verdict.detail


def test_an_output_that_the_reference_lacks_is_judged_by_eager() -> None:
    def without(trace: Trace) -> Trace:
        kept = (seen for seen in trace.seen if seen.path != "reference" or not seen.name.startswith("logits"))
        return replace(trace, seen=tuple(kept))

    assert graph_equals_eager.judge(CASE, without(with_logits())).status is PASS
    assert told(graph_equals_eager.judge(CASE, without(with_logits(off=0.5)))) == (FAIL, "values of an output")
