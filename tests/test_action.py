"""action.yml: its shell lines run with stand-ins for make and Python, which note their words; our own parsers take
every command, and the step ends with the check's exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from fuzz.__main__ import options_of as fuzz_options
from repro.cases.release_list import ADAPTED
from runners.commands.options import options_of as runners_options

PROJECT = Path(__file__).resolve().parent.parent
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
        for path in ("bin", "temp", "sglang", "base", "action/.venv/bin", "action/requirements"):
            (folder / path).mkdir(parents=True)
        for path in ("bin/make", "bin/python", "action/.venv/bin/python"):
            (folder / path).write_text(STAND_IN.replace("RELEASES", " ".join(ADAPTED)))
            (folder / path).chmod(0o755)
        (self.action / "Makefile").write_text("")
        (folder / "b.py").write_text("")
        name = ("-c", "user.name=a", "-c", "user.email=a@b")
        for words in (("init", "-q"), (*name, "commit", "-q", "--allow-empty", "-m", "base")):
            subprocess.run(["git", *words], cwd=folder / "base", check=True)

    def run(self, inputs: dict[str, str], exit_code: int = 0) -> tuple[list[list[str]], dict[str, str], list[int]]:
        """All words of each call, the outputs of the steps, and their exit codes; after a step that fails none."""
        values = {name: row.get("default", "") for name, row in ACTION["inputs"].items()} | {"path": "sglang"} | inputs
        outputs: dict[str, str] = {}
        codes = []
        self.log.write_text("")
        for step in (step for step in ACTION["runs"]["steps"] if "run" in step):
            known = {f"inputs.{name}": value for name, value in values.items()} | outputs
            variables = {name: _filled(text, known) for name, text in step["env"].items()}
            codes.append(self._step(step["run"], variables | {"EXIT": str(exit_code)}))
            if codes[-1]:
                break
            outputs |= self._outputs(step["id"])
        calls = [call.splitlines() for call in self.log.read_text().split("END\n")[:-1]]
        return calls, outputs | self._outputs("check"), codes

    def _step(self, text: str, variables: dict[str, str]) -> int:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        places = {"GITHUB_ACTION_PATH": self.action, "RUNNER_TEMP": self.folder / "temp", "LOG": self.log}
        files = {"GITHUB_OUTPUT": self.folder / "outputs"}
        self.folder.joinpath("outputs").write_text("")
        environment = {name: str(value) for name, value in (places | files).items()} | {"PATH": path} | variables
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
        return subprocess.run(command, cwd=self.folder, env=environment, check=False).returncode

    def _outputs(self, step: str) -> dict[str, str]:
        pairs = (line.partition("=") for line in (self.folder / "outputs").read_text().splitlines())
        return {f"steps.{step}.outputs.{name}": value for name, _, value in pairs}


def _filled(text: str, known: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: known[match[1]], text)


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
    assert options.checked.sglang == str(workspace.folder / "sglang")
    assert {name: getattr(options, name) for name in expected} == expected
    if base := inputs.get("base"):
        assert options.base.sglang == (base if release else str(workspace.folder / base))
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
