"""The README shows what its commands print, the patch that is stored, and rows of the table of findings."""

from __future__ import annotations

import re

import pytest

from repro.__main__ import main
from repro.cases.release_list import ADAPTED, NEWEST
from repro.upstream.findings import load
from repro.upstream.patch_table import CANDIDATE_PATCHES
from tests.builders.project import PROJECT
from tests.tools.finding_pages import row

README = (PROJECT / "README.md").read_text()
# A command that the README shows with its output.
SAMPLES = re.findall(r"^\$ \.venv/bin/python -m repro (.*)\n((?:.+\n)+?)```", README, re.M)


def words(text: str) -> str:
    """The text without its line breaks: a table is as wide as the terminal, and the README breaks long lines."""
    return re.sub(r"\s+", "", text)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_the_readme_shows_two_outputs() -> None:
    assert [command.split()[0] for command, _ in SAMPLES] == ["run", "first"]


@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(("command", "output"), SAMPLES, ids=[command.split()[0] for command, _ in SAMPLES])
def test_the_readme_shows_what_its_command_prints(
    command: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"--target {NEWEST}/emulated" in command
    assert main(command.split()) == 1
    assert words(capsys.readouterr().out) == words(output)


def test_the_readme_shows_the_candidate_patch() -> None:
    (patch,) = (patch for patch in CANDIDATE_PATCHES if patch.seed == "multi-layer-stale-padding")
    (block,) = re.findall(r"```diff\n(.*?)```", README, re.S)
    (edit,) = patch.edits
    removed, added = ("".join(line[1:] for line in block.splitlines() if line[0] == sign) for sign in "-+")
    assert (removed.strip(), added.strip()) == (edit.old, edit.new)


def test_the_readme_has_five_rows_of_the_table_of_findings() -> None:
    findings = load()
    shown = [line for line in README.splitlines() if "](docs/findings/" in line and line.startswith("| ")]
    assert len(shown) == 5
    assert set(shown) <= {row(finding, "docs/findings/") for finding in findings if finding.stands}
    assert f"All {len(findings)}, " in README
    assert f"fifteen, {ADAPTED[0]} to {NEWEST}" in README and len(ADAPTED) == 15
