"""The workflow of docs/check.md on this machine: repositories of sglang that it is for, and one run of its job."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from runners.targets.environments import cache_directory
from tests.builders.project import PROJECT
from tests.builders.workflow import PLAYS, Job, Play

PAGE = PROJECT / "docs" / "check.md"
# What a made repository of sglang tracks; the rest of a release is laid beside it.
TRACKED = ("srt/speculative", "srt/layers/attention")
OURS = "OWNER/eagleeye"
# Takes the words of the page's last step, and leaves the comment beside itself.
GH = """#!/bin/sh
[ "$1 $2 $4 $6 $7" = "pr comment --repo --edit-last --create-if-none" ] && [ -n "$GH_TOKEN" ] || exit 1
cp "$9" "$(dirname "$0")/comment-$3.md"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An edit of a file under python/sglang: a text that stands there once, and what takes its place."""

    name: str
    file: str = ""
    old: str = ""
    new: str = ""


def steps() -> list[dict[str, Any]]:
    """The steps of the workflow that the page shows."""
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (job,) = yaml.safe_load(text)["jobs"].values()
    return list(job["steps"])


def repository(release: Path, folder: Path, change: Change) -> dict[str, str]:
    """Make a repository with a commit of this release and one with the change on top; the context that GitHub gives a
    pull request of it. release: an import path."""
    source = folder / "python" / "sglang"
    for name in TRACKED:
        shutil.copytree(release / "sglang" / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "-q")
    commit(folder, "the base")
    base = git(folder, "rev-parse", "HEAD")
    if change.file:
        path = source / change.file
        text = path.read_text()
        if text.count(change.old) != 1:
            raise ValueError(f"{change.name}: {change.file} has the text {text.count(change.old)} times")
        path.write_text(text.replace(change.old, change.new))
    commit(folder, change.name)
    head = git(folder, "rev-parse", "HEAD")
    return {
        "token": "a token",
        "event.pull_request.number": "17",
        "event.pull_request.base.sha": base,
        "sha": head,
        "repository": str(folder),
        "ref": f"refs/pull/{change.name}",
    }


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "-f", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", message)


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def checkout(release: Path, job: Job, inputs: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """actions/checkout, with the files of the release that the repository does not track laid beside, and ignored."""
    folder = job.workspace / inputs["path"]
    git(job.workspace, "clone", "-q", job.github["repository"], str(folder))
    git(folder, "checkout", "-q", inputs.get("ref") or job.github["sha"])
    (folder / ".git" / "info" / "exclude").write_text("*\n")
    for path in release.iterdir():
        subprocess.run(["cp", "--archive", "--link", "--no-clobber", path, folder / "python"], check=True)
    return {}


def installed(folder: Path) -> dict[str, Any]:
    """Fields of a job for which make installs nothing: it has the packages, and the cache, of this very process."""
    folder.mkdir()
    (folder / "make").write_text(f"#!/bin/sh\nln -s {shlex.quote(sys.prefix)} .venv\n")
    (folder / "make").chmod(0o755)
    (folder / "python").symlink_to(sys.executable)
    (folder / "gh").write_text(GH)
    (folder / "gh").chmod(0o755)
    variables = {"EAGLEEYE_CACHE": str(cache_directory())}
    return {"path": [folder], "variables": variables}


def guarded(
    folder: Path, release: Path, change: Change, inputs: Mapping[str, str] = {}, **fields: Any
) -> tuple[Job, bool]:
    """One run of the job for a pull request with this change, in a clean clone of this project; True if it is green.
    inputs: of our action, beside those that the page has. What the machine's cache holds stays from run to run."""
    for name in ("workspace", "temp", "repository", "eagleeye", "artifacts"):
        shutil.rmtree(folder / name, ignore_errors=True)
    ours = folder / "eagleeye"
    git(folder, "clone", "-q", str(PROJECT), str(ours))
    github = repository(release, folder / "repository", change)
    plays: dict[str, Play] = {**PLAYS, "actions/checkout": partial(checkout, release)}
    job = Job(folder=folder, github=github, ours=ours, plays=plays, **fields)
    every = [
        step | {"with": {**step["with"], **inputs}} if step.get("uses", "").startswith(OURS) else step
        for step in steps()
    ]
    return job, job.run(every)
