"""Each oracle on traces that are changed by hand: what it fails, what it passes, and when it does not know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy_traces import OF_OTHERS, changed, drawn_cases, put, toy_trace

from oracles import (
    bucket,
    callers_batch,
    ended,
    graph_equals_eager,
    kv_indices,
    kv_writes,
    metadata_shape,
    slot0_padding,
    staged,
    tolerance,
)
from oracles.catalogue import ALL, COMPARED, ENDED, RAISED, judge_all, overall
from repro.case import Case, Request, Setup, Step
from repro.finding import Status, Verdict
from repro.trace import Ended, How, Seen, Trace

PASS, UNKNOWN, FAIL = Status.PASS, Status.UNKNOWN, Status.FAIL

SETUP = Setup(runner="toy", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(2, 4), slots=5, page_size=1)
FULL = Step(requests=tuple(Request(slot=slot, seq_len=9 + slot, data=slot) for slot in (1, 2, 3, 4)))
THREE = Step(requests=tuple(Request(slot=slot, seq_len=4 * slot, data=40 + slot) for slot in (5, 1, 3)))
CASE = Case(setup=SETUP, steps=(FULL, THREE))
SOUND = toy_trace(CASE)
PADDED, RAW, BS = 1, 3, 4  # the step whose row 3 is padding
OUTPUTS = ("tokens", "parents", "scores_index", "kv_slots", "kv_rows")


def told(verdict: Verdict) -> tuple[Status, str]:
    return verdict.status, verdict.where


def test_the_sound_trace_passes_everywhere() -> None:
    unsure = {verdict.oracle for verdict in judge_all(CASE, SOUND) if verdict.status is not PASS}
    assert unsure == set()


def test_each_verdict_carries_its_module_name() -> None:
    names = [judge.__module__.removeprefix("oracles.") for judge in ALL]
    assert [verdict.oracle for verdict in judge_all(CASE, SOUND)] == [name for name in names if name not in OF_OTHERS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("runner", "facts", "others"),
    [
        ("draft", {}, set()),
        ("draft", {"probes": "on"}, {"probes"}),
        ("verify", {}, {"tree_mask"}),
        ("kv_move", {}, {"kv_moves"}),
        ("verify_eager", {}, {"metadata_once"}),
    ],
)
def test_each_runner_is_asked_what_its_record_can_hold(runner: str, facts: dict[str, str], others: set[str]) -> None:
    trace = replace(SOUND, facts=facts)
    names = {v.oracle for v in judge_all(replace(CASE, setup=replace(CASE.setup, runner=runner)), trace)}
    assert names & OF_OTHERS == others
    assert ("graph_equals_eager" in names) == (runner in ("draft", "verify"))
    assert "ended" in names


@pytest.mark.parametrize("how", [How.DONE, How.UNFIT])
def test_an_empty_trace_is_unknown_to_everyone(how: How) -> None:
    verdicts = judge_all(CASE, Trace(ended=Ended(how=how)))
    assert [verdict.status for verdict in verdicts] == [UNKNOWN] * (len(ALL) - len(OF_OTHERS))
    assert all(verdict.where and verdict.where != RAISED for verdict in verdicts)
    assert overall(verdicts) is UNKNOWN


def test_an_oracle_that_raises_is_unknown_and_takes_no_other_along() -> None:
    # A launch record of the wrong rank: nothing that a runner could be blamed for.
    broken = changed(SOUND, 0, "metadata", "kv_indices", lambda array: array[0, 0])
    verdicts = judge_all(CASE, broken)
    assert {verdict.oracle for verdict in verdicts if verdict.where == RAISED} == {"kv_indices", "metadata_shape"}
    assert sum(verdict.status is PASS for verdict in verdicts) == len(ALL) - 2 - len(OF_OTHERS)
    assert overall(verdicts) is UNKNOWN


# What the verdicts together are worth ----------------------------------------------------------------------------


def verdicts_of(**statuses: Status) -> list[Verdict]:
    names = dict.fromkeys(judge.__module__.removeprefix("oracles.") for judge in ALL)
    return [Verdict(oracle=name, status=statuses.get(name, PASS)) for name in names]


@pytest.mark.parametrize(
    ("statuses", "want"),
    [
        ({}, PASS),
        ({"slot0_padding": UNKNOWN}, PASS),
        ({"ended": UNKNOWN}, UNKNOWN),
        (dict.fromkeys(COMPARED, UNKNOWN), UNKNOWN),
        ({"graph_equals_eager": UNKNOWN, "staged": FAIL}, FAIL),
        ({"slot0_padding": UNKNOWN, "bucket": FAIL}, FAIL),
    ],
)
def test_overall(statuses: dict[str, Status], want: Status) -> None:
    assert overall(verdicts_of(**statuses)) is want


def test_overall_needs_a_good_end_and_a_comparison() -> None:
    assert overall([]) is UNKNOWN
    assert overall(verdict for verdict in verdicts_of() if verdict.oracle != ENDED) is UNKNOWN
    assert overall(verdict for verdict in verdicts_of() if verdict.oracle not in COMPARED) is UNKNOWN
    for name in COMPARED:
        assert overall(v for v in verdicts_of() if v.oracle not in COMPARED or v.oracle == name) is PASS


# ended -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "where"),
    [
        (Ended(how=How.RAISED, step=2, path="graph", what="AssertionError"), "raised AssertionError in graph"),
        (Ended(how=How.CRASHED, step=0, path="replay", what="SIGABRT"), "crashed SIGABRT in replay"),
        (Ended(how=How.HUNG, step=1, path="eager"), "hung in eager"),
        (Ended(how=How.CRASHED, what="SIGSEGV"), "crashed SIGSEGV in the session"),
    ],
)
def test_ended_badly_is_told_without_numbers(end: Ended, where: str) -> None:
    assert told(ended.judge(CASE, replace(SOUND, ended=end))) == (FAIL, where)
    elsewhere = replace(end, step=end.step + 3, detail="other text 123")
    first, second = (ended.judge(CASE, replace(SOUND, ended=one)) for one in (end, elsewhere))
    assert first.fingerprint == second.fingerprint
    assert "123" in second.detail


def test_unfit_is_our_trouble() -> None:
    verdict = ended.judge(CASE, replace(SOUND, ended=Ended(how=How.UNFIT, detail="no such release")))
    assert (verdict.status, verdict.detail) == (UNKNOWN, "no such release")


# bucket ----------------------------------------------------------------------------------------------------------


def test_bucket_names_the_first_wrong_launch() -> None:
    verdict = bucket.judge(CASE, changed(SOUND, PADDED, "launch", "bs", lambda _: np.array(6)))
    assert told(verdict) == (FAIL, "bucket used")
    assert str(verdict.cell) == "step 1 bs[0,0] is 6, expected 4"
    verdict = bucket.judge(CASE, changed(SOUND, 0, "launch", "raw_bs", lambda _: np.array(3)))
    assert told(verdict) == (FAIL, "size of the batch")


# slot0_padding ---------------------------------------------------------------------------------------------------


def test_padding_names_all_buffers_of_the_case_and_the_first_cell() -> None:
    trace = changed(SOUND, PADDED, "launch", "topk_index", put((RAW, 1), 17))
    trace = changed(trace, PADDED, "launch", "req_pool_indices", put(RAW, 4))
    verdict = slot0_padding.judge(CASE, trace)
    assert told(verdict) == (FAIL, "padded rows of req_pool_indices, topk_index")
    assert verdict.cell is not None
    assert (verdict.cell.step, verdict.cell.buffer, verdict.cell.row) == (PADDED, "req_pool_indices", RAW)


def test_padding_minds_only_the_padded_rows_of_the_launched_bucket() -> None:
    small = Case(setup=SETUP, steps=(FULL, Step(requests=THREE.requests[:1])))
    trace = toy_trace(small)
    # Row 2 of the bucket of 2 is not launched; row 0 is real.
    trace = changed(trace, 1, "launch", "topk_index", put((2, 0), 17))
    trace = changed(trace, 1, "launch", "topk_index", put((0, 0), 17))
    assert slot0_padding.judge(small, trace).status is PASS
    trace = changed(trace, 1, "launch", "topk_index", put((1, 0), 17))
    assert slot0_padding.judge(small, trace).status is FAIL


def test_a_nan_in_a_padded_row_is_no_neutral_value() -> None:
    trace = changed(SOUND, PADDED, "launch", "hidden_states", put((RAW, 0), np.nan))
    assert slot0_padding.judge(CASE, trace).status is FAIL


def test_padding_that_was_not_exercised_is_unknown() -> None:
    full = Case(setup=SETUP, steps=(FULL,))
    trace = toy_trace(full)
    assert told(slot0_padding.judge(full, trace)) == (UNKNOWN, "no padding exercised")
    assert overall(judge_all(full, trace)) is PASS


def test_padding_without_a_known_neutral_value_is_unknown() -> None:
    trace = changed(SOUND, PADDED, "neutral", "topk_p", lambda _: None)
    assert told(slot0_padding.judge(CASE, trace)) == (UNKNOWN, "neutral value not recorded")


# staged ----------------------------------------------------------------------------------------------------------


def test_staged_compares_every_real_row() -> None:
    verdict = staged.judge(CASE, changed(SOUND, PADDED, "launch", "topk_p", put((RAW - 1, 1), 0.5)))
    assert told(verdict) == (FAIL, "real rows of topk_p")
    assert verdict.cell is not None
    assert (verdict.cell.row, verdict.cell.column, verdict.cell.got) == (RAW - 1, 1, "0.5")
    assert staged.judge(CASE, changed(SOUND, PADDED, "launch", "topk_p", put((RAW, 1), 0.5))).status is PASS


def test_staged_looks_at_seq_lens_cpu_where_it_is_recorded() -> None:
    lengths = SOUND.get(0, "launch", "seq_lens")
    assert lengths is not None
    copied = Seen(step=0, path="launch", name="seq_lens_cpu", array=lengths.copy())
    trace = replace(SOUND, seen=(*SOUND.seen, copied))
    assert staged.judge(CASE, trace).status is PASS
    verdict = staged.judge(CASE, changed(trace, 0, "launch", "seq_lens_cpu", put(2, 1)))
    assert told(verdict) == (FAIL, "real rows of seq_lens_cpu")


# kv_indices and metadata_shape -----------------------------------------------------------------------------------


def test_kv_indices_says_which_row_and_branch() -> None:
    # Draft step 1 of the padded step: row 0 has slot 5, seq_len 20; its branch 1 starts at entry 22.
    trace = changed(SOUND, PADDED, "metadata", "kv_indices", put((1, 22 + 3), 9999))
    verdict = kv_indices.judge(CASE, trace)
    assert told(verdict) == (FAIL, "segment of a real row")
    assert "entry 3 of row 0 branch 1" in verdict.detail
    assert "outside the pool" in verdict.detail
    assert verdict.cell is not None
    assert (verdict.cell.row, verdict.cell.column, verdict.cell.got) == (1, 25, "9999")


def test_kv_indices_knows_where_padding_begins() -> None:
    used = 2 * (20 + 4 + 12) + 6 * 1  # draft step 0 of three requests: prefixes of both branches, one draft each
    first = changed(SOUND, PADDED, "metadata", "kv_indices", put((0, used), 3))
    assert told(kv_indices.judge(CASE, first)) == (FAIL, "segment of a padded row")
    last = changed(SOUND, PADDED, "metadata", "kv_indices", put((0, used - 1), 3))
    assert told(kv_indices.judge(CASE, last)) == (FAIL, "segment of a real row")
    unused = changed(SOUND, PADDED, "metadata", "kv_indices", put((0, used + 2 * 2), 3))
    assert kv_indices.judge(CASE, unused).status is PASS


def test_kv_indices_of_draft_steps_that_are_not_run_do_not_matter() -> None:
    trace = changed(SOUND, PADDED, "metadata", "kv_indices", put(SETUP.num_steps - 1, 3))
    assert kv_indices.judge(CASE, trace).status is PASS


def test_a_narrow_row_is_told_before_its_consequences() -> None:
    trace = changed(SOUND, 0, "metadata", "kv_indices", lambda array: array[:, :30] * 0)
    trace = changed(trace, 0, "guard", "kv_indices", put(20, 1))
    verdict = kv_indices.judge(CASE, trace)
    assert told(verdict) == (FAIL, "kv_indices row too narrow")
    assert "needs 100 entries of a kv_indices row that has 30" in verdict.detail


@pytest.mark.parametrize("name", ["kv_indices", "kv_indptr"])
def test_guard_bands(name: str) -> None:
    verdict = kv_indices.judge(CASE, changed(SOUND, 0, "guard", name, put(-1, 1)))
    assert told(verdict) == (FAIL, f"guard band of {name}")
    assert verdict.cell is not None
    assert (verdict.cell.column, verdict.cell.got, verdict.cell.want) == (31, "1", "-7777")


def test_kv_indices_alone_or_guards_alone_are_enough_to_compare() -> None:
    for path in ("metadata", "guard"):
        seen = tuple(one for one in SOUND.seen if one.path != path)
        assert kv_indices.judge(CASE, replace(SOUND, seen=seen)).status is PASS
    seen = tuple(one for one in SOUND.seen if one.path not in ("metadata", "guard"))
    assert kv_indices.judge(CASE, replace(SOUND, seen=seen)).status is UNKNOWN


def test_kv_indices_with_branches_on_pages_of_their_own() -> None:
    setup = replace(SETUP, page_size=4, topk=3, num_draft_tokens=8)
    case = Case(setup=setup, steps=CASE.steps)
    trace = toy_trace(case)
    assert kv_indices.judge(case, trace).status is PASS
    # Laid out as one-token pages would be, the very same lengths are wrong.
    assert kv_indices.judge(Case(setup=replace(setup, page_size=1), steps=CASE.steps), trace).status is FAIL


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (put((0, 0), 1), "kv_indptr does not start at 0"),
        (put((1, 2), 0), "length of a real row"),
        (put((1, 2 * BS), 400), "length of a padded row"),
        (put((0, 2 * RAW), 5), "length of a real row"),
        (lambda array: array[:, : 2 * BS], "kv_indptr has fewer rows than the query"),
    ],
)
def test_metadata_shape(change, where: str) -> None:  # type: ignore[no-untyped-def]
    verdict = metadata_shape.judge(CASE, changed(SOUND, PADDED, "metadata", "kv_indptr", change))
    assert told(verdict) == (FAIL, where)
    assert verdict.cell is not None
    assert verdict.cell.buffer == "kv_indptr"


def test_a_padded_row_may_be_as_long_as_either_neutral_value_says() -> None:
    # The toy writes row starts from positions (0) as sglang does; from seq_lens (1) is as harmless, 2 more is not.
    for longer, want in ((0, PASS), (1, PASS), (2, FAIL)):
        grow = np.zeros(2 * BS + 1, dtype=np.int64)
        grow[2 * RAW + 1 :] = longer * np.arange(1, 2 * (BS - RAW) + 1)
        trace = changed(SOUND, PADDED, "metadata", "kv_indptr", lambda array, grow=grow: array + grow)
        assert metadata_shape.judge(CASE, trace).status is want


def test_the_last_row_may_not_end_behind_its_kv_indices_row() -> None:
    trace = changed(SOUND, 0, "metadata", "kv_indices", lambda array: array[:, :99])
    verdict = metadata_shape.judge(CASE, trace)
    assert told(verdict) == (FAIL, "last entry past the end of a kv_indices row")
    exact = changed(SOUND, 0, "metadata", "kv_indices", lambda array: array[:, :108])
    assert metadata_shape.judge(CASE, exact).status is PASS


# kv_writes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["graph", "eager"])
def test_kv_writes_names_path_and_owner(path: str) -> None:
    table = SOUND.get(-1, "input", "req_to_token")
    assert table is not None
    astray = int(table[2, 7])  # request slot 2 is not in the padded step

    def more(array: np.ndarray) -> np.ndarray:
        return np.union1d(array, astray)

    verdict = kv_writes.judge(CASE, changed(SOUND, PADDED, path, "kv_slots", more))
    assert told(verdict) == (FAIL, f"slots not given, {path}")
    assert "position 7 of request slot 2" in verdict.detail
    assert verdict.cell is not None
    assert verdict.cell.row == astray


def test_only_slot_0_is_reserved_for_writes_whatever_the_page_size() -> None:
    case = Case(setup=replace(SETUP, page_size=4), steps=(THREE,))
    trace = toy_trace(case)
    slots = trace.get(0, "graph", "kv_slots")
    assert slots is not None
    assert 0 in slots
    assert kv_writes.judge(case, trace).status is PASS
    moved = changed(trace, 0, "graph", "kv_slots", put(0, 3))
    assert told(kv_writes.judge(case, moved)) == (FAIL, "slots not given, graph")
    # Which of the two paths writes there is no difference between graph and eager.
    assert graph_equals_eager.judge(case, moved).status is PASS
    noisy = changed(toy_trace(case, "rounding"), 0, "graph", "kv_slots", put(0, 3))
    assert graph_equals_eager.judge(case, noisy).status is PASS


def test_kv_writes_of_nothing_are_unknown() -> None:
    trace = SOUND
    for step in range(2):
        for path in ("graph", "eager"):
            trace = changed(trace, step, path, "kv_slots", lambda array: array[:0])
    assert told(kv_writes.judge(CASE, trace)) == (UNKNOWN, "no KV slot changed")


# callers_batch ---------------------------------------------------------------------------------------------------


def test_a_field_may_come_back_as_eager_leaves_it_and_no_other_way() -> None:
    before, after = (SOUND.get(0, path, "positions") for path in ("before", "after_eager"))
    assert before is not None
    assert after is not None
    assert (before + 2 == after).all()
    for leave, want in ((before, PASS), (after, PASS), (before + 1, FAIL)):
        trace = changed(SOUND, 0, "after_graph", "positions", lambda _, leave=leave: leave)
        assert callers_batch.judge(CASE, trace).status is want


def test_a_field_of_another_shape_or_gone_is_told() -> None:
    padded = changed(SOUND, PADDED, "after_graph", "seq_lens", lambda array: np.append(array, 1))
    verdict = callers_batch.judge(CASE, padded)
    assert told(verdict) == (FAIL, "the caller's seq_lens")
    assert verdict.cell is not None
    assert (verdict.cell.got, verdict.cell.want) == ("shape (4,)", "shape (3,)")
    gone = changed(SOUND, PADDED, "after_graph", "topk_p", lambda _: None)
    assert told(callers_batch.judge(CASE, gone)) == (FAIL, "the caller's topk_p")
    wider = changed(SOUND, PADDED, "after_graph", "seq_lens", lambda array: array.astype(np.int16))
    assert callers_batch.judge(CASE, wider).status is PASS


def test_without_the_eager_path_a_moved_field_cannot_be_told() -> None:
    one = Case(setup=SETUP, steps=(THREE,))
    trace = toy_trace(one)
    trace = replace(trace, seen=tuple(s for s in trace.seen if s.path != "after_eager"))
    assert callers_batch.judge(one, trace).status is PASS  # by the fields that did not move
    only = tuple(s for s in trace.seen if s.name == "positions")
    assert callers_batch.judge(one, replace(trace, seen=only)).status is UNKNOWN


# graph_equals_eager ----------------------------------------------------------------------------------------------


def varied(step: int, **variants: dict[tuple[str, int], object]) -> Trace:
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
            seen.append(Seen(step=step, path=path, name=name, array=array))
    return replace(SOUND, seen=tuple(seen))


@pytest.mark.parametrize("name", ["tokens", "parents", "scores_index"])
def test_a_single_integer_off_is_a_failure(name: str) -> None:
    trace = changed(SOUND, PADDED, "graph", name, lambda array: array + np.eye(*array.shape, dtype=array.dtype))
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
    """Which row of kv_rows of the padded step's eager path belongs to this request's first draft slot."""
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
    one = varied(PADDED, eager_nudged_down=turned)
    assert told(graph_equals_eager.judge(CASE, graph_kv_moved(one, 1, 0.25))) == (FAIL, "KV values written")
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
    seen = tuple(replace(one, step=2) if one.step == 1 else one for one in trace.seen)
    middle = tuple(replace(one, step=1) for one in toy_trace(Case(setup=SETUP, steps=(over,))).seen if one.step == 0)
    verdict = graph_equals_eager.judge(later, replace(trace, seen=(*seen, *middle)))
    assert told(verdict) == (FAIL, "KV slots written")


def test_a_step_of_a_finished_run_without_outputs_is_unknown() -> None:
    trace = replace(SOUND, seen=tuple(s for s in SOUND.seen if (s.step, s.path) != (1, "graph")))
    assert graph_equals_eager.judge(CASE, trace).status is UNKNOWN
    partly = changed(SOUND, 1, "eager", "parents", lambda _: None)
    verdict = graph_equals_eager.judge(CASE, partly)
    assert (verdict.status, verdict.where) == (FAIL, "missing output")
    # A run that broke off is judged by what it left; how it ended is another oracle's word.
    broken_off = replace(trace, ended=Ended(how=How.CRASHED, step=1, path="graph"))
    assert graph_equals_eager.judge(CASE, broken_off).status is PASS


# Numbers ---------------------------------------------------------------------------------------------------------


def test_the_limit_grows_with_noise_and_coarseness_and_never_vanishes() -> None:
    assert 0 < tolerance.limit(0.0, 1.0, "float32") < 1e-6
    assert tolerance.limit(0.0, 1.0, "float32") < tolerance.limit(0.0, 1.0, "float16")
    assert tolerance.limit(0.0, 1.0, "float16") < tolerance.limit(0.0, 1.0, "bfloat16")
    assert tolerance.limit(1e-3, 1.0, "float32") > 1e-3


@pytest.mark.parametrize("case", drawn_cases(6, seed=5))
def test_fingerprints_do_not_hold_numbers(case: Case) -> None:
    for bug in ("stale_padding", "kv_values_differ", "guard_overrun"):
        for verdict in judge_all(case, toy_trace(case, bug)):
            assert verdict.status is not FAIL or not any(letter.isdigit() for letter in verdict.where)
