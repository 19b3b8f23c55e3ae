"""python -m tests.crashes [--cases 10000] [--crashes 100] [--cluster local:2]: sessions of a campaign are killed
at random moments, while `--workers` and then Ray run its cases. Exit code 1 if a case or a finding
is lost or doubled, by comparison with the same campaign in one process that nothing disturbs.

The toy's sessions, as 10,000 cases of sglang take hours on two cores: processes, pools and protocols are the same."""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from repro.commands.last_resort import descendants
from repro.ledger.read import read
from repro.traces.campaign import Campaign, loads
from tests.builders.project import PROJECT, in_front

TARGET = "stale_padding/toy"
# The session that was killed fails this oracle.
ENDED = "ended"
# At least, from one kill to the next: a run that is killed again as it is made again is an error, as it should be.
APART_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A whole campaign. statuses: the results of each case, by its digest."""

    name: str
    crashes: int
    seconds: float
    record: Campaign
    statuses: dict[str, list[str]]

    def crashed(self) -> int:
        """Cases whose session died under them."""
        return sum(finding.cases for finding in self.record.findings if finding.oracle == ENDED)


def run(folder: Path, name: str, cases: int, crashes: int, apart: float, options: list[str]) -> Run:
    """The campaign with these options, in whose course so many sessions are killed, one after each so many seconds,
    or fewer if it ends before. RuntimeError if it does not end as a campaign does."""
    (folder / name).mkdir()
    words = ["run", "--target", TARGET, "--cases", str(cases), "--seed", "3", "--cases-per-setup", "64", "--out", "out"]
    start = time.monotonic()
    with (folder / name / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fuzz", *words, "--ledger", "ledger.db", *options],
            cwd=folder / name,
            env={**os.environ, "PYTHONPATH": in_front(PROJECT)},
            stdout=log,
            stderr=log,
        )
        killed = _disturb(process, crashes, apart)
        code = process.wait()
    if code not in (0, 1):
        raise RuntimeError(f"{name}: exit code {code} after {killed} crashes: {(folder / name / 'log').read_text()}")
    (record,), _ = loads((folder / name / "out" / "record.json").read_text())
    statuses: dict[str, list[str]] = {}
    for row in read(folder / name / "ledger.db").case_rows():
        statuses.setdefault(row[6], []).append(row[7])
    return Run(name=name, crashes=killed, seconds=time.monotonic() - start, record=record, statuses=statuses)


def _disturb(process: subprocess.Popen[bytes], crashes: int, apart: float) -> int:
    """Kill a session after each so many seconds: how many."""
    choices, killed = random.Random(crashes), 0
    while killed < crashes and process.poll() is None:
        time.sleep(apart)
        if sessions := _sessions(process.pid):
            with suppress(ProcessLookupError):  # it has ended by itself meanwhile
                os.kill(choices.choice(sessions), signal.SIGKILL)
                killed += 1
    return killed


def _sessions(driver: int) -> list[int]:
    """The sessions: a fork server has forked their worker, and this has forked them."""
    ours = {pid for pid in descendants(driver) if b"runners.processes." in _read(pid, "cmdline")}
    parents = {pid: int((_read(pid, "stat").rpartition(b")")[2].split() or [b"0", b"0"])[1]) for pid in ours}
    return sorted(pid for pid in ours if parents.get(parents[pid]) in ours)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def differences(alone: Run, disturbed: Run) -> list[str]:
    """The cases and findings that were lost or doubled, in words."""
    lines = []
    if lost := alone.statuses.keys() - disturbed.statuses.keys():
        lines.append(f"{len(lost)} cases lost")
    if drawn := disturbed.statuses.keys() - alone.statuses.keys():
        lines.append(f"{len(drawn)} other cases")
    # A case that is drawn twice has two rows in both.
    if doubled := [name for name, rows in disturbed.statuses.items() if len(rows) != len(alone.statuses.get(name, ()))]:
        lines.append(f"{len(doubled)} cases doubled")
    changed = sum(sorted(alone.statuses[name]) != sorted(disturbed.statuses.get(name, ())) for name in alone.statuses)
    if changed > disturbed.crashed():
        lines.append(f"{changed} cases with another result, {disturbed.crashed()} crashed")
    forms = Counter(finding.fingerprint for finding in disturbed.record.findings if finding.oracle != ENDED)
    expected = {finding.fingerprint: finding for finding in alone.record.findings}
    if forms != Counter(expected.keys()):
        lines.append(f"findings {dict(forms)} and not {sorted(expected)}")
    for finding in disturbed.record.findings:
        if finding.oracle == ENDED:
            continue
        if not finding.seed or not finding.failed:
            lines.append(f"{finding.fingerprint} is not confirmed")
        missed = expected[finding.fingerprint].cases - finding.cases if finding.fingerprint in expected else 0
        if not 0 <= missed <= disturbed.crashed():
            lines.append(f"{finding.fingerprint} in {missed} cases fewer")
    return [f"{disturbed.name}: {line}" for line in lines]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crashes", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--crashes", type=int, default=100)
    parser.add_argument("--cluster", default="local:2")
    options = parser.parse_args(arguments)
    cases, done = options.cases, False
    while not done:
        done, wrong = compare(cases, options.crashes, options.cluster)
        cases *= 2
    print("\n".join(wrong) or "0 cases lost, 0 findings lost or doubled")
    return int(bool(wrong))


def compare(cases: int, crashes: int, cluster: str) -> tuple[bool, list[str]]:
    """Print the table: whether each campaign lasted for all kills, which one of so many cases may not do on a fast
    machine, and how they differ from the one that nothing disturbs."""
    ways = {"workers": ["--workers", "2"], "ray": ["--cluster", cluster, "--chunk-seconds", "2"]}
    with tempfile.TemporaryDirectory(prefix="eagleeye-crashes-") as text:
        alone = run(Path(text), "alone", cases, 0, 0.0, [])
        apart = max(APART_S, alone.seconds / (2 * crashes))
        print("| campaign | cases | sessions killed | cases crashed | findings | seconds |\n|---|---|---|---|---|---|")
        wrong = show(alone, alone)
        for name, words in ways.items():
            disturbed = run(Path(text), name, cases, crashes, apart, words)
            wrong += show(alone, disturbed)
            if disturbed.crashes < crashes and not wrong:
                return False, []
    return True, wrong


def show(alone: Run, each: Run) -> list[str]:
    """Print its row of the table, and how it differs: in the end, too."""
    row = (each.name, f"{each.record.cases:,}", each.crashes, each.crashed(), len(each.record.findings))
    print("|", " | ".join(map(str, row)), f"| {each.seconds:.0f} |", flush=True)
    wrong = differences(alone, each)
    print(*wrong, sep="\n", end="\n" * bool(wrong), flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
