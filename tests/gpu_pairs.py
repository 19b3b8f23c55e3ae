"""What opening a session costs, for every runner and backend of a release, in a table: in a process for each setup, and
in processes that have served others. All at once, so that timings are those of a busy machine.

    python -m tests.gpu_pairs TARGET OPENINGS SECONDS OUT
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from repro.cases.runner_facts import RUNNER_FACTS
from runners.processes.served import RUNNERS

# How many setups a process serves, by what the column is called: one, or as many as it does where nobody says.
COLUMNS = {"a process each": ["--setups-per-session", "1"], "served": []}


def main(target: str, openings: str, seconds: str, out: Path) -> int:
    """1 if no pair opened a session."""
    running = [begun(target, openings, seconds, out, *pair, column) for pair in pairs() for column in COLUMNS]
    for process in running:
        process.wait()
    rows = [(pair, [median(out, *pair, column) for column in COLUMNS]) for pair in pairs()]
    print(f"{'':36}" + "".join(f"{column:>24}" for column in COLUMNS))
    for (runner, backend), cells in rows:
        print(f"{runner:24}{backend:12}" + "".join(f"{cell:>24}" for cell in cells))
    opened = sum(any(cells) for _, cells in rows)
    print(f"pairs: {opened} of {len(rows)} opened sessions")
    return 0 if opened else 1


def pairs() -> Iterator[tuple[str, str]]:
    """Those whose processes may serve several setups."""
    for runner, facts in RUNNER_FACTS.items():
        if runner in RUNNERS and runner != "toy":
            yield from ((runner, backend) for backend in facts.backends)


def begun(
    target: str, openings: str, seconds: str, out: Path, runner: str, backend: str, column: str
) -> subprocess.Popen[bytes]:
    folder = folder_of(out, runner, backend, column)
    folder.mkdir(parents=True, exist_ok=True)
    asked = ["--target", target, "--runner", runner, "--backend", backend, "--openings", openings, "--out", str(folder)]
    command = ["timeout", seconds, sys.executable, "-m", "fuzz", "bench", *asked, *COLUMNS[column]]
    with (folder / "printed").open("wb") as printed:
        return subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)


def folder_of(out: Path, runner: str, backend: str, column: str) -> Path:
    return (out / f"{runner}-{backend}-{column}".replace(" ", "-")).absolute()


def median(out: Path, runner: str, backend: str, column: str) -> str:
    """Of the openings, in words; of processes that serve several, of those that had served one. Empty if there are
    none."""
    path = folder_of(out, runner, backend, column) / "openings.json"
    told: Sequence[Any] = json.loads(path.read_text()) if path.exists() else []
    done = [opening for each in told for opening in each["openings"] if opening["ended"] == "done"]
    late = [opening for opening in done if "close" in opening["parts"]] if not COLUMNS[column] else done
    return f"{statistics.median(opening['whole'] for opening in late):.2f} s of {len(late)}" if late else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
