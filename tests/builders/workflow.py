"""A job of a GitHub workflow on this machine: steps from the YAML, with the contexts, conditions and files of GitHub's
runner. Actions of others are played by functions; ours is run from its own action.yml."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Step = Mapping[str, Any]
# Plays an action: its inputs, and the values of contexts by their dotted names. Returns its outputs.
Play = Callable[["Job", Mapping[str, str], Mapping[str, str]], Mapping[str, str]]
_EXPRESSION = re.compile(r"\$\{\{ (.+?) \}\}")
_KEPT_VARIABLES = re.compile(r"PIP_|SSL_|LANG|TMPDIR$|LOG$|EXIT$")


@dataclass(slots=True, kw_only=True)
class Job:
    """A running job. Mutable. folder: stands for the machine; `workspace`, `temp`, `home`, `actions`, `cache` and
    `artifacts` lie below it. github: that context, by dotted names. plays: actions of others, by the name in front of
    the @. path: folders in front of PATH. ours: the folder with our action.yml;
    action_outputs: of its steps. codes: exit codes of steps. log: what scripts printed."""

    folder: Path
    github: Mapping[str, str]
    ours: Path
    plays: Mapping[str, Play]
    path: Sequence[Path] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    log: str = ""
    codes: dict[str, int] = field(default_factory=dict)
    action_outputs: dict[str, str] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def summary(self) -> Path:
        return self.folder / "temp" / "summary.md"

    def run(self, steps: Sequence[Step]) -> bool:
        """True if no step of the job fails."""
        for name in ("workspace", "temp", "home", "cache", "artifacts"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        return self._steps(steps, {f"github.{name}": text for name, text in self.github.items()})

    def _steps(self, steps: Sequence[Step], contexts: Mapping[str, str]) -> bool:
        """Steps of a job or of a composite action, whose contexts are its own."""
        known, good = dict(contexts), True
        for number, step in enumerate(steps):
            name = step.get("id", f"step {number}")
            condition = str(step.get("if", "success()"))
            if not (good or "always()" in condition) or not value(condition, known):
                known[f"steps.{name}.outcome"] = "skipped"
                continue
            outputs, code = self._step(step, known)
            self.codes[name] = code
            known[f"steps.{name}.outcome"] = "failure" if code else "success"
            known |= {f"steps.{name}.outputs.{key}": text for key, text in outputs.items()}
            good = good and (not code or bool(step.get("continue-on-error")))
            if contexts.get("github.action_path"):
                self.action_outputs = {name: text for name, text in known.items() if name.startswith("steps.")}
        return good

    def _step(self, step: Step, known: Mapping[str, str]) -> tuple[Mapping[str, str], int]:
        if "run" in step:
            return self._script(
                step["run"], {name: filled(str(text), known) for name, text in step.get("env", {}).items()}
            )
        inputs = {name: filled(str(text), known) for name, text in step.get("with", {}).items()}
        action = step["uses"].partition("@")[0]
        if action in self.plays:
            return self.plays[action](self, inputs, known), 0
        return self._composite(inputs)

    def _composite(self, inputs: Mapping[str, str]) -> tuple[Mapping[str, str], int]:
        form = yaml.safe_load((self.ours / "action.yml").read_text())
        chosen = {name: str(inputs.get(name, row.get("default", ""))) for name, row in form["inputs"].items()}
        contexts = {f"inputs.{name}": text for name, text in chosen.items()} | {"runner.os": "Linux"}
        good = self._steps(form["runs"]["steps"], contexts | {"github.action_path": str(self.ours)})
        return {name: filled(row["value"], self.action_outputs) for name, row in form["outputs"].items()}, int(not good)

    def _script(self, text: str, variables: Mapping[str, str]) -> tuple[dict[str, str], int]:
        outputs = self.folder / "temp" / "outputs"
        outputs.write_text("")
        kept = {name: text for name, text in os.environ.items() if _KEPT_VARIABLES.match(name)}
        environment = kept | {
            "PATH": os.pathsep.join([*map(str, self.path), os.environ["PATH"]]),
            "HOME": str(self.folder / "home"),
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(self.ours),
            "GITHUB_OUTPUT": str(outputs),
            "GITHUB_REPOSITORY": self.github.get("repository", ""),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "RUNNER_TEMP": str(self.folder / "temp"),
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
        done = subprocess.run(
            command,
            cwd=self.workspace,
            env={**environment, **self.variables, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.log += done.stdout
        pairs = (line.partition("=") for line in outputs.read_text().splitlines())
        return {name: text for name, _, text in pairs}, done.returncode


def filled(text: str, known: Mapping[str, str]) -> str:
    return _EXPRESSION.sub(lambda match: str(value(match[1], known) or ""), text)


def value(expression: str, known: Mapping[str, str]) -> str | bool:
    """The value of an expression without brackets; a name that is not known is empty, as on GitHub."""
    for part in expression.split("||"):
        result: str | bool = ""
        for factor in part.split("&&"):
            result = _factor(factor.strip(), known)
            if not result:
                break
        if result:
            return result
    return ""


def _factor(text: str, known: Mapping[str, str]) -> str | bool:
    if text in ("always()", "success()"):
        return True
    for sign in ("==", "!="):
        left, found_sign, right = text.partition(sign)
        if found_sign:
            return (_factor(left.strip(), known) == _factor(right.strip(), known)) is (sign == "==")
    return text[1:-1] if text.startswith("'") else known.get(text, "")


def restore(job: Job, inputs: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """actions/cache/restore: by its key, or by the first key that begins as one of restore-keys."""
    stored = {path.name for path in (job.folder / "cache").iterdir()}
    begins = [begin for begin in inputs.get("restore-keys", "").split() if begin]
    near = [name for begin in begins for name in sorted(stored) if name.startswith(begin)]
    chosen = next((name for name in (inputs["key"], *near) if name in stored), "")
    for number, path in enumerate(_paths(job, inputs)):
        source = job.folder / "cache" / chosen / str(number)
        if chosen and source.exists():
            _linked(source, path)
    return {"cache-hit": "true" if chosen == inputs["key"] else "false", "cache-primary-key": inputs["key"]}


def save(job: Job, inputs: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    for number, path in enumerate(_paths(job, inputs)):
        if path.exists():
            _linked(path, job.folder / "cache" / inputs["key"] / str(number))
    return {}


def upload(job: Job, inputs: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    shutil.copytree(inputs["path"], job.folder / "artifacts" / inputs["name"], dirs_exist_ok=True)
    return {}


def _linked(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    words = ("--archive", "--link", "--force", "--no-target-directory")
    subprocess.run(["cp", *words, source, target], check=True)


def nothing(job: Job, inputs: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    return {}


def _paths(job: Job, inputs: Mapping[str, str]) -> list[Path]:
    home = str(job.folder / "home")
    return [Path(line.strip().replace("~", home, 1)) for line in inputs["path"].splitlines() if line.strip()]


PLAYS: Mapping[str, Play] = {
    "actions/setup-python": nothing,
    "actions/cache/restore": restore,
    "actions/cache/save": save,
    "actions/upload-artifact": upload,
}
