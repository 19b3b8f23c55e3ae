"""Bisection over sglang's own commits, by hand: python -m tests.tools.bisect_history REPO OUT [NAME...] [--introduced].

REPO is a clone of sglang, or a mirror. For each finding that a pull request of its history fixed, by its first seed and
a judge that takes pass for fail, the commit is searched that took the failure away, between the branches of the last
release with it and the first one without it. It is right if its title names that pull request. With --introduced the
commit is searched that brought the failure, and its title is printed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from oracles.catalogue import judge_all, overall
from repro.__main__ import options_of
from repro.cases.release_list import ADAPTED
from repro.commands.bisect import go
from repro.upstream.findings import PublishedBug, load
from repro.upstream.fixes import SEEDS
from repro.upstream.git import git
from repro.upstream.rig import Refused
from runners.processes.rig import rig
from tests.tools.bisect_commits import altered


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A search between the branches of two releases. number: the pull request to be named; 0 if that is not known."""

    bug: PublishedBug
    before: str
    behind: str
    number: int = 0


def fixes(names: list[str]) -> Iterator[Task]:
    for bug in load():
        place = ADAPTED.index(bug.affected[-1]) + 1
        if bug.upstream.fixed_by and place < len(ADAPTED) and (not names or bug.name in names):
            yield Task(bug=bug, before=bug.affected[-1], behind=ADAPTED[place], number=bug.upstream.fixed_by)


def introductions(names: list[str]) -> Iterator[Task]:
    for bug in load():
        place = ADAPTED.index(bug.affected[0])
        if place and (not names or bug.name in names):
            yield Task(bug=bug, before=ADAPTED[place - 1], behind=bug.affected[0])


def fork(repository: Path, release: str) -> str:
    """The last commit of main in this release. Refused if the history does not go so far."""
    return git(repository, "merge-base", f"v{release}", "HEAD").strip()


def searched(options: argparse.Namespace, task: Task) -> str:
    """The title of the commit that is named. Refused where none is."""
    out: Path = options.out / f"{task.bug.name}.json"
    seed = SEEDS / f"{task.bug.seeds[0]}.json"
    ends = ["--good", fork(options.repository, task.before), "--bad", fork(options.repository, task.behind)]
    words = ["bisect", str(seed), "--repo", str(options.repository), *ends, "--json", str(out)]
    words += ["--keep", str(options.out / "clones"), "--tries", str(options.tries)]
    used = rig(judge_all, overall, print, timeout_s=300)
    go(options_of(words), altered(used, random.Random(1), 1.0, seed) if task.number else used)
    commit = json.loads(out.read_text())["first_bad"]
    return git(options.repository, "log", "-1", "--format=%h %cs %s", commit).strip() if commit else "none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--introduced", action="store_true")
    parser.add_argument("--tries", type=int, default=1)
    options = parser.parse_args()
    (options.out / "clones").mkdir(parents=True, exist_ok=True)
    right = searches = 0
    for task in (introductions if options.introduced else fixes)(options.names):
        start = time.monotonic()
        try:
            title = searched(options, task)
        except Refused as error:
            title = f"refused: {error}"
        hit = bool(task.number) and title.endswith(f"(#{task.number})")
        right, searches = right + hit, searches + 1
        verdict = "" if not task.number else "right: " if hit else f"WRONG, not #{task.number}: "
        print(f"{task.bug.name}: {verdict}{title}, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{searches} searched" if options.introduced else f"{right} of {searches} right")
    return 0 if options.introduced or right == searches else 1


if __name__ == "__main__":
    sys.exit(main())
