"""Bugs of sglang that were written by hand, and right optimisations: which does a campaign find, by which case?

    python -m tests.tools.handwritten OUT [--engine cuda] [--cases 150] [--seed N] [--jobs N] [--only right] [NAME...]

Each change of handwritten.toml is a checkout of its own, on which the change's runner and backend are fuzzed until the
first finding. Exit code 1 if a right change has a finding, or a campaign ends in an error.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from repro.cases.case import Target
from repro.traces.campaign import Campaign, loads
from runners.targets.environments import sglang_path
from runners.targets.overlay import Overlay, overlay_of

CHANGES = Path(__file__).with_suffix(".toml")
RELEASE = Target("0.5.23", "emulated")
_CODES = (0, 1, 2)  # of a campaign that ran; 3 is an error of the harness


class NotThere(Exception):
    """The text of an edit does not stand in its file exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change. file: under sglang/. edits: a text, and the one that takes its place. right: it computes the same."""

    name: str
    runner: str
    backend: str
    file: str
    edits: tuple[tuple[str, str], ...]
    right: bool = False

    def applied(self, text: str) -> str:
        """The file's text with the edits made. NotThere."""
        for old, new in self.edits:
            if text.count(old) != 1:
                raise NotThere(f"{self.name}: {self.file} has {text.count(old)} times: {old.strip().splitlines()[0]}")
            text = text.replace(old, new)
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A campaign on a change. first: the oracle and place of its first finding, empty without one. case, seconds: when
    that was. findings: how many. error: why it could not be made."""

    change: Change
    cases: int = 0
    first: str = ""
    case: int = 0
    seconds: float = 0.0
    findings: int = 0
    error: str = ""

    @property
    def as_expected(self) -> bool:
        return not self.error and bool(self.first) != self.change.right

    def __str__(self) -> str:
        kind = "right" if self.change.right else "bug"
        where = f"{self.change.runner}/{self.change.backend}"
        outcome = f"{self.first} in case {self.case}, {self.seconds:.0f} s" if self.first else "nothing found"
        mark = " " if self.as_expected else "!"
        return f"{mark} {kind:5} {self.change.name:36} {where:24} {self.cases:5} {self.error or outcome}"


def load(path: Path = CHANGES) -> tuple[Change, ...]:
    """All changes of this file, in its order."""
    rows = tomllib.loads(path.read_text())["change"]
    return tuple(
        Change(
            name=row["name"],
            runner=row["runner"],
            backend=row["backend"],
            file=f"sglang/{row['file']}",
            edits=tuple((edit["old"], edit["new"]) for edit in row["edit"]),
            right=row.get("right", False),
        )
        for row in rows
    )


def checkout(change: Change, out: Path) -> Path:
    """The import path of a release with this change."""
    source = sglang_path(RELEASE)
    contents = {change.file: change.applied((source / change.file).read_text())}
    return overlay_of(source, Overlay(release=RELEASE.sglang, change=change.name), contents, out)


def campaign(out: Path, engine: str, cases: int, seed: int, whole: bool, change: Change) -> Result:
    """whole: go on behind the first finding, and count them all."""
    record = out / f"{change.name}.json"
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", "fuzz", "run", "--target", f"{checkout(change, out / 'checkouts')}@{engine}"]
    command += ["--runner", change.runner, "--backend", change.backend, "--cases", str(cases), "--seed", str(seed)]
    command += ["--confirm", "1", "--shrink-runs", "1", "--json", str(record), "--out", str(out / change.name)]
    command += [] if whole else ["--stop-at-first"]
    with (out / f"{change.name}.log").open("w") as log:
        code = subprocess.run(command, stdout=log, stderr=log).returncode
    if code not in _CODES or not record.exists():
        lines = (out / f"{change.name}.log").read_text().splitlines()
        return Result(change=change, error=f"exit code {code}: {lines[-1] if lines else ''}")
    (part,), _ = loads(record.read_text())
    return _of_record(change, part)


def _of_record(change: Change, part: Campaign) -> Result:
    if not part.findings:
        return Result(change=change, cases=part.cases)
    first = min(part.findings, key=lambda finding: finding.at_case)
    return Result(
        change=change,
        cases=part.cases,
        first=f"{first.oracle}: {first.where}",
        case=first.at_case,
        seconds=first.at_seconds,
        findings=len(part.findings),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """1 if a right change has a finding or a campaign could not be made."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.handwritten", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--engine", default="emulated")
    parser.add_argument("--cases", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", choices=("bugs", "right"))
    parser.add_argument("--whole", action="store_true", help="count the findings of whole campaigns")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    changes = [
        change
        for change in load()
        if (not options.names or change.name in options.names)
        and (options.only is None or change.right == (options.only == "right"))
    ]
    start = time.monotonic()
    run = partial(campaign, options.out.absolute(), options.engine, options.cases, options.seed, options.whole)
    results = []
    with ThreadPoolExecutor(options.jobs) as threads:
        for result in threads.map(run, changes):
            results.append(result)
            print(result, flush=True)
    bugs = [result for result in results if not result.change.right]
    right = [result for result in results if result.change.right]
    hits = sum(bool(result.first) for result in bugs)
    findings = sum(result.findings for result in bugs)
    print(
        f"{hits} of {len(bugs)} bugs found, {findings} findings; {sum(bool(r.first) for r in right)} of {len(right)} "
        f"right changes have a finding; {sum(bool(r.error) for r in results)} errors; {time.monotonic() - start:.0f} s"
    )
    return int(any(result.first for result in right) or any(result.error for result in results))


if __name__ == "__main__":
    sys.exit(main())
