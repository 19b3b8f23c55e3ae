"""fuzz check: the line that writes a wrong value, here and on the base."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from fuzz.check.location import Location
from fuzz.check.plan import directed
from fuzz.check.written import Written, wrote
from repro.cases.case import Case, Target
from repro.suspects.changed_lines import FILES_MAX, LINES_MAX, Line, changed_lines, naming
from repro.traces.finding import Cell, Finding, Status, Verdict
from repro.traces.trace import End, RecordedArray, Termination, Trace

BASE, BRANCH = Target("0.5.23", "emulated"), Target("/src/branch", "emulated")
HERE, THERE, FIRST = "sglang/a.py:12 in replay", "sglang/a.py:10 in replay", "sglang/a.py:3 in capture"
CASE = directed("draft", "triton")[0].cases[0]
VERDICT = Verdict(
    oracle="staged",
    status=Status.FAIL,
    where="seq_lens",
    cell=Cell(step=1, buffer="seq_lens", row=0, column=0, got="7", want="1"),
    runner="draft",
    backend="triton",
)
Writes = Mapping[int, Sequence[tuple[str, int, int, str]]]


def trace(writes: Writes, launched: Sequence[int] = (7, 7)) -> Trace:
    """A trace of two steps: who wrote, and what seq_lens was at launch."""
    seen = [
        RecordedArray(step=step, path="launch", name=name, array=np.array(value))
        for step, length in enumerate(launched)
        for name, value in (("seq_lens", [length]), ("raw_bs", 1))
    ]
    facts = {f"writes of call {step}": json.dumps(notes) for step, notes in writes.items()}
    return Trace(ended=End(how=Termination.DONE), seen=tuple(seen), facts=facts)


def said(here: Trace, there: Trace | None, verdict: Verdict = VERDICT) -> str:
    finding = Finding(case=CASE, target=BRANCH, verdict=verdict, failed=1, tried=1)

    def judge(case: Case, trace: Trace) -> list[Verdict]:
        return [verdict]

    run_there = (lambda case: there) if there else None
    return wrote(finding, judge, lambda case: here, BASE if there else None, run_there).text


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        ({}, {1: [("seq_lens", 0, 3, THERE)]}, f"{BASE} writes it at {THERE}; here no line does."),
        (
            {0: [("seq_lens", 0, 3, HERE)]},
            {1: [("seq_lens", 0, 3, THERE)]},
            f"{BASE} writes it at {THERE}; here no line does. The value was left by call 0, written by {HERE}.",
        ),
        (
            {1: [("seq_lens", 0, 3, HERE)]},
            {1: [("seq_lens", 0, 3, FIRST), ("seq_lens", 0, 0, THERE), ("seq_lens", 1, 3, FIRST)]},
            f"{BASE} writes it at {THERE}; here it is written at {HERE}.",
        ),
        ({1: [("seq_lens", 0, 3, HERE)]}, {}, f"Here it is written at {HERE}; {BASE} does not write it."),
        ({1: [("seq_lens", 0, 3, HERE)]}, None, f"Here it is written at {HERE}."),
        ({}, {}, "No line of sglang was seen to write it: a compiled kernel does, or nothing."),
    ],
)
def test_the_line_here_and_on_the_base(here: Writes, there: Writes | None, expected: str) -> None:
    assert said(trace(here), trace(there) if there is not None else None) == expected


def test_a_value_that_is_no_input_buffers_has_no_line() -> None:
    output = Verdict(oracle="graph_equals_eager", status=Status.FAIL, where="logits", runner="draft", backend="triton")
    assert said(trace({}), trace({}), output) == ""


def test_an_error_has_the_line_that_raised_it() -> None:
    ended = Verdict(oracle="ended", status=Status.FAIL, where="raised", runner="draft", backend="triton")
    detail = 'File "/x/sglang/srt/a.py", line 5, in replay\nValueError: no'
    raised = Trace(ended=End(how=Termination.RAISED, what="ValueError", detail=detail))
    assert said(raised, trace({}), ended) == "It came out at sglang/srt/a.py:5 in replay."


REMOVED = "Lines that the change removes and that name it: sglang/srt/a.py:2, 3."
ADDED = "Lines that the change has and that name it: sglang/srt/a.py:3."


def tree(folder: Path, text: str) -> Path:
    (folder / "sglang" / "srt").mkdir(parents=True)
    (folder / "sglang" / "srt" / "a.py").write_text(text)
    return folder


def test_changed_lines_that_name_the_buffer_are_told(tmp_path: Path) -> None:
    base = tree(tmp_path / "base", "one\nbuffers.seq_lens.copy_(\n    seq_lens)\nthree\nfour\n")
    gone = tree(tmp_path / "gone", "one\nthree\nfour\n")
    other = tree(tmp_path / "other", "zero\none\nbuffers.seq_lens.fill_(0)\nthree\n5\n")
    assert naming("seq_lens", changed_lines(base, gone)) == REMOVED
    assert naming("seq_lens", changed_lines(base, other)) == ADDED
    assert naming("lens", changed_lines(base, other)) == "" and changed_lines(base, base) == []
    lines = [Line(file="sglang/srt/a.py", number=number, text="seq_lens") for number in range(LINES_MAX + 1)]
    assert naming("seq_lens", lines) == ""
    written = {1: [("seq_lens", 0, 3, HERE)]}
    finding = Finding(case=CASE, target=BRANCH, verdict=VERDICT, failed=1, tried=1)
    changed = changed_lines(base, gone)
    texts = wrote(finding, lambda case, trace: [VERDICT], lambda case: trace(written), None, None, changed)
    assert texts == Written(
        text=f"Here it is written at {HERE}. {REMOVED}", location=Location(file="sglang/a.py", line=12)
    )
    # Without a line that writes it, the one that stands where the change removed its buffer.
    line = wrote(finding, lambda case, trace: [VERDICT], lambda case: trace({}), None, None, changed)
    assert line.location == Location(file="sglang/srt/a.py", line=2)
    line = wrote(finding, lambda case, trace: [VERDICT], lambda case: trace({}), None, None)
    assert line.location is None


def test_where_no_line_is_known_it_is_the_change(tmp_path: Path) -> None:
    base, here = tree(tmp_path / "base", "one\ntwo\n"), tree(tmp_path / "here", "one\n2\n")
    finding = Finding(case=CASE, target=BRANCH, verdict=VERDICT, failed=1, tried=1)
    changed = changed_lines(base, here)
    line = wrote(finding, lambda case, trace: [VERDICT], lambda case: trace({}), None, None, changed)
    assert line.location == Location(file="sglang/srt/a.py", line=2)
    assert line.text.endswith("The change begins at sglang/srt/a.py:2.")


def test_of_a_change_of_many_files_no_line_is_told(tmp_path: Path) -> None:
    base, here = tree(tmp_path / "base", "one\n"), tree(tmp_path / "here", "one\n")
    for number in range(FILES_MAX + 1):
        (here / "sglang" / "srt" / f"b{number}.py").write_text("seq_lens\n")
    assert changed_lines(base, here) == []
