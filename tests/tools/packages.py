"""Report packages, made anew: python -m tests.tools.packages [NAME...] [--jobs N] [--tries N] [--out DIR].

For each finding, by the name of its first seed (without names: those that stand in the newest release without a thread
and have a script and a candidate patch), a folder under docs/findings with range, first wrong value, patch, script,
test and the issue that holds them. Exit code 1 if a step fails; all that was printed is then in the folder's log.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from repro.cases import codec
from repro.cases.release_list import NEWEST
from repro.commands.bisect import wanted_of
from repro.upstream.findings import load
from repro.upstream.fixes import SEEDS
from repro.upstream.patch_table import CANDIDATE_PATCHES
from repro.upstream.script import can_show
from tests.builders.project import PROJECT

FINDINGS = PROJECT / "docs" / "findings"
TARGET = f"{NEWEST}/emulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command line behind `python -m`. output: the file that takes its output. codes: exit codes that are right."""

    words: Sequence[str]
    output: str = ""
    codes: tuple[int, ...] = (0,)


def fresh() -> Iterator[str]:
    """The first seeds of findings that stand without a thread, where a file can show them and a patch mends them."""
    mended = {patch.seed for patch in CANDIDATE_PATCHES if patch.release == NEWEST}
    for bug in load():
        name = bug.seeds[0]
        seed = codec.read(SEEDS / f"{name}.json")
        if bug.stands and not bug.upstream.threads and name in mended and can_show(name, seed, wanted_of(seed)):
            yield name


def steps(name: str, tries: int) -> Iterator[Step]:
    """In the package's folder."""
    seed, test = str(SEEDS / f"{name}.json"), f"test_{name.replace('-', '_')}.py"
    yield Step(words=("repro", "bisect", seed, "--json", "range.json"))
    yield Step(words=("repro", "first", seed, "--target", TARGET), output="first.txt", codes=(0, 1))
    yield Step(words=("repro", "repairs", name, "--diff"), output="candidate.diff")
    script = ("repro", "script", seed, "--target", TARGET, "--tries", str(tries), "--out", "repro_sglang.py")
    yield Step(words=script)
    yield Step(words=("repro", "export", seed, "--target", TARGET, "--tries", "1", "--sglang-test", test))
    files = (
        "--range",
        "range.json",
        "--first",
        "first.txt",
        "--script",
        "repro_sglang.py",
        "--patch",
        "candidate.diff",
    )
    yield Step(
        words=("reports", "issue", seed, "--seen-on", TARGET, *files, "--patch", "candidate.diff", "--test", test),
        output="issue.md",
    )


def make(name: str, tries: int, out: Path) -> bool:
    """True if every step went well."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "package.log"
    log.unlink(missing_ok=True)
    for step in steps(name, tries):
        command = [sys.executable, "-m", *step.words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=_environment())
        with log.open("a") as file:
            file.write(f"{' '.join(step.words)}\n{done.stdout}{done.stderr}")
        if done.returncode not in step.codes:
            print(f"NOT {name}: {' '.join(step.words[:2])} ended with {done.returncode}: {log}", flush=True)
            return False
        if step.output:
            text = done.stdout
            (folder / step.output).write_text(_diff(text) if step.output.endswith(".diff") else text)
    log.unlink()
    print(f"ok {name}", flush=True)
    return True


def _diff(text: str) -> str:
    """The patch alone, with the paths of sglang's repository."""
    return re.sub(r"^(--- a|\+\+\+ b)/sglang/", r"\1/python/sglang/", text[text.index("--- ") :], flags=re.MULTILINE)


def _environment() -> dict[str, str]:
    """This process's, with the packages of this checkout on the import path, as commands run elsewhere."""
    return {**os.environ, "PYTHONPATH": str(FINDINGS.parents[1])}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.packages", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--out", type=Path, default=FINDINGS)
    options = parser.parse_args()
    names = options.names or list(fresh())
    with ThreadPoolExecutor(options.jobs) as workers:
        made = list(workers.map(lambda name: make(name, options.tries, options.out.resolve()), names))
    return 0 if all(made) else 1


if __name__ == "__main__":
    sys.exit(main())
