"""Each planted bug is caught by the oracle that is meant for it, by name; a sound runner fails none of them."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest

from oracles.catalogue import ALL, judge_all, overall
from repro.cases.case import Case, Request, Setup, Step, Target
from repro.cases.codec import case_to_json
from repro.traces.finding import RAISED, Status
from repro.traces.trace import Termination
from runners.recording.observer import HarnessError, Unsupported
from runners.toy.runner import BUGS
from runners.toy.session import open_session
from tests.builders.project import PROJECT
from tests.builders.toy_traces import OF_OTHERS, Keeper, drawn_cases, toy_trace

SOUND = ("clean", "rounding", "tie", "garbage")

# bug -> every (oracle, where) that fails on it, over all of CASES. The first is the one that is meant for it; the
# others see true consequences. One more or one fewer is a change in what the oracles see.
PADDED_READS = ("kv_indices", "segment of a padded row")
TREE = ("graph_equals_eager", "draft tree")
SLOTS = ("graph_equals_eager", "KV slots written")
WRONG = ("reference", "wrong values")
VALUES = ("graph_equals_eager", "KV values written")
EXPECTED: dict[str, tuple[tuple[str, str], ...]] = {
    "stale_padding": (
        ("slot0_padding", "padded rows of hidden_states"),
        ("slot0_padding", "padded rows of req_pool_indices"),
        ("slot0_padding", "padded rows of topk_index"),
        ("slot0_padding", "padded rows of topk_p"),
        PADDED_READS,
    ),
    "stale_req_pool": (("slot0_padding", "padded rows of req_pool_indices"), PADDED_READS),
    "stale_seq_lens": (
        ("slot0_padding", "padded rows of seq_lens"),
        ("planned", "planned with seq_lens_cpu"),
        ("planned", "planned with seq_lens_sum"),
    ),
    "stale_mirror": (("planned", "planned with seq_lens_cpu"),),
    "sum_of_the_batch": (("planned", "planned with seq_lens_sum"),),
    "row_not_staged": (("staged", "real rows of topk_index"), TREE),
    "kv_indices_short": (
        ("kv_indices", "kv_indices row too narrow"),
        ("metadata_shape", "last entry past the end of a kv_indices row"),
        TREE,
        ("ended", "raised IndexError in replay"),
    ),
    "branches_overlap": (("kv_indices", "segment of a real row"), WRONG),
    "wrong_alike": (WRONG,),
    "guard_overrun": (("kv_indices", "guard band of kv_indptr"),),
    "indptr_off": (("metadata_shape", "length of a real row"), TREE, VALUES),
    "kv_write_astray": (("kv_writes", "slots not given, graph"), SLOTS),
    "eager_write_astray": (("kv_writes", "slots not given, eager"), SLOTS),
    "wrong_bucket": (("bucket", "bucket used"),),
    "caller_left_padded": tuple(
        ("callers_batch", f"the caller's {name}")
        for name in ("batch_size", "positions", "req_pool_indices", "seq_lens")
    ),
    "graph_differs": (TREE,),
    "kv_values_differ": (VALUES,),
    "write_missed": (SLOTS,),
    "raises": (("ended", "raised AssertionError in graph"),),
}
# These end or stop the process, so they are run in one of their own.
DEADLY = {"crash": -signal.SIGABRT, "exit": 0}


def grow_and_shrink() -> Case:
    """The shape of #23037: a full bucket, then a batch that does not fill it, then other slots."""
    setup = Setup(runner="toy", topk=3, num_steps=4, num_draft_tokens=6, capture_bs=(2, 4, 6), slots=7)
    long = [Request(slot=slot, seq_len=50 - slot, data=slot) for slot in range(1, 5)]
    short = [Request(slot=slot, seq_len=3 * slot, data=90 + slot) for slot in (5, 2, 7)]
    return Case(
        setup=setup,
        steps=tuple(Step(requests=tuple(rows)) for rows in (long, short, long[:2], long + short[:1])),
    )


CASES = (grow_and_shrink(), *drawn_cases(16, seed=7))


def test_the_tables_name_every_bug_and_every_oracle() -> None:
    assert set(EXPECTED) | set(SOUND) | set(DEADLY) | {"hang", "unsupported", "broken"} == set(BUGS)
    meant = {row[0][0] for row in EXPECTED.values()}
    assert meant | OF_OTHERS == {judge.__module__.removeprefix("oracles.") for judge in ALL}


@pytest.mark.slow
@pytest.mark.parametrize("bug", EXPECTED)
def test_the_oracle_that_is_meant_catches_it(bug: str) -> None:
    caught: set[tuple[str, str]] = set()
    for case in CASES:
        trace = toy_trace(case, bug)
        verdicts = judge_all(case, trace)
        assert not [verdict for verdict in verdicts if verdict.where == RAISED]
        failed = [verdict for verdict in verdicts if verdict.status is Status.FAIL]
        caught |= {(verdict.oracle, verdict.where) for verdict in failed}
        assert all(verdict.detail for verdict in failed)
        assert all(verdict.cell for verdict in failed if verdict.oracle != "ended")
        # Whenever anything fails, the oracle that is meant does: it never leaves the bug to a mere consequence.
        if failed:
            assert EXPECTED[bug][0][0] in {verdict.oracle for verdict in failed}
    assert caught == set(EXPECTED[bug])


@pytest.mark.parametrize("bug", EXPECTED)
def test_it_shows_in_the_first_case(bug: str) -> None:
    case = CASES[0]
    failed = {v.oracle for v in judge_all(case, toy_trace(case, bug)) if v.status is Status.FAIL}
    assert EXPECTED[bug][0][0] in failed


@pytest.mark.slow
def test_clean_passes_every_case() -> None:
    for case in drawn_cases(100, seed=1):
        trace = toy_trace(case)
        verdicts = judge_all(case, trace)
        assert overall(verdicts) is Status.PASS, (case, verdicts)
        doubted = {verdict.oracle for verdict in verdicts if verdict.status is not Status.PASS}
        padded = any(len(step.requests) not in case.setup.capture_bs for step in case.steps)
        assert doubted - OF_OTHERS == (set() if padded else {"slot0_padding"})


@pytest.mark.slow
def test_rounding_is_measured_and_passes() -> None:
    moved = 0
    for case in drawn_cases(30, seed=2):
        trace = toy_trace(case, "rounding")
        assert overall(judge_all(case, trace)) is Status.PASS, case
        moved += any("eager_nudged_up" in trace.paths(step) for step in range(len(case.steps)))
    # It shows only if some results did differ, in nearly every case.
    assert moved > 25


@pytest.mark.slow
def test_a_true_tie_is_a_doubt_and_no_failure() -> None:
    seen = set()
    for case in drawn_cases(30, seed=3):
        verdicts = judge_all(case, toy_trace(case, "tie"))
        seen |= {
            (v.oracle, v.status, v.where) for v in verdicts if v.status is not Status.PASS and v.oracle not in OF_OTHERS
        }
    assert seen == {
        ("graph_equals_eager", Status.UNKNOWN, "tie"),
        ("slot0_padding", Status.UNKNOWN, "no padding exercised"),
        ("reference", Status.UNKNOWN, "no step asked the reference"),
    }


def test_garbage_on_standard_output_changes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    case = CASES[0]
    assert overall(judge_all(case, toy_trace(case, "garbage"))) is Status.PASS
    assert "{not a reply" in capfd.readouterr().out


def test_the_same_case_runs_alike_alone_and_after_another() -> None:
    target = Target("stale_padding", "toy")
    first, second = CASES[0], Case(setup=CASES[0].setup, steps=CASES[0].steps[1:3])
    shared = Keeper()
    run = open_session(first.setup, target, shared)
    run(first, shared)
    shared.seen.clear()
    run(second, shared)
    alone = toy_trace(second, "stale_padding")
    assert len(alone.seen) == len(shared.seen)
    for alike, other in zip(alone.seen, shared.seen, strict=True):
        assert (alike.step, alike.path, alike.name) == (other.step, other.path, other.name)
        np.testing.assert_array_equal(alike.array, other.array)


@pytest.mark.parametrize(
    ("bug", "kind"), [("unsupported", Unsupported), ("no_such_bug", Unsupported), ("broken", HarnessError)]
)
def test_what_cannot_be_opened(bug: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        open_session(CASES[0].setup, Target(bug, "toy"), Keeper())


def test_a_case_of_another_setup_is_an_error() -> None:
    run = open_session(CASES[0].setup, Target("clean", "toy"), Keeper())
    with pytest.raises(HarnessError, match="another setup"):
        run(CASES[1], Keeper())


def test_a_padded_batch_raises_where_it_is_asked_to() -> None:
    ended = toy_trace(CASES[0], "raises").ended
    assert (ended.how, ended.step, ended.path, ended.what) == (Termination.RAISED, 1, "graph", "AssertionError")


def begin_alone(bug: str) -> subprocess.Popen[bytes]:
    """The first case on this bug in a process of its own, which has got as far as running it."""
    script = (
        f"import sys; sys.path.insert(0, {str(PROJECT)!r})\n"
        "from tests.builders.toy_traces import toy_trace\n"
        "from repro.cases.codec import case_from_json\n"
        f"case = case_from_json({case_to_json(CASES[0])!r})\n"
        "print('begun', flush=True)\n"
        f"toy_trace(case, {bug!r})\nprint('survived', flush=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    return process


@pytest.mark.parametrize("bug", DEADLY)
def test_deadly_bugs_end_the_process(bug: str) -> None:
    with begin_alone(bug) as process:
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (DEADLY[bug], b"")


@pytest.mark.slow
def test_a_hang_does_not_return() -> None:
    with begin_alone("hang") as process:
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                process.communicate(timeout=0.5)
        finally:
            process.kill()
