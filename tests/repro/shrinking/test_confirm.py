"""k of n: what counts as the same failure, what does not count at all, and the one line that says it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from repro.cases.case import Case, Request, Setup, Step, Target
from repro.shrinking.confirm import confirm, failure
from repro.shrinking.replay import AS_EXPECTED, Outcome, beside_expected, line, outcome_of, to_json
from repro.traces.exit_codes import severest
from repro.traces.finding import ENDED, Cell, Status, Verdict, worst
from repro.traces.trace import End, Termination, Trace

CASE = Case(
    setup=Setup(runner="toy", topk=1, num_steps=2, num_draft_tokens=3, capture_bs=(1,), slots=1),
    steps=(Step(requests=(Request(slot=1, seq_len=1, data=0),)),),
)
TARGET = Target("clean", "toy")
SEED = Path("seeds/a.json")
PADDING = Verdict(oracle="slot0_padding", status=Status.FAIL, where="padded rows of topk_p", detail="row 2 is 7")
ELSEWHERE = Verdict(oracle="slot0_padding", status=Status.FAIL, where="padded rows of seq_lens")
FINE = Verdict(oracle="slot0_padding", status=Status.PASS)
DOUBT = Verdict(oracle="graph_equals_eager", status=Status.UNKNOWN, where="a tie")

Verdicts = Sequence[Verdict]


def runs(*verdicts_of_runs: Verdicts | None) -> tuple[Callable[[Case], Trace], Callable[[Case, Trace], Verdicts]]:
    """run and judge such that the runs come to these verdicts, one after the other; None is a run that was not made."""
    left = list(verdicts_of_runs)

    def run(case: Case) -> Trace:
        assert case == CASE
        how = Termination.ERROR if left[0] is None else Termination.DONE
        number = len(verdicts_of_runs) - len(left)
        if how is Termination.ERROR:
            left.pop(0)
        return Trace(ended=End(how=how, detail="a\nno kernel here\n"), facts={"number": str(number)})

    def judge(case: Case, trace: Trace) -> Verdicts:
        assert trace.ended.how is Termination.DONE, "a run that was not made was judged"
        verdicts = left.pop(0)
        assert verdicts is not None
        return verdicts

    return run, judge


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([[PADDING], [PADDING], [PADDING]], (3, 3)),
        ([[PADDING], [FINE], [DOUBT, PADDING]], (2, 3)),
        ([[ELSEWHERE], [ELSEWHERE, FINE], [DOUBT]], (0, 3)),
        ([[PADDING], None, [FINE]], (1, 2)),
        ([None, None, None], (0, 0)),
        ([[], [], [FINE]], (0, 3)),
    ],
)
def test_only_the_same_failure_counts_and_only_runs_that_took_place(
    verdicts: list[Verdicts | None], expected: tuple[int, int]
) -> None:
    run, judge = runs(*verdicts)
    assert confirm(run, judge, CASE, PADDING.fingerprint, 3) == expected


def test_a_doubt_about_the_same_place_is_no_failure() -> None:
    doubt = Verdict(oracle=PADDING.oracle, status=Status.UNKNOWN, where=PADDING.where)
    assert doubt.fingerprint == PADDING.fingerprint
    assert failure([doubt, FINE], PADDING.fingerprint) is None
    assert failure([doubt, ELSEWHERE, PADDING], PADDING.fingerprint) is PADDING
    assert failure([doubt, ELSEWHERE, PADDING]) is ELSEWHERE


def outcome(*verdicts: Verdicts | None) -> Outcome:
    run, judge = runs(*verdicts)
    return outcome_of(SEED, CASE, TARGET, run, judge, worst, len(verdicts))


@pytest.mark.parametrize(
    ("verdicts", "release", "text"),
    [
        ([[PADDING]], "0.5.10.post1", AS_EXPECTED),
        ([[FINE]], "0.5.10.post1", "expected to fail by slot0_padding"),
        ([[replace(PADDING, oracle="memory")]], "0.5.10.post1", "expected to fail by slot0_padding"),
        ([[replace(PADDING, oracle="memory"), PADDING]], "0.5.10.post1", AS_EXPECTED),
        ([[FINE], [FINE]], "0.5.13", AS_EXPECTED),
        ([[FINE], [PADDING]], "0.5.13", "expected to pass"),
        ([[DOUBT]], "0.5.13", ""),
        ([None], "0.5.13", ""),
        ([[FINE]], "0.5.12", ""),
        ([[FINE]], "/src/sglang/python", ""),
    ],
)
def test_what_a_seed_expects_stands_beside_the_outcome(
    verdicts: list[Verdicts | None], release: str, text: str
) -> None:
    about = {"expect": {"<0.5.11": "fail by slot0_padding", ">=0.5.13": "pass"}}
    result = replace(outcome(*verdicts), target=Target(release, "emulated"))
    assert beside_expected(result, about) == text


ENDED_WELL = Verdict(oracle=ENDED, status=Status.PASS)
CRASHED = Verdict(oracle=ENDED, status=Status.FAIL, where="crashed")


@pytest.mark.parametrize(
    ("verdicts", "engine", "text"),
    [
        ([[ENDED_WELL, FINE]], "cuda", AS_EXPECTED),
        ([[ENDED_WELL]], "cuda", ""),
        ([[ENDED_WELL, replace(PADDING, oracle="memory")]], "cuda", ""),
        ([[ENDED_WELL]], "emulated", "expected to fail by kv_reads"),
        ([[CRASHED]], "cuda", "expected to fail by kv_reads"),
        ([[ENDED_WELL], [CRASHED]], "cuda", "expected to fail by kv_reads"),
        (
            [[ENDED_WELL, replace(PADDING, oracle="kv_reads", status=Status.PASS)]],
            "cuda",
            "expected to fail by kv_reads",
        ),
    ],
)
def test_of_an_oracle_that_a_gpu_does_not_ask_nothing_is_expected_there(
    verdicts: list[Verdicts | None], engine: str, text: str
) -> None:
    """But for a run that did not come to its end, in which nothing may have been recorded for that reason."""
    about = {"expect": {"==0.5.10": "fail by slot0_padding", ">0.5.10": "fail by kv_reads"}}
    result = replace(outcome(*verdicts), target=Target("0.5.23", engine))
    assert beside_expected(result, about if text != AS_EXPECTED else {"expect": {">0.5.10": "pass"}}) == text


@pytest.mark.parametrize(
    ("verdicts", "code", "text"),
    [
        ([[FINE]], 0, "PASS seeds/a.json on clean/toy: failed 0 of 1 runs"),
        ([[FINE], [FINE], None], 3, "PASS seeds/a.json on clean/toy: failed 0 of 2 runs"),
        (
            [[PADDING], [FINE], [PADDING]],
            1,
            "FAIL seeds/a.json on clean/toy: slot0_padding at padded rows of topk_p: 2 of 3 runs",
        ),
        (
            [[ELSEWHERE], [DOUBT, PADDING], [PADDING]],
            1,
            "FAIL seeds/a.json on clean/toy: slot0_padding at padded rows of topk_p: 2 of 3 runs, and 1 other failure",
        ),
        (
            [[FINE], [FINE, DOUBT]],
            2,
            "UNKNOWN seeds/a.json on clean/toy: graph_equals_eager: a tie: failed 0 of 2 runs",
        ),
        ([[]], 2, "UNKNOWN seeds/a.json on clean/toy: no oracle had anything to judge: failed 0 of 1 runs"),
        ([None, None], 3, "ERROR seeds/a.json on clean/toy: no kernel here"),
    ],
)
def test_one_line_and_the_exit_code(verdicts: list[Verdicts | None], code: int, text: str) -> None:
    result = outcome(*verdicts)
    assert (result.exit_code, line(result)) == (code, text)


def test_of_failures_seen_equally_often_the_first_oracle_is_named() -> None:
    assert outcome([ELSEWHERE, PADDING], [ELSEWHERE, PADDING]).verdict == ELSEWHERE
    assert outcome([ELSEWHERE, PADDING], [PADDING]).verdict == PADDING


@pytest.mark.parametrize(
    ("codes", "worst_of_them"),
    [([], 0), ([0, 0], 0), ([0, 2], 2), ([2, 1, 0], 1), ([1, 3], 3), ([3, 2, 1, 0], 3), ([2, 0, 2], 2)],
)
def test_our_own_error_outweighs_a_finding_and_a_finding_a_doubt(codes: list[int], worst_of_them: int) -> None:
    assert severest(codes) == worst_of_them


def test_the_json_form_holds_every_verdict_of_every_run() -> None:
    cell = Cell(step=1, buffer="topk_p", row=2, column=0, got="7", want="0")
    wrong = Verdict(oracle="slot0_padding", status=Status.FAIL, where="topk_p", detail="row 2", cell=cell)
    form = json.loads(json.dumps(to_json(outcome([wrong, DOUBT], [FINE, DOUBT]))))
    assert (form["status"], form["oracle"], form["where"]) == ("FAIL", "slot0_padding", "topk_p")
    assert (form["failed"], form["tried"], form["fingerprint"]) == (1, 2, wrong.fingerprint)
    assert [[verdict["status"] for verdict in run] for run in form["runs"]] == [
        ["FAIL", "UNKNOWN"],
        ["PASS", "UNKNOWN"],
    ]
    assert form["runs"][0][0]["cell"]["got"] == "7"
    assert form["facts"] == {"number": "1"}
    assert json.loads(json.dumps(to_json(outcome(None))))["status"] == "ERROR"
