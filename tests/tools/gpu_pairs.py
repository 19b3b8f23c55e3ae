"""The cost of opening a session, for every runner and backend of a release, in a table: in a process for each setup,
and in processes that have served others. As many at once as there are cores for, in turn on the GPUs: timings are those
of a busy machine.

python -m tests.tools.gpu_pairs TARGET OPENINGS SECONDS OUT [RUNNER/BACKEND...]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from repro.cases.runner_facts import RUNNER_FACTS
from runners.processes.served import RUNNERS
from runners.processes.warm import CORES_EACH
from runners.targets.devices import VISIBLE, Seats, gpus, visible

# How many setups a process serves, by what the column is called: one, or as many as it does where nobody says.
COLUMNS = {"a process each": ["--setups-per-session", "1"], "served": []}


def main(target: str, openings: str, seconds: float, out: Path, only: Sequence[str] = ()) -> int:
    """1 if no pair opened a session. only: these pairs; without any, all."""
    pairs = [pair for pair in all_pairs() if not only or "/".join(pair) in only]
    devices = visible(len(gpus())) or ("",)
    at_once = len(os.sched_getaffinity(0)) // CORES_EACH["cuda"]
    seats = Seats(devices, max(1, at_once // len(devices)))
    columns = [(*pair, column) for pair in pairs for column in COLUMNS]
    measure = partial(measured, seats, time.monotonic() + seconds, target, openings, out)
    with ThreadPoolExecutor(len(seats)) as threads:
        cells = dict(zip(columns, threads.map(measure, columns), strict=True))
    whats: dict[str, None] = {}
    print(f"{'':38}" + "".join(f"{column:>24}" for column in COLUMNS))
    for runner, backend in pairs:
        row = [cells[runner, backend, column] for column in COLUMNS]
        print(f"{runner:26}{backend:12}" + "".join(f"{cell.took or cell.why_not:>24}" for cell in row))
        whats.update({f"{runner} {backend}: {cell.why_not}: {cell.what}": None for cell in row if cell.what})
    print("".join(f"  {what[:200]}\n" for what in whats), end="")
    opened = [pair for pair in pairs if any(cells[*pair, column].took for column in COLUMNS)]
    print(f"pairs: {len(opened)} of {len(pairs)} opened sessions")
    return 0 if opened else 1


def all_pairs() -> Iterator[tuple[str, str]]:
    """The pairs whose processes may serve several setups."""
    for runner, facts in RUNNER_FACTS.items():
        if runner in RUNNERS and runner != "toy":
            yield from ((runner, backend) for backend in facts.backends)


class Cell(NamedTuple):
    """The time of openings, in words; else why there is none, and what the first one ended with."""

    took: str = ""
    why_not: str = ""
    what: str = ""


def measured(seats: Seats, until: float, target: str, openings: str, out: Path, subject: tuple[str, str, str]) -> Cell:
    """The time of the openings of a runner, a backend and a column."""
    runner, backend, column = subject
    folder = (out / "-".join(subject).replace(" ", "-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [target, openings, str(folder), "--runner", runner, "--backend", backend]
    command = [sys.executable, "-m", "tests.tools.openings", *drawn, *COLUMNS[column]]
    left = until - time.monotonic()
    if left <= 0:
        return Cell(why_not="no time left")
    device = seats.take()
    assert device is not None  # there are as many as threads
    environment = os.environ | ({VISIBLE: device} if device else {})
    with (folder / "printed").open("wb") as printed:
        # It ends what it has started when it is told to end.
        timed = ["timeout", str(left), *command]
        run = subprocess.run(timed, stdout=printed, stderr=subprocess.STDOUT, env=environment)
    seats.give_back(device)
    path = folder / "openings.json"
    if not path.exists():
        return Cell(why_not=f"exit code {run.returncode}")
    return median(json.loads(path.read_text()), column)


def median(openings: Sequence[Any], column: str) -> Cell:
    """The median of the openings; of processes that serve several, of those that had served one. Else how the first one
    ended."""
    done = [opening for opening in openings if opening["ended"] == "done"]
    late = [opening for opening in done if "close" in opening["parts"]] if not COLUMNS[column] else done
    if late:
        return Cell(took=f"{statistics.median(opening['whole'] for opening in late):.2f} s of {len(late)}")
    return Cell(why_not="none was served") if done else Cell(why_not=openings[0]["ended"], what=openings[0]["what"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:]))
