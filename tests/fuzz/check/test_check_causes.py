"""fuzz check: new failures by their cause."""

from __future__ import annotations

from fuzz.check.causes import Failing, causes
from fuzz.check.plan import directed
from repro.cases.case import Case
from repro.traces.finding import Cell, Status, Verdict

# An oracle, a step and a buffer.
Failure = tuple[str, int, str]
STAGED: Failure = ("staged", 0, "seq_lens")
DRAFT, *OTHERS = directed("draft", "triton")[1]
FIRST, SECOND, THIRD = (item.cases[0] for item in (DRAFT, *OTHERS[:2]))


def failing(item: str, case: Case, *failures: Failure) -> Failing:
    verdicts = (
        Verdict(
            oracle=oracle,
            status=Status.FAIL,
            where=f"rows of {buffer}",
            cell=Cell(step=step, buffer=buffer, row=2, column=0, got="7", want="1"),
            runner=case.setup.runner,
            backend=case.setup.backend,
        )
        for oracle, step, buffer in failures
    )
    return Failing(item=item, case=case, failures=tuple(verdicts))


def test_failures_are_grouped_by_the_first_wrong_value_of_the_earliest_step() -> None:
    groups = causes(
        [
            failing("a", FIRST, ("kv_reads", 1, "kv"), STAGED),
            failing("b", SECOND, ("bucket", 0, "global_num_tokens_gpu")),
            failing("c", THIRD, ("kv_reads", 0, "kv")),
        ]
    )
    assert [(cause.first.oracle, [case.item for case in cause.cases]) for cause in groups] == [
        ("staged", ["a", "c"]),
        ("bucket", ["b"]),
    ]
    assert groups[0].consequences == ("kv_reads at rows of kv",)
    assert groups[0].name == "draft-triton-staged-rows-of-seq_lens"


def test_two_causes_that_show_each_other_are_one_and_lose_no_case() -> None:
    groups = causes(
        [
            failing("a", FIRST, STAGED, ("kv_reads", 1, "kv")),
            failing("b", SECOND, ("kv_reads", 0, "kv"), ("staged", 1, "seq_lens")),
        ]
    )
    assert len(groups) == 1
    assert sorted(case.item for cause in groups for case in cause.cases) == ["a", "b"]


def test_the_same_buffer_on_two_backends_is_one_cause_and_on_two_runners_two() -> None:
    flashinfer, decode = (directed(*pair)[0].cases[0] for pair in (("draft", "flashinfer"), ("decode", "fa3")))
    groups = causes([failing("", case, STAGED) for case in (FIRST, flashinfer, decode)])
    assert [cause.backends for cause in groups] == [("triton", "flashinfer"), ("fa3",)]
