"""Whatever kills a writer of the ledger, at whatever moment, no finding that it was told of as stored is lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from repro.ledger.merge import check
from repro.ledger.write import Ledger
from tests.builders.project import PROJECT, in_front
from tests.builders.sample_rows import finding_row, write_for_ever

WRITERS = 8
KILLS = 100
LIFE_MAX = 0.1  # seconds between kills: a writer lives from the middle of opening the file to dozens of findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    process: ForkServerProcess
    pipe: Connection
    stderr: Path

    def kill(self) -> None:
        """It must have been writing until now: one that ended by itself was not killed, and failed at something."""
        self.process.kill()
        self.process.join()
        text = self.stderr.read_text() if self.stderr.exists() else ""
        assert self.process.exitcode == -signal.SIGKILL and not text, f"code {self.process.exitcode}:\n{text}"

    def heard(self) -> list[str]:
        """All that it has told of and nobody has heard yet; the last message may be cut off by its death."""
        lines = []
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                lines.append(self.pipe.recv())
        return lines


@dataclass(slots=True)
class Writers:
    """Eight at a time, on one ledger; with those that were killed their number grows. Mutable."""

    path: Path
    alive: list[Writer] = field(default_factory=list)
    begun: int = 0

    def start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.builders.sample_rows"])
        here, there = context.Pipe(duplex=False)
        stderr = self.path.with_name(f"stderr-{self.begun}")
        words = (self.path, self.begun, there, stderr)
        process = context.Process(target=write_for_ever, args=words, daemon=True)
        process.start()
        there.close()
        self.alive.append(Writer(process=process, pipe=here, stderr=stderr))
        self.begun += 1


@pytest.fixture
def writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writers]:
    """Writers of a ledger that is not there yet. None outlives a test that fails."""
    # A server that has imported the ledger forks them: most would be killed over an import, and not over the ledger.
    # Of where modules lie it knows what its environment says; what it does not find there it leaves out in silence.
    monkeypatch.setenv("PYTHONPATH", in_front(PROJECT, PROJECT / "tests" / "hostile"))
    made = Writers(tmp_path / "ledger.db")
    for _ in range(WRITERS):
        made.start()
    yield made
    for writer in made.alive:
        writer.process.kill()
        writer.process.join()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_eight_writers_and_a_hundred_kills(writers: Writers) -> None:
    chance, lines = random.Random(23037), set()
    for _ in range(KILLS):
        # Everyone is heard all the while, as a full pipe would hold its writer up.
        end = time.monotonic() + chance.random() * LIFE_MAX
        while time.monotonic() < end:
            for writer in writers.alive:
                lines.update(writer.heard())
            time.sleep(0.005)
        victim = writers.alive.pop(chance.randrange(WRITERS))
        victim.kill()
        lines.update(victim.heard())
        writers.start()
    while writers.alive:
        victim = writers.alive.pop()
        victim.kill()
        lines.update(victim.heard())
    history = check(writers.path)
    stored = {row.fingerprint for row in history.findings}
    assert lines - stored == set()
    # What is stored and was not told of: the one that each was killed over.
    assert len(stored - lines) <= KILLS + WRITERS
    print(f"{len(lines)} findings told of, {len(stored)} stored, {len(history.runs)} runs")
    assert len(lines) > KILLS
    assert not any(run.ended for run in history.runs)
    with Ledger.open(writers.path) as ledger:
        ledger.finding(finding_row(history.runs[0].id, "afterwards"))
    assert len(check(writers.path).findings) == len(stored) + 1
