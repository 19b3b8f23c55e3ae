"""The folder of findings: one file for a target and fingerprint, and nothing that was found is ever gone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from repro.cases import codec
from repro.cases.case import Case, Request, Setup, Step, Target
from repro.shrinking.store import keep
from repro.traces.finding import Cell, Finding, Status, Verdict

SETUP = Setup(runner="draft", topk=1, num_steps=2, num_draft_tokens=3, capture_bs=(4,), slots=4)


def batches(*sizes: int) -> Case:
    steps = (Step(requests=tuple(Request(slot=n + 1, seq_len=3, data=n) for n in range(size))) for size in sizes)
    return Case(setup=SETUP, steps=tuple(steps))


FIRST, SMALLER, SMALLEST, LARGER = batches(4, 3, 2), batches(3, 2), batches(2, 1), batches(4, 4, 4)
VERDICT = Verdict(
    oracle="slot0_padding",
    status=Status.FAIL,
    where="padded rows of topk_p",
    detail="Row 2 is 7\n\x1b[31minstead of 0." + "x" * 5000,
    cell=Cell(step=1, buffer="topk_p", row=2, column=0, got="7", want="0"),
)
FOUND = Finding(case=FIRST, target=Target("0.5.13", "emulated"), verdict=VERDICT, failed=0, tried=0)


def stored(folder: Path) -> dict[str, Case]:
    """Every file of the folder that is a seed, by name."""
    return {str(path.relative_to(folder)): codec.read(path).case for path in folder.rglob("*.json")}


def test_a_finding_is_one_file_that_says_what_was_seen(tmp_path: Path) -> None:
    path = keep(tmp_path / "new" / "folder", FOUND)
    assert path == tmp_path / "new" / "folder" / "0.5.13-emulated" / f"slot0_padding-{VERDICT.fingerprint}.json"
    seed = codec.read(path)
    assert seed.case == FIRST
    assert seed.about["found"] == "0.5.13/emulated"
    assert seed.about["where"] == "padded rows of topk_p"
    assert seed.about["cell"] == "step 1 topk_p[2,0] is 7, expected 0"
    assert str(seed.about["detail"]).startswith("Row 2 is 7 ?[31minstead of 0.xxx")
    assert seed.about["failed"] == "seen, not confirmed"
    assert "shrunk_from" not in seed.about


def test_better_forms_take_its_place_and_the_first_one_stays_beside_it(tmp_path: Path) -> None:
    path = keep(tmp_path, FOUND)
    for case in (SMALLER, SMALLEST):
        assert keep(tmp_path, replace(FOUND, case=case)) == path
    assert keep(tmp_path, replace(FOUND, case=SMALLEST, failed=3, tried=5)) == path
    seed = codec.read(path)
    assert seed.case == SMALLEST
    assert seed.about["failed"] == "3 of 5 runs in fresh processes"
    assert seed.about["shrunk_from"] == codec.digest(FIRST)
    first = path.with_suffix(f".{codec.digest(FIRST)}.json")
    assert sorted(path.parent.iterdir()) == sorted([path, first])
    assert codec.read(first).case == FIRST


def test_a_larger_case_of_a_later_campaign_does_not_push_the_smallest_out(tmp_path: Path) -> None:
    path = keep(tmp_path, FOUND)
    keep(tmp_path, replace(FOUND, case=SMALLEST))
    keep(tmp_path, replace(FOUND, case=LARGER))
    assert codec.read(path).case == LARGER
    assert set(stored(tmp_path).values()) == {FIRST, SMALLEST, LARGER}
    keep(tmp_path, replace(FOUND, case=SMALLER))
    assert codec.read(path).case == SMALLER
    assert codec.read(path).about["shrunk_from"] == codec.digest(LARGER)
    assert set(stored(tmp_path).values()) == {FIRST, SMALLEST, LARGER, SMALLER}


def test_the_same_case_again_changes_nothing_but_what_is_said(tmp_path: Path) -> None:
    path = keep(tmp_path, FOUND)
    before = path.read_text()
    assert keep(tmp_path, FOUND) == path
    assert path.read_text() == before
    assert len(stored(tmp_path)) == 1


def test_other_targets_and_other_failures_have_files_of_their_own(tmp_path: Path) -> None:
    checkout = Target("/src/sglang/python", "cuda")
    paths = {
        keep(tmp_path, FOUND),
        keep(tmp_path, replace(FOUND, target=Target("0.5.13", "cuda"))),
        keep(tmp_path, replace(FOUND, target=checkout)),
        keep(tmp_path, replace(FOUND, verdict=replace(VERDICT, where="padded rows of seq_lens"))),
    }
    assert len(paths) == 4
    assert all(path.is_relative_to(tmp_path) for path in paths)
    assert len(stored(tmp_path)) == 4


def test_a_file_that_is_no_seed_any_more_is_put_aside_not_lost(tmp_path: Path) -> None:
    path = keep(tmp_path, FOUND)
    path.write_text("edited by hand, badly")
    assert keep(tmp_path, replace(FOUND, case=SMALLER)) == path
    assert codec.read(path).case == SMALLER
    assert path.with_suffix(".unreadable").read_text() == "edited by hand, badly"


@pytest.mark.parametrize("dies_at", range(1, 17))
def test_dying_at_any_write_loses_no_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int) -> None:
    """Whatever kills the process, the best form is the one before or the one being kept, and first forms stay."""
    forms = (FIRST, SMALLER, SMALLEST, LARGER, FIRST, SMALLER)
    kept = 0
    flushes = 0

    def flush(handle: int) -> None:
        nonlocal flushes
        flushes += 1
        if flushes == dies_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", flush)
    with pytest.raises(KeyboardInterrupt):
        for case in forms:
            keep(tmp_path, replace(FOUND, case=case))
            kept += 1
    files = stored(tmp_path)
    best = files.pop(f"0.5.13-emulated/slot0_padding-{VERDICT.fingerprint}.json", None)
    assert best in ((forms[kept - 1], forms[kept]) if kept else (None, FIRST))
    assert {case for case in forms[:kept] if case in (FIRST, LARGER)} <= {best, *files.values()}
