"""action.yml: its shell lines run with stand-ins for make and Python, which note their words; our own parsers take
every command, and the step ends with the check's exit code."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from fuzz.__main__ import options_of as fuzz_options
from repro.cases.release_list import ADAPTED
from runners.commands.options import options_of as runners_options
from tests.builders.guard_in_clone import commit, git
from tests.builders.project import PROJECT
from tests.builders.workflow import PLAYS, Job

ACTION: dict[str, Any] = yaml.safe_load((PROJECT / "action.yml").read_text())
# Notes its words, a line of JSON a call; says which releases are adapted; ends a check as EXIT says.
STAND_IN = """#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done >> "$LOG"
echo END >> "$LOG"
case "$*" in
  *"facts --releases"*) echo "RELEASES" ;;
  *"fuzz check"*) exit "${EXIT:-0}" ;;
esac
"""


class Workspace:
    """A runner's folders: a repository of sglang, its base, the action, and stand-ins on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.action = folder / "action"
        self.base = folder / "workspace" / "base"
        for path in ("bin", "workspace/sglang", "workspace/base", "action/.venv/bin", "action/requirements"):
            (folder / path).mkdir(parents=True)
        for path in ("bin/make", "bin/python", "action/.venv/bin/python"):
            (folder / path).write_text(STAND_IN.replace("RELEASES", " ".join(ADAPTED)))
            (folder / path).chmod(0o755)
        (self.action / "Makefile").write_text("")
        (self.action / "action.yml").symlink_to(PROJECT / "action.yml")
        (folder / "workspace" / "b.py").write_text("")
        git(self.base, "init", "-q")
        commit(self.base, "base")

    def run(self, inputs: dict[str, str], exit_code: int = 0) -> tuple[list[list[str]], dict[str, str], list[int]]:
        """All words of each call, the outputs of the steps, the exit codes of scripts; none after one that fails."""
        self.log.write_text("")
        variables = {"LOG": str(self.log), "EXIT": str(exit_code)}
        job = Job(
            folder=self.folder,
            github={},
            ours=self.action,
            plays=PLAYS,
            path=[self.folder / "bin"],
            variables=variables,
        )
        assert job.run([{"uses": "OWNER/eagleeye@COMMIT", "with": {"path": "sglang"} | inputs}]) is not bool(exit_code)
        calls = [call.splitlines() for call in self.log.read_text().split("END\n")[:-1]]
        scripts = [step["id"] for step in ACTION["runs"]["steps"] if "run" in step]
        return calls, job.action_outputs, [job.codes[name] for name in scripts if name in job.codes]


def of(calls: Sequence[Sequence[str]], package: str) -> list[list[str]]:
    return [list(call[2:]) for call in calls if call[:2] == ["-m", package]]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


@pytest.mark.parametrize(
    ("inputs", "release", "expected"),
    [
        ({}, "", {"base": None, "unknown": "", "only_changed": None, "runners": []}),
        ({"base": "0.5.22", "unknown": "pass"}, "0.5.22", {"unknown": "pass"}),
        ({"base": "base", "only-changed": "HEAD~1"}, "", {"only_changed": ["HEAD~1"]}),
        ({"runners": "draft decode"}, "", {"runners": ["draft", "decode"]}),
        ({"only-changed": "a.py *.py"}, "", {"only_changed": ["a.py", "*.py"]}),
    ],
)
def test_our_parsers_take_every_command(
    workspace: Workspace, inputs: dict[str, str], release: str, expected: dict[str, object]
) -> None:
    calls, outputs, codes = workspace.run(inputs)
    assert codes == [0, 0, 0]
    facts, install = (runners_options(words) for words in of(calls, "runners"))
    assert facts.releases == "adapted"
    assert install.releases == [ADAPTED[-1], *filter(None, [release])]
    (words,) = of(calls, "fuzz")
    options = fuzz_options(words)
    assert options.checked.sglang == str(workspace.folder / "workspace" / "sglang")
    assert {name: getattr(options, name) for name in expected} == expected
    if base := inputs.get("base"):
        assert options.base.sglang == (base if release else str(workspace.base))
    out = Path(outputs["steps.prepare.outputs.out"])
    assert out.is_dir() and options.out == out
    assert {options.summary.parent, options.junit.parent, options.sarif.parent} == {out}
    assert outputs["steps.check.outputs.exit-code"] == "0"


@pytest.mark.parametrize("exit_code", [1, 2, 3])
def test_the_step_ends_with_the_code_of_the_check(workspace: Workspace, exit_code: int) -> None:
    _, outputs, codes = workspace.run({}, exit_code)
    assert codes == [0, 0, exit_code] and outputs["steps.check.outputs.exit-code"] == str(exit_code)


def test_the_cache_is_of_one_base_and_one_eagleeye(workspace: Workspace) -> None:
    def key(base: str) -> tuple[str, str]:
        outputs = workspace.run({"base": base})[1]
        return outputs["steps.prepare.outputs.eagleeye"], outputs["steps.prepare.outputs.base"]

    first = key("base")
    assert first == key("base") and re.fullmatch("[0-9a-f]{40}", first[1])
    assert key("0.5.22") == (first[0], "0.5.22")
    (workspace.action / "Makefile").write_text("changed:")
    assert key("base")[0] != first[0]


def test_no_text_of_an_input_is_a_part_of_a_script() -> None:
    steps = ACTION["runs"]["steps"]
    scripts = [step["run"] for step in steps if "run" in step]
    assert len(scripts) == 3 and all("${{" not in script for script in scripts)
    used = re.findall(r"(?:inputs|steps\.\w+\.outputs)\.([\w-]+)", json.dumps(ACTION))
    assert set(ACTION["inputs"]) <= set(used)


def test_the_page_uses_inputs_that_the_action_has_and_actions_by_commit() -> None:
    page = (PROJECT / "docs" / "check.md").read_text()
    workflow = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    (job,) = workflow["jobs"].values()
    actions = {step["uses"].partition("@")[0]: step for step in job["steps"] if "uses" in step}
    assert set(actions["OWNER/eagleeye"]["with"]) <= set(ACTION["inputs"])
    pinned = [step["uses"] for name, step in actions.items() if name != "OWNER/eagleeye"]
    known = "".join(path.read_text() for path in (PROJECT / ".github" / "workflows").glob("*.yml"))
    assert pinned and all(use in known for use in pinned)
