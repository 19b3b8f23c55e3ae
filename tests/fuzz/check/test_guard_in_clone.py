"""The workflow of docs/check.md in a clean clone of this project, with the steps of the page and of action.yml: all
that a reader of a red check gets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from repro.cases.case import Target
from repro.cases.codec import read
from repro.cases.release_list import NEWEST
from runners.targets.environments import sglang_path
from tests.builders.guard_in_clone import Change, guarded, installed
from tests.builders.project import PROJECT
from tests.builders.workflow import value

# An accepted draft token stays where it was written, and its place in the target's cache is another's.
CHANGE = Change(
    name="one-target-less",
    file="srt/speculative/spec_utils.py",
    old="num_correct_drafts + 1,\n        batch.out_cache_loc,\n        tgt_cache_loc,",
    new="num_correct_drafts,\n        batch.out_cache_loc,\n        tgt_cache_loc,",
)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a || b", "1"),
        ("always() && a != 'x' && b == '1'", True),
        ("a == 'x' && b", ""),
        ("always() && b != '1'", False),
        ("none || 'words'", "words"),
    ],
)
def test_an_expression_is_worth_what_github_says(expression: str, expected: str | bool) -> None:
    assert value(expression, {"a": "", "b": "1"}) in (expected, expected or "")


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_a_pull_request_that_breaks_a_runner(tmp_path: Path) -> None:
    """Only make and the packages that it installs are stood in for: they are those that this test runs with."""
    release = sglang_path(Target(NEWEST, "emulated"))
    inputs = {"runners": "kv_move", "pip-flags": "--no-index"}
    job, green = guarded(tmp_path, release, CHANGE, inputs, **installed(tmp_path / "bin"))
    assert not green and job.codes["check"] == 1 and job.codes["install"] == 0, job.log
    # All that is left of the machine is what it uploads, and prints.
    artifact = tmp_path / "artifacts" / "eagleeye"
    assert {"check.sarif", "junit.xml", "summary.md"} <= {path.name for path in artifact.iterdir()}
    (annotation,) = re.findall(r"^::error (.*?)::", job.log, re.MULTILINE)
    assert annotation.startswith(f"file=python/sglang/{CHANGE.file},line=")
    (result,) = json.loads((artifact / "check.sarif").read_text())["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == f"python/sglang/{CHANGE.file}"
    assert ElementTree.parse(artifact / "junit.xml").getroot().get("failures") != "0"
    page = (artifact / "summary.md").read_text()
    assert page in job.summary.read_text() and page.count("<summary>Case ") == 1
    (command,) = set(re.findall(r"python -m repro run (\S+) --target (\S+@emulated)", page + job.log))
    assert command[1] == "./sglang/python@emulated" and read(artifact / command[0]).case.setup.runner == "kv_move"
    assert (tmp_path / "bin" / "comment-17.md").read_text() == page
    for text in (page, *(line for line in job.log.splitlines() if "repro run" in line or "::error" in line)):
        assert str(tmp_path) not in text and str(PROJECT) not in text
