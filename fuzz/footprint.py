"""A campaign's use of its machine while it runs: memory, open files, processes and disk, read from Linux's /proc.

A night of eight hours must end with as much as its first minutes had; python -m fuzz bench --night measures it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.commands.last_resort import descendants
from repro.traces.campaign import Progress

PROC = Path("/proc")
# What is compared with the end: by then everything is imported and one session has opened.
FIRST_S = 60.0
MIB = 1 << 20
# A heap is not the same twice: growth below this is not reported.
SLACK_MIB = 16.0
SLACK_SHARE = 0.1
# A worker, its sessions and those that end in the background.
SLACK_PROCESSES = 4
SLACK_FILES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """At one moment. memory: MiB of the campaign's own process that are in memory; workers: of all that it started,
    pages that several share counted in each. files: descriptors that the campaign's process has open. processes: the
    campaign and all that it started. disk: MiB in its folder."""

    seconds: float
    cases: int
    memory: float
    workers: float
    files: int
    processes: int
    disk: float


class Watch:
    """Takes footprints while a campaign tells its progress: one after FIRST_S, one every `every` seconds from then on,
    one at its end. Mutable: they gather here. folder: the campaign's."""

    def __init__(self, tell: Callable[[Progress], None], folder: Path, every: float) -> None:
        self.taken: list[Footprint] = []
        self._tell, self._folder, self._every = tell, folder, every
        self._latest: Progress | None = None

    def tell(self, progress: Progress) -> None:
        self._tell(progress)
        self._latest = progress
        self._take(self._every)

    def end(self) -> None:
        """The last one, where as much has passed since the one before as before the first."""
        self._take(FIRST_S)

    def _take(self, after: float) -> None:
        due = self.taken[-1].seconds + after if self.taken else FIRST_S
        if self._latest and self._latest.seconds >= due:
            self.taken.append(footprint(os.getpid(), self._folder, self._latest))


def footprint(pid: int, folder: Path, progress: Progress) -> Footprint:
    """The footprint of this process, all that it started, and what lies in its folder."""
    family = descendants(pid)
    return Footprint(
        seconds=progress.seconds,
        cases=progress.cases,
        memory=_resident(pid),
        workers=sum(map(_resident, family)),
        files=len(list((PROC / str(pid) / "fd").iterdir())),
        processes=1 + len(family),
        disk=sum(_size(path) for path in folder.rglob("*")) / MIB,
    )


def _resident(pid: int) -> float:
    try:
        return int((PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def grown(taken: Sequence[Footprint]) -> list[str]:
    """The resources that grew from the first minute to the end, beyond noise; the disk may hold what was
    found, and is only told. ValueError with fewer than two footprints: nothing could be compared."""
    if len(taken) < 2:
        raise ValueError(f"{len(taken)} footprints: a night needs more than {FIRST_S:g} s")
    first, last = taken[0], taken[-1]
    limits = (
        ("memory", first.memory, last.memory, SLACK_MIB + SLACK_SHARE * first.memory),
        ("open files", first.files, last.files, SLACK_FILES),
        ("processes", first.processes, last.processes, SLACK_PROCESSES),
    )
    return [f"{name} grew from {old:.0f} to {new:.0f}" for name, old, new, slack in limits if new > old + slack]


def table(name: str, taken: Sequence[Footprint]) -> list[str]:
    """The footprints as lines, for a person."""
    head = "  minute    cases  memory MiB  workers MiB  files  processes  disk MiB"
    rows = [
        f"  {at.seconds / 60:6.1f} {at.cases:8} {at.memory:11.1f} {at.workers:12.1f} {at.files:6} "
        f"{at.processes:10} {at.disk:9.2f}"
        for at in taken
    ]
    return [f"{name}: what the campaign takes of its machine", head, *rows]
