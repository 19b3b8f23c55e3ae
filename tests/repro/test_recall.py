"""The table of real bugs: what it refuses, that every row can be put back, and what is said of the outcomes."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.__main__ import main
from fuzz.aiming import aim_of
from fuzz.commands.recall import Control
from fuzz.draw.aim import why_not
from repro.cases.case import Case, Request, Setup, Step, Target
from repro.recall.results import ERROR, FOUND, MISSED, OUT, Result, by_family, exit_code, markdown, totals
from repro.recall.rows import BadRows, Row, chosen, load
from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Status, Verdict
from repro.traces.trace import End, Termination, Trace
from repro.upstream.edits import Edit, edited
from runners.targets.environments import installed, sglang_path

ROWS = load()
ROW = """
[[row]]
id = "1"
mechanism = "m"
fixed_in = "0.5.11"
family = "padding"
"""


def test_the_rule_gives_enough_rows() -> None:
    assert len([row for row in ROWS if row.kind == "fix"]) >= 80
    assert {row.id.partition("-")[0].isdecimal() for row in ROWS if row.kind == "fix"} == {True}


@pytest.mark.emulated
@pytest.mark.parametrize("row", [row for row in ROWS if row.is_in_reach], ids=lambda row: row.id)
def test_each_row_in_reach_can_be_put_back(row: Row) -> None:
    if row.base not in {release.release for release in installed()}:
        pytest.skip(f"{row.base} is not installed")  # the edits are of its text
    for file in {edit.file for edit in row.edits}:
        text = (sglang_path(Target(row.base, "emulated")) / file).read_text()
        changed = edited(text, [edit for edit in row.edits if edit.file == file])
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ROW, "row 1: a row in reach needs a runner, a backend and an adapted release as base"),
        (ROW + 'out = "o"\nrevert = 23037', "row 1: a row in reach has edits, another one has none"),
        (ROW + 'runner = "draft"\nbackend = "triton"\nbase = "0.5.11"', "row 1: a row in reach has edits"),
        (ROW + 'out = "o"\n' + ROW + 'out = "o"', "row 1 is there twice"),
        (ROW.replace("padding", "colour"), "row 1.family: colour is not one of padding"),
        (ROW + "revert = 7", "row 1.revert: no known fix has the number 7"),
        (ROW + 'out = "o"\nfirst = "found"\nran = "2026-01-01"', "row 1.first: a row in reach that was run has"),
        (ROW + "edit = [{file = 1}]", "row 1.edit 1: function is missing"),
        (ROW + "more = 1", "more"),
        ("[[row]", "at line 1"),
    ],
)
def test_a_bad_table_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "recall.toml"
    path.write_text(text)
    with pytest.raises(BadRows) as refusal:
        load(path)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_row_that_is_not_there_ends_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recall", "--row", "0"]) == ExitCode.ERROR
    assert capsys.readouterr().err.startswith("error: 0: no such row; there are ")


@pytest.mark.emulated("0.5.23")
def test_an_edit_that_no_longer_applies_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edit = Edit(file="sglang/srt/speculative/spec_info.py", function="SpeculativeAlgorithm.is_eagle", old="gone()")
    row = Row(
        id="7", mechanism="m", fixed_in="0.5.23", family="order", runner="draft", backend="triton", base="0.5.23",
        edits=(edit,),
    )  # fmt: skip
    monkeypatch.setattr("fuzz.commands.recall.load", lambda: (row,))
    assert main(["recall"]) == ExitCode.ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: 7 on 0.5.23: sglang/srt/speculative/spec_info.py: 'gone()' is 0 times")


@pytest.mark.parametrize("row", [row for row in ROWS if row.aim], ids=lambda row: row.id)
def test_each_aim_has_a_setup(row: Row) -> None:
    assert why_not(row.runner, row.backend, aim_of(row.aim)) == ""


@pytest.mark.emulated("0.5.23")
def test_an_aim_that_no_setup_has_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = next(row for row in ROWS if "deepseek_v32" in row.aim)  # which rounds drive over fa3 alone
    monkeypatch.setattr("fuzz.commands.recall.load", lambda: (replace(row, backend="flashinfer"),))
    assert main(["recall"]) == ExitCode.ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {row.id}: ")


def test_rows_are_chosen_by_name() -> None:
    assert [row.id for row in chosen(ROWS, ["23037"])] == ["23037"]
    assert chosen(ROWS, []) == ROWS


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ((FOUND, OUT), ExitCode.PASS),
        ((FOUND, MISSED), ExitCode.FAIL),
        ((FOUND, MISSED, ERROR), ExitCode.ERROR),
        ((OUT,), ExitCode.UNKNOWN),
    ],
)
def test_the_worst_outcome_counts(states: tuple[str, ...], code: ExitCode) -> None:
    assert exit_code([Result(row="1", state=state) for state in states]) is code


def test_first_runs_are_counted_by_family_as_the_docs_say() -> None:
    *families, together = by_family(ROWS)
    assert (together.hits, together.misses, together.open, together.out) == tuple(
        sum(getattr(count, field) for count in families) for field in ("hits", "misses", "open", "out")
    )
    table = (Path(__file__).parents[2] / "docs" / "recall.md").read_text()
    for count in (*families, together):
        assert f"| {count.family} | {count.hits} | {count.misses} | {count.open} | {count.out} |" in table


def test_figures_are_of_all_rows_and_of_those_in_reach() -> None:
    results = [
        Result(row="23037", state=FOUND, oracle="slot0_padding", where="rows", case=3, seconds=9.0, rank=1),
        Result(row="25015", state=FOUND, oracle="reference", where="values", case=5, seconds=11.0, rank=6),
        Result(row="26292", state=MISSED, cases=150),
        Result(row="27460", state=OUT),
    ]
    assert list(totals(results)) == [
        "found 2 of 4 (50 %) of all, 2 of 3 (67 %) of those in reach",
        "median: case 4, 10 s",
        "diagnosis: a function that the fix changed comes first in 1 of 2 (50 %), among the first 5 in 1 of 2 (50 %)",
    ]
    table = markdown(ROWS, results, "150 cases each, seed 1.")
    assert "| padding | 1 | 1 | 0 |" in table
    assert "| #23037 | padding | draft/triton | no | slot0_padding: rows | 3 | 9 |  | 1 |" in table
    assert [Result.from_json(result.to_json()) for result in results] == results


@pytest.mark.parametrize(("how", "is_left"), [(Termination.DONE, True), (Termination.RAISED, False)])
def test_a_case_that_the_control_does_not_come_through_says_nothing(how: Termination, is_left: bool) -> None:
    setup = Setup(runner="draft", topk=1, num_steps=3, num_draft_tokens=4, capture_bs=(2,), slots=3)
    case = Case(setup=setup, steps=(Step(requests=(Request(slot=1, seq_len=1, data=0),)),))
    failure = Verdict(oracle="staged", status=Status.FAIL, where="real rows of x")
    ended = End(how=how, step=0, path="graph", what="" if is_left else "AssertionError")
    assert Control(lambda _: Trace(ended=ended)).explain(case, [failure]).left == ((failure,) if is_left else ())
