"""Whatever kills a writer of the ledger, at whatever moment, no finding that it was told of as stored is lost."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from sample_rows import finding_row, write_for_ever

from repro.ledger import Ledger
from repro.ledger_merge import check

WRITERS = 8
KILLS = 100
LIFE_MAX = 0.2  # seconds: from the middle of opening the file to dozens of findings


def start(path: Path, number: int) -> tuple[ForkServerProcess, Connection]:
    # A server that has imported the ledger forks the writers: a hundred imports would take longer than all else.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sample_rows"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=write_for_ever, args=(path, number, there), daemon=True)
    process.start()
    there.close()
    return process, here


def heard(pipe: Connection) -> list[str]:
    """All that was told before the writer died; the last message may be cut off."""
    told = []
    try:
        while pipe.poll():
            told.append(pipe.recv())
    except (EOFError, OSError):
        pass
    return told


@pytest.mark.slow
def test_eight_writers_and_a_hundred_kills(tmp_path: Path) -> None:
    path, chance, told, number = tmp_path / "ledger.db", random.Random(23037), set(), WRITERS
    writers = [start(path, n) for n in range(WRITERS)]
    for _ in range(KILLS):
        # Everyone is heard all the while, as a full pipe would hold its writer up.
        end = time.monotonic() + chance.random() * LIFE_MAX
        while time.monotonic() < end:
            for _, pipe in writers:
                told.update(heard(pipe))
            time.sleep(0.005)
        victim, pipe = writers.pop(chance.randrange(WRITERS))
        os.kill(victim.pid or 0, signal.SIGKILL)
        victim.join()
        told.update(heard(pipe))
        writers.append(start(path, number))
        number += 1
    for victim, pipe in writers:
        os.kill(victim.pid or 0, signal.SIGKILL)
        victim.join()
        told.update(heard(pipe))
    history = check(path)
    stored = {row.fingerprint for row in history.findings}
    assert told - stored == set()
    # What is stored and was not told of: the one that each was killed over.
    assert len(stored - told) <= KILLS + WRITERS
    print(f"{len(told)} findings told of, {len(stored)} stored, {len(history.runs)} runs")
    assert len(told) > KILLS
    assert not any(run.ended for run in history.runs)
    with Ledger.open(path) as ledger:
        ledger.finding(finding_row(history.runs[0].id, "afterwards"))
    assert len(check(path).findings) == len(stored) + 1
