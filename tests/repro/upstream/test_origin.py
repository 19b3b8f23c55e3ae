"""The origin of a wrong value: the line that wrote it, or the earlier call that left it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pytest

from repro.__main__ import main
from repro.cases.case import Case, Request, Setup, Step
from repro.shrinking.origin import FACT, lines, origin
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.trace import End, RecordedArray, Termination, Trace
from repro.upstream.fixes import SEEDS

SETUP = Setup(runner="toy", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(2,), slots=3)
CASE = Case(
    setup=SETUP,
    steps=(
        Step(requests=(Request(slot=1, seq_len=1, data=0), Request(slot=3, seq_len=1, data=0))),
        Step(requests=(Request(slot=1, seq_len=1, data=0),)),
    ),
)
STALE = Cell(step=1, buffer="slots", row=1, column=0, got="3", want="0")
COPY, FILL = "sglang/srt/runner.py:12 in replay", "sglang/srt/runner.py:9 in replay"


def trace(
    writes: Mapping[int, list[tuple[str, int, int, str]]], slots: tuple[list[int], list[int]] = ([1, 3], [1, 3])
) -> Trace:
    """Two calls, of two requests and of one, that launched with these slots."""
    seen = [
        RecordedArray(step=n, path="launch", name="slots", array=np.array(values)) for n, values in enumerate(slots)
    ]
    seen += [
        RecordedArray(step=n, path="launch", name="raw_bs", array=np.array(count)) for n, count in enumerate((2, 1))
    ]
    facts = {f"{FACT}{step}": json.dumps(made) for step, made in writes.items()}
    return Trace(ended=End(how=Termination.DONE), seen=tuple(seen), facts=facts)


def verdict(cell: Cell) -> Verdict:
    return Verdict(oracle="slot0_padding", status=Status.FAIL, where="padded rows of slots", cell=cell)


def test_a_stale_value_is_traced_to_the_call_that_left_it() -> None:
    place = origin(CASE, trace({0: [("slots", 0, 1, COPY)], 1: [("slots", 0, 0, COPY)]}), [verdict(STALE)])
    assert place and (place.padded, place.writer, place.left_by, place.left_at, place.left_slot) == (
        True,
        None,
        0,
        COPY,
        3,
    )
    assert list(lines(place)) == [
        "first wrong: step 1 slots[1,0] is 3, expected 0 (slot0_padding), a padded row",
        f"in call 1, row 0 of slots written by {COPY}",
        f"no write of that call reached the row: its value was left by call 0, of request slot 3, written by {COPY}",
    ]


def test_a_value_that_this_call_wrote_names_its_line() -> None:
    writes = {0: [("slots", 0, 1, COPY)], 1: [("slots", 0, 1, FILL), ("other", 1, 1, COPY), ("slots", 0, 0, COPY)]}
    place = origin(CASE, trace(writes), [verdict(STALE)])
    assert place and place.writer and place.writer.place == FILL
    assert list(lines(place))[-1] == f"so the value was written by {FILL}"


def test_another_value_was_not_left_by_that_call() -> None:
    writes = {0: [("slots", 0, 1, COPY)], 1: [("slots", 0, 0, COPY)]}
    place = origin(CASE, trace(writes, ([1, 2], [1, 3])), [verdict(STALE)])
    assert place and place.left_by == -1
    assert list(lines(place))[-1].startswith("no write into that row was seen in any call")


def test_what_was_not_watched_has_no_origin() -> None:
    other = Cell(step=1, buffer="kv_indices", row=0, column=0, got="1", want="2")
    assert origin(CASE, trace({}), [verdict(other)]) is None
    assert origin(CASE, trace({}), [Verdict(oracle="ended", status=Status.FAIL, where="SIGSEGV")]) is None


@pytest.mark.exhaustive
@pytest.mark.emulated("0.5.12.post1")
def test_on_real_sglang(capsys: pytest.CaptureFixture[str]) -> None:
    seed = str(SEEDS / "pr26292-decode.json")
    assert main(["first", seed, "--target", "0.5.12.post1/emulated"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "first wrong: step 1 req_pool_indices[1,0] is 2, expected 0 (slot0_padding), a padded row"
    left = (
        "no write of that call reached the row: its value was left by call 0, of request slot 2, written by sglang/srt/"
    )
    assert any(line.startswith(left) for line in printed)
    suspects = printed[printed.index("likeliest to hold the mistake:") + 1 :]
    assert "CudaGraphRunner.replay_prepare" in suspects[-1] and len(suspects) <= 5
