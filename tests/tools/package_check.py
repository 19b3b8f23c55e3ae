"""A report package, checked from its text alone: python -m tests.tools.package_check ISSUE.md --target T.

Reproducer, candidate patch and test are cut out of the issue, put into an empty folder, and run as a reader would run
them: on the release as published, where all must show the bug, and on a copy with the patch applied by git, where none
may.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from oracles.catalogue import judge_all, overall
from repro.cases.case import Target
from repro.upstream.script import HELPER, host
from runners.processes.rig import rig
from runners.targets.environments import sglang_path

_BLOCK = re.compile(r"^### (.*?)\n(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```(?:python|diff)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILES = {"Reproducer": "repro.py", "Candidate patch": "candidate.diff", "Test": "test_it.py"}


def files_of(issue: str) -> Mapping[str, str]:
    """The files that the text holds, by their names in _FILES, and that which a test shares with others. KeyError if a
    section is missing."""
    sections = dict(_BLOCK.findall(issue))
    texts: dict[str, str] = {}
    for heading, name in _FILES.items():
        codes = _CODE.findall(sections[heading])
        if not codes:
            raise KeyError(heading)
        texts |= dict(zip((name, HELPER), codes, strict=False))
    return texts


def copied(source: Path, folder: Path) -> Path:
    """An import path with a copy of sglang's Python files, laid out as its repository."""
    copy = folder / "python" / "sglang"
    shutil.copytree(source / "sglang", copy, ignore=shutil.ignore_patterns("__pycache__"))
    for other in source.iterdir():
        if other.name != "sglang":
            (folder / "python" / other.name).symlink_to(other)
    return folder / "python"


def patched(source: Path, patch: Path, folder: Path) -> Path:
    """The same with this patch."""
    path = copied(source, folder)
    subprocess.run(["git", "apply", "--unsafe-paths", "--directory", str(folder), str(patch)], check=True, cwd=folder)
    return path


def runs(issue: Path, target: Target) -> Iterator[tuple[str, str, int, int]]:
    """Each run with its target, the right exit code, and the one that came."""
    alone = rig(judge_all, overall, lambda text: None, timeout_s=600.0).alone
    interpreter, environment = alone(target)
    with tempfile.TemporaryDirectory(prefix="package-") as name:
        folder = Path(name)
        texts = dict(files_of(issue.read_text()))
        shared = texts.pop(HELPER, "")
        for file, text in {**texts, **({"sitecustomize.py": host()} if shared else {})}.items():
            (folder / file).write_text(text)
        source = sglang_path(target)
        published = copied(source, folder / "published")
        changed = patched(source, folder / "candidate.diff", folder / "patched")
        for path in (published, changed):
            (path / HELPER).write_text(shared)
        for side, path, expected in (("as published", published, 1), ("with the patch", changed, 0)):
            there = os.pathsep.join([str(folder), environment["PYTHONPATH"].replace(str(source), str(path))])
            for what, command in (
                ("reproducer", ["repro.py", *(["--cpu"] if target.engine == "emulated" else [])]),
                ("test by Python", ["test_it.py"]),
                ("test by pytest", ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]),
            ):
                done = subprocess.run(
                    [str(interpreter), *command],
                    cwd=folder,
                    env={**environment, "PYTHONPATH": there},
                    capture_output=True,
                    check=False,
                )
                yield what, side, expected, done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("issues", nargs="+", type=Path)
    parser.add_argument("--target", type=Target.parse, required=True)
    options = parser.parse_args()
    wrong = 0
    for issue in options.issues:
        for what, side, expected, code in runs(issue, options.target):
            wrong += code != expected
            text = "as it should" if code == expected else f"NOT as it should: {expected}"
            print(f"{issue.parent.name}: {what}, {options.target.sglang} {side}: exit code {code}, {text}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
