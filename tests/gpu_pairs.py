"""What opening a session costs, for every runner and backend of a release, in a table: in a process for each setup, and
in processes that have served others. As many at once as there are cores for, in turn on the GPUs: timings are those of
a busy machine.

    python -m tests.gpu_pairs TARGET OPENINGS SECONDS OUT
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
from typing import Any

from repro.cases.runner_facts import RUNNER_FACTS
from runners.processes.served import RUNNERS
from runners.targets.devices import VISIBLE, Seats, gpus, visible

# One for what opens, one for what else its worker and the driver do.
_CORES_EACH = 2

# How many setups a process serves, by what the column is called: one, or as many as it does where nobody says.
COLUMNS = {"a process each": ["--setups-per-session", "1"], "served": []}


def main(target: str, openings: str, seconds: float, out: Path) -> int:
    """1 if no pair opened a session."""
    devices = visible(len(gpus())) or ("",)
    seats = Seats(devices, max(1, (os.cpu_count() or 1) // (_CORES_EACH * len(devices))))
    asked = [(*pair, column) for pair in pairs() for column in COLUMNS]
    measure = partial(measured, seats, time.monotonic() + seconds, target, openings, out)
    with ThreadPoolExecutor(len(seats)) as threads:
        cells = dict(zip(asked, threads.map(measure, asked), strict=True))
    print(f"{'':38}" + "".join(f"{column:>24}" for column in COLUMNS))
    for runner, backend in pairs():
        row = [cells[runner, backend, column] for column in COLUMNS]
        print(f"{runner:26}{backend:12}" + "".join(f"{cell:>24}" for cell in row))
    opened = len({asked[:2] for asked, cell in cells.items() if " s of " in cell})
    print(f"pairs: {opened} of {len(list(pairs()))} opened sessions")
    return 0 if opened else 1


def pairs() -> Iterator[tuple[str, str]]:
    """Those whose processes may serve several setups."""
    for runner, facts in RUNNER_FACTS.items():
        if runner in RUNNERS and runner != "toy":
            yield from ((runner, backend) for backend in facts.backends)


def measured(seats: Seats, until: float, target: str, openings: str, out: Path, asked: tuple[str, str, str]) -> str:
    """What the openings of a runner, a backend and a column took, in words; why there is nothing of them."""
    runner, backend, column = asked
    folder = (out / "-".join(asked).replace(" ", "-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    options = [
        "--target",
        target,
        "--runner",
        runner,
        "--backend",
        backend,
        "--openings",
        openings,
        "--out",
        str(folder),
    ]
    command = [sys.executable, "-m", "fuzz", "bench", *options, *COLUMNS[column]]
    left = until - time.monotonic()
    if left <= 0:
        return "no time left"
    device = seats.take()
    assert device is not None  # there are as many as threads
    environment = os.environ | ({VISIBLE: device} if device else {})
    with (folder / "printed").open("wb") as printed:
        # It ends what it has started when it is told to end.
        run = subprocess.run(
            ["timeout", str(left), *command], stdout=printed, stderr=subprocess.STDOUT, env=environment
        )
    seats.give_back(device)
    path = folder / "openings.json"
    return median(json.loads(path.read_text()), column) if path.exists() else f"exit code {run.returncode}"


def median(told: Sequence[Any], column: str) -> str:
    """Of the openings; of processes that serve several, of those that had served one. Else how the first one ended."""
    openings = [opening for each in told for opening in each["openings"]]
    done = [opening for opening in openings if opening["ended"] == "done"]
    late = [opening for opening in done if "close" in opening["parts"]] if not COLUMNS[column] else done
    if late:
        return f"{statistics.median(opening['whole'] for opening in late):.2f} s of {len(late)}"
    return "none was served" if done else openings[0]["ended"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4])))
