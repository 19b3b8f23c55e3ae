"""Candidate patches: if one fixes its seed, and its text as a diff."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Status
from repro.upstream.edits import edited
from repro.upstream.patch_table import CandidatePatch
from repro.upstream.prove import Result


def problem(published: Result, repaired: Result) -> str:
    """Why the patch does not fix the failure; "" if it does. Other failures of the same case are ignored."""
    for name, answer in (("as published", published), ("repaired", repaired)):
        if answer.status is None or answer.status is Status.UNKNOWN:
            return f"{name}: {answer.text}"
    if published.verdict is None:
        return f"does not fail as published: {published.text}"
    return f"fails as before: {repaired.text}" if repaired.verdict else ""


def exit_code(published: Result, repaired: Result) -> ExitCode:
    if published.status is None or repaired.status is None:
        return ExitCode.ERROR
    return ExitCode.FAIL if problem(published, repaired) else ExitCode.PASS


def lines(repair: CandidatePatch, targets: tuple[str, str], published: Result, repaired: Result) -> Iterator[str]:
    """For a person. targets: as published, and with the change."""
    wrong = problem(published, repaired)
    yield f"{repair.seed} on {targets[0]}: {'NOT SHOWN' if wrong else 'shown'}: {repair.why}"
    if wrong:
        yield f"  {wrong}"
        return
    yield f"  as published it fails by {repair.oracle}: {published.failed} of {published.tried} runs"
    rest = "passes" if repaired.status is Status.PASS else f"fails no more by {repair.oracle}, but for other bugs"
    yield f"  with the change it {rest}: {targets[1]}"


def patch(repair: CandidatePatch, release: Path) -> Iterator[str]:
    """A unified diff's lines. release: its import path. EditNotFound if an edit has no place there; OSError if a
    file is missing."""
    for file in dict.fromkeys(edit.file for edit in repair.edits):
        text = (release / file).read_text()
        after = edited(text, [edit for edit in repair.edits if edit.file == file])
        yield from difflib.unified_diff(text.splitlines(), after.splitlines(), f"a/{file}", f"b/{file}", lineterm="")
