"""Bisection over commits of real sglang, by hand: python -m tests.tools.bisect_commits OUT [--trials N] [--flaky N].

Makes a repository at OUT/sglang in which installed releases are commits, with unrelated edits between them, and looks
for the commit that brings an upstream fix, by its stored seed and a judge that takes pass for fail and fail for pass.
Prints how often the right commit was named. In every fourth trial, or as --flaky says, each failing run
is seen to fail with the chance --rate only.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from oracles.catalogue import judge_all, overall
from repro.__main__ import options_of
from repro.cases.case import Case
from repro.cases.codec import read
from repro.commands.bisect import go, wanted_of
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Trace
from repro.upstream.fixes import FIXES, SEEDS
from repro.upstream.rig import Refused, Rig
from runners.processes.rig import rig
from runners.targets.environments import installed


def git(folder: Path, *arguments: str) -> str:
    words = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false"]
    return subprocess.run([*words, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def repository(top: Path, releases: Sequence[str], commits: int) -> dict[str, str]:
    """The commit of each release. Between two of them, edits of a file that nothing of a case reads. What an earlier
    call made there is taken as it is."""
    if (top / ".git").is_dir():
        named = {release: f"^release {re.escape(release)}$" for release in releases}
        return {release: git(top, "log", "-E", "--format=%H", "--grep", title) for release, title in named.items()}
    paths = {entry.release: entry.path for entry in installed()}
    (top / "python").mkdir(parents=True)
    git(top, "init", "--quiet")
    rows = {}
    for release in releases:
        shutil.rmtree(top / "python" / "sglang", ignore_errors=True)
        shutil.copytree(
            paths[release] / "sglang", top / "python" / "sglang", ignore=shutil.ignore_patterns("__pycache__")
        )
        rows[release] = committed(top, f"release {release}")
        for number in range(max(0, commits // len(releases) - 1)):
            note = top / "python" / "sglang" / "unrelated.py"
            note.write_text(f"# {release} {number}\n")
            committed(top, f"unrelated edit {number} after {release}")
    return rows


def committed(top: Path, title: str) -> str:
    git(top, "add", "--all", "--force")
    git(top, "commit", "--quiet", "--message", title)
    return git(top, "rev-parse", "HEAD")


def altered(used: Rig, chance: random.Random, rate: float, seed: Path) -> Rig:
    """A rig in which the seed passes where it fails and the other way round, so that a fix is searched; flaky by this
    rate."""
    failure = wanted_of(read(seed))

    def judge(case: Case, trace: Trace) -> list[Verdict]:
        rows = []
        for verdict in used.judge(case, trace):
            if verdict.oracle == failure.oracle and verdict.status is not Status.UNKNOWN:
                fails = verdict.status is Status.PASS and chance.random() < rate
                verdict = Verdict(
                    oracle=verdict.oracle,
                    status=Status.FAIL if fails else Status.PASS,
                    where=failure.where if fails else "",
                )
            rows.append(verdict)
        return rows

    return dataclasses.replace(used, judge=judge)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--commits", type=int, default=210)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the number of the first trial, to go on where one ended")
    parser.add_argument("--seed", default="", help="of one known fix alone: its stored seed")
    parser.add_argument("--flaky", type=int, default=4, metavar="N", help="every Nth trial; 0: none")
    parser.add_argument("--rate", type=float, default=0.3)
    options = parser.parse_args()
    top = options.out / "sglang"
    # Of the frozen-KV runner the oldest release has none, so that there would be no good end.
    fixes = [(fix, proof.seed) for fix in FIXES for proof in fix.proofs if proof.runner != "frozen_kv_mtp"]
    releases = sorted({release for fix, _ in fixes for release in (fix.buggy, fix.fixed)})
    fixes = [(fix, name) for fix, name in fixes if options.seed in ("", Path(name).stem)]
    if not fixes:
        parser.error(f"{options.seed}: no seed of a known fix that the oldest release has")
    commits = repository(top, releases, options.commits)
    print(f"{top}: {git(top, 'rev-list', '--count', 'HEAD')} commits of {', '.join(releases)}")
    right = 0
    used = rig(judge_all, overall, print, timeout_s=300)
    for trial in range(options.first, options.first + options.trials):
        fix, name = fixes[trial % len(fixes)]
        is_flaky = options.flaky and trial % options.flaky == options.flaky - 1
        rate = options.rate if is_flaky else 1.0
        out = options.out / "range.json"
        ends = ["--good", commits[releases[0]], "--bad", git(top, "rev-parse", "HEAD")]
        words = ["bisect", str(SEEDS / name), "--repo", str(top), *ends, "--json", str(out)]
        words += ["--keep", str(options.out / "clones")]
        words += ["--tries", "5" if rate == 1 else "20", "--confidence", "0.999"]
        out.unlink(missing_ok=True)
        start, refusal = time.monotonic(), ""
        try:
            go(options_of(words), altered(used, random.Random(trial), rate, SEEDS / name))
        except Refused as error:
            refusal = f", {error}"
        hit = out.is_file() and f'"first_bad": "{commits[fix.fixed][:12]}' in out.read_text()
        right += hit
        seconds = time.monotonic() - start
        text = f"{'right' if hit else 'WRONG'}{refusal}, {seconds:.0f} s, seen in {rate:.0%} of failing runs"
        print(f"trial {trial}: {name}: {text}", flush=True)
    print(f"{right} of {options.trials} right")
    return int(right != options.trials)


if __name__ == "__main__":
    sys.exit(main())
