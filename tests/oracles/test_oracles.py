"""Each oracle on traces that are changed by hand: what it fails, what it passes, and when it does not know.

graph_equals_eager and the two that look at attention's metadata have modules of their own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles import bucket, callers_batch, ended, graph_equals_eager, kv_writes, slot0_padding, staged, tolerance
from oracles.catalogue import ALL, COMPARED, judge_all, overall
from repro.cases.case import Case, Step
from repro.traces.finding import ENDED, RAISED, Status, Verdict, fingerprint
from repro.traces.trace import End, RecordedArray, Termination, Trace
from tests.builders.only_verdict import only
from tests.builders.sound_trace import CASE, FAIL, FULL, PADDED, PASS, RAW, SETUP, SOUND, THREE, UNKNOWN, told
from tests.builders.toy_traces import OF_OTHERS, changed, drawn_cases, put, toy_trace


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
        ("verify_eager", {}, {"metadata_once", "verified"}),
    ],
)
def test_each_runner_is_asked_what_its_record_can_hold(runner: str, facts: dict[str, str], others: set[str]) -> None:
    trace = replace(SOUND, facts=facts)
    names = {v.oracle for v in judge_all(replace(CASE, setup=replace(CASE.setup, runner=runner)), trace)}
    assert names & OF_OTHERS == others
    assert ("graph_equals_eager" in names) == (runner in ("draft", "verify"))
    assert "ended" in names


@pytest.mark.parametrize("how", [Termination.DONE, Termination.UNSUPPORTED, Termination.ERROR])
def test_an_empty_trace_is_unknown_to_everyone(how: Termination) -> None:
    verdicts = judge_all(CASE, Trace(ended=End(how=how)))
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


@pytest.mark.parametrize(
    ("end", "where"),
    [
        (End(how=Termination.RAISED, step=2, path="graph", what="AssertionError"), "raised AssertionError in graph"),
        (End(how=Termination.CRASHED, step=0, path="replay", what="SIGABRT"), "crashed SIGABRT in replay"),
        (
            End(how=Termination.CRASHED, step=0, path="replay", what="CUDA error: misaligned address"),
            "raised CUDA error: misaligned address in replay",
        ),
        (End(how=Termination.HUNG, step=1, path="eager"), "hung in eager"),
        (End(how=Termination.CRASHED, what="SIGSEGV"), "crashed SIGSEGV in the session"),
    ],
)
def test_ended_badly_is_told_without_numbers(end: End, where: str) -> None:
    assert told(ended.judge(CASE, replace(SOUND, ended=end))) == (FAIL, where)
    elsewhere = replace(end, step=end.step + 3, detail="other text 123")
    first, second = (ended.judge(CASE, replace(SOUND, ended=each)) for each in (end, elsewhere))
    assert first.fingerprint == second.fingerprint
    assert "123" in second.detail


@pytest.mark.parametrize("how", [Termination.UNSUPPORTED, Termination.ERROR])
def test_what_was_not_run_is_no_failure(how: Termination) -> None:
    verdict = ended.judge(CASE, replace(SOUND, ended=End(how=how, detail="no such release")))
    assert (verdict.status, verdict.where, verdict.detail) == (UNKNOWN, how.value, "no such release")


@pytest.mark.parametrize(
    ("server", "captured", "status"),
    [
        ("7, 1 at once", [2, 4, 6], PASS),
        ("5, 1 at once", [2, 4, 5], PASS),
        ("5, 1 at once", [2, 4], FAIL),
        ("5, 1 at once", [2, 4, 6], FAIL),
        ("3, 2 at once", [2, 4], PASS),
        ("3, 2 at once", [2], FAIL),
        ("6, 1 at once", [2, 4], FAIL),
    ],
)
def test_bucket_says_what_is_captured_in_servers_of_other_sizes(
    server: str, captured: list[int], status: Status
) -> None:
    case = replace(CASE, setup=replace(CASE.setup, capture_bs=(2, 4, 6), slots=7))
    told_of = RecordedArray(step=-1, path="buckets", name=server, array=np.array(captured))
    sizes = bucket.judge(case, replace(SOUND, seen=(told_of,)))
    assert (sizes.where == bucket.CAPTURED) == (status is FAIL)


def test_bucket_names_the_first_wrong_launch() -> None:
    verdict = bucket.judge(CASE, changed(SOUND, PADDED, "launch", "bs", lambda _: np.array(6)))
    assert told(verdict) == (FAIL, "bucket used")
    assert str(verdict.cell) == "step 1 bs[0,0] is 6, expected 4"
    verdict = bucket.judge(CASE, changed(SOUND, 0, "launch", "raw_bs", lambda _: np.array(3)))
    assert told(verdict) == (FAIL, "size of the batch")


def test_each_stale_buffer_is_a_failure_of_its_own_with_its_first_cell() -> None:
    trace = changed(SOUND, PADDED, "launch", "topk_index", put((RAW, 1), 17))
    alone = only(slot0_padding.judge, CASE, trace)
    trace = changed(trace, PADDED, "launch", "req_pool_indices", put(RAW, 4))
    verdicts = {verdict.where: verdict for verdict in slot0_padding.judge(CASE, trace)}
    assert verdicts.keys() == {"padded rows of req_pool_indices", "padded rows of topk_index"}
    assert verdicts[alone.where] == alone, "another one renames nothing"
    for name, verdict in verdicts.items():
        assert verdict.status is FAIL and verdict.cell is not None
        assert (verdict.cell.step, verdict.cell.row) == (PADDED, RAW)
        assert name.endswith(verdict.cell.buffer)


def test_a_failure_is_of_its_runner_and_backend() -> None:
    trace = changed(SOUND, PADDED, "launch", "req_pool_indices", put(RAW, 4))
    names = set()
    for runner, backend in (("draft", "triton"), ("draft", "flashinfer"), ("decode", "triton")):
        case = replace(CASE, setup=replace(CASE.setup, runner=runner, backend=backend))
        [verdict] = [each for each in judge_all(case, trace) if each.oracle == "slot0_padding"]
        assert (verdict.runner, verdict.backend, verdict.status) == (runner, backend, FAIL)
        assert verdict.fingerprint == fingerprint(runner, backend, "slot0_padding", "padded rows of req_pool_indices")
        names.add(verdict.fingerprint)
    assert len(names) == 3


def test_padding_minds_only_the_padded_rows_of_the_launched_bucket() -> None:
    small = Case(setup=SETUP, steps=(FULL, Step(requests=THREE.requests[:1])))
    trace = toy_trace(small)
    # Row 2 of the bucket of 2 is not launched; row 0 is real.
    trace = changed(trace, 1, "launch", "topk_index", put((2, 0), 17))
    trace = changed(trace, 1, "launch", "topk_index", put((0, 0), 17))
    assert only(slot0_padding.judge, small, trace).status is PASS
    trace = changed(trace, 1, "launch", "topk_index", put((1, 0), 17))
    assert only(slot0_padding.judge, small, trace).status is FAIL


def test_a_nan_in_a_padded_row_is_no_neutral_value() -> None:
    trace = changed(SOUND, PADDED, "launch", "hidden_states", put((RAW, 0), np.nan))
    assert only(slot0_padding.judge, CASE, trace).status is FAIL


def test_padding_that_was_not_exercised_is_unknown() -> None:
    full = Case(setup=SETUP, steps=(FULL,))
    trace = toy_trace(full)
    assert told(only(slot0_padding.judge, full, trace)) == (UNKNOWN, "no padding exercised")
    assert overall(judge_all(full, trace)) is PASS


def test_padding_without_a_known_neutral_value_is_unknown() -> None:
    trace = changed(SOUND, PADDED, "neutral", "topk_p", lambda _: None)
    assert told(only(slot0_padding.judge, CASE, trace)) == (UNKNOWN, "neutral value not recorded")


@pytest.mark.parametrize(
    ("name", "shape", "fails"),
    [
        ("seq_lens", (-1,), True),
        ("hidden_states", (-1, 32), True),
        ("mrope_positions", (3, -1), True),
        ("mrope_positions", (3, 0), False),
        ("global_num_tokens_gpu", (-1,), False),
        ("topk_p", (0, 2), False),
    ],
)
def test_staged_sees_a_buffer_that_is_too_short(name: str, shape: tuple[int, ...], fails: bool) -> None:
    """0 and -1 stand for as many entries as there are for the largest bucket, and one less."""
    most = 3 * CASE.setup.max_bs
    assert CASE.setup.max_bs > 1
    sizes = np.array([most + size if size <= 0 else size for size in shape])
    room = RecordedArray(step=-1, path="room", name=name, array=sizes)
    verdicts = staged.judge(CASE, replace(SOUND, seen=(*SOUND.seen, room)))
    assert [v.where for v in verdicts if v.status is FAIL] == [f"real rows of {name}, too few"] * fails


def test_staged_sees_positions_in_too_few_dimensions() -> None:
    most = 3 * CASE.setup.max_bs
    room = RecordedArray(step=-1, path="room", name="mrope_positions", array=np.array([1, most]))
    [verdict] = staged.judge(CASE, replace(SOUND, seen=(*SOUND.seen, room)))
    assert told(verdict) == (FAIL, "real rows of mrope_positions, dimensions")
    assert "mrope_positions has room for positions in 1 dimensions, and there are 3" in verdict.detail


def test_staged_takes_what_the_caller_carries_along_by_request() -> None:
    """A buffer that is no input, and whose rows were filled before: from one row of all, as sglang has it."""

    def with_carried(flat: list[int], launched: list[list[int]]) -> Trace:
        more = [
            RecordedArray(step=PADDED, path="before", name="accept_index", array=np.array(flat)),
            RecordedArray(step=PADDED, path="launch", name="accept_index", array=np.array(launched)),
        ]
        return replace(SOUND, seen=(*SOUND.seen, *more))

    rows = [[1, 2], [3, 4], [5, 6], [0, 0]]
    assert only(staged.judge, CASE, with_carried([1, 2, 3, 4, 5, 6], rows)).status is PASS
    verdict = only(staged.judge, CASE, with_carried([1, 2, 3, 4, 5, 7], rows))
    assert told(verdict) == (FAIL, "real rows of accept_index")
    assert verdict.cell is not None
    assert (verdict.cell.row, verdict.cell.column, verdict.cell.got, verdict.cell.want) == (2, 1, "6", "7")


def test_staged_compares_every_real_row() -> None:
    verdict = only(staged.judge, CASE, changed(SOUND, PADDED, "launch", "topk_p", put((RAW - 1, 1), 0.5)))
    assert told(verdict) == (FAIL, "real rows of topk_p")
    assert verdict.cell is not None
    assert (verdict.cell.row, verdict.cell.column, verdict.cell.got) == (RAW - 1, 1, "0.5")
    assert only(staged.judge, CASE, changed(SOUND, PADDED, "launch", "topk_p", put((RAW, 1), 0.5))).status is PASS


def test_staged_looks_at_seq_lens_cpu_where_it_is_recorded() -> None:
    lengths = SOUND.get(0, "launch", "seq_lens")
    assert lengths is not None
    copied = RecordedArray(step=0, path="launch", name="seq_lens_cpu", array=lengths.copy())
    trace = replace(SOUND, seen=(*SOUND.seen, copied))
    assert only(staged.judge, CASE, trace).status is PASS
    verdict = only(staged.judge, CASE, changed(trace, 0, "launch", "seq_lens_cpu", put(2, 1)))
    assert told(verdict) == (FAIL, "real rows of seq_lens_cpu")


@pytest.mark.parametrize("path", ["graph", "eager"])
def test_kv_writes_names_path_and_owner(path: str) -> None:
    table = SOUND.get(-1, "input", "req_to_token")
    assert table is not None
    astray = int(table[2, 7])  # request slot 2 is not in the padded step

    def more(array: np.ndarray) -> np.ndarray:
        return np.union1d(array, astray)

    verdict = only(kv_writes.judge, CASE, changed(SOUND, PADDED, path, "kv_slots", more))
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
    assert only(kv_writes.judge, case, trace).status is PASS
    moved = changed(trace, 0, "graph", "kv_slots", put(0, 3))
    assert told(only(kv_writes.judge, case, moved)) == (FAIL, "slots not given, graph")
    # Which of the two paths writes there is no difference between graph and eager.
    assert graph_equals_eager.judge(case, moved).status is PASS
    noisy = changed(toy_trace(case, "rounding"), 0, "graph", "kv_slots", put(0, 3))
    assert graph_equals_eager.judge(case, noisy).status is PASS


def test_kv_writes_of_nothing_are_unknown() -> None:
    trace = SOUND
    for step in range(2):
        for path in ("graph", "eager"):
            trace = changed(trace, step, path, "kv_slots", lambda array: array[:0])
    assert told(only(kv_writes.judge, CASE, trace)) == (UNKNOWN, "no KV slot changed")


def test_a_field_may_come_back_as_eager_leaves_it_and_no_other_way() -> None:
    before, after = (SOUND.get(0, path, "positions") for path in ("before", "after_eager"))
    assert before is not None
    assert after is not None
    assert (before + 2 == after).all()
    for leave, want in ((before, PASS), (after, PASS), (before + 1, FAIL)):
        trace = changed(SOUND, 0, "after_graph", "positions", put((), leave))
        assert only(callers_batch.judge, CASE, trace).status is want


def test_a_field_of_another_shape_or_gone_is_told() -> None:
    padded = changed(SOUND, PADDED, "after_graph", "seq_lens", lambda array: np.append(array, 1))
    verdict = only(callers_batch.judge, CASE, padded)
    assert told(verdict) == (FAIL, "the caller's seq_lens")
    assert verdict.cell is not None
    assert (verdict.cell.got, verdict.cell.want) == ("shape (4,)", "shape (3,)")
    gone = changed(SOUND, PADDED, "after_graph", "topk_p", lambda _: None)
    assert told(only(callers_batch.judge, CASE, gone)) == (FAIL, "the caller's topk_p")
    wider = changed(SOUND, PADDED, "after_graph", "seq_lens", lambda array: array.astype(np.int16))
    assert only(callers_batch.judge, CASE, wider).status is PASS


def test_without_the_eager_path_a_moved_field_cannot_be_told() -> None:
    small = Case(setup=SETUP, steps=(THREE,))
    trace = toy_trace(small)
    trace = replace(trace, seen=tuple(s for s in trace.seen if s.path != "after_eager"))
    assert only(callers_batch.judge, small, trace).status is PASS  # by the fields that did not move
    positions = tuple(s for s in trace.seen if s.name == "positions")
    assert only(callers_batch.judge, small, replace(trace, seen=positions)).status is UNKNOWN


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
