"""Whether the processes that a session started are at work: a compiler may take longer than a session may be silent."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# Who uses less than this part of a core is idle: a pool of compilers that waits for work, say.
_IDLE = 0.2


def at_work(pid: int, seconds: float = 1.0) -> bool:
    """Whether descendants of a process use the processor during so many seconds. At once False where it has none."""
    before = _spent(pid)
    if before is None:
        return False
    time.sleep(seconds)
    after = _spent(pid)
    return after is not None and after - before > _IDLE * seconds


def _spent(pid: int) -> float | None:
    """Seconds of processor time that all descendants of a process have used, with those that they waited for; None if
    there are none."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # It may end between being listed and being read.
            with contextlib.suppress(OSError):
                # Behind the name, which may hold anything: state, parent, ...; see proc(5), fields 3 and on.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                used[int(entry.name)] = sum(map(int, fields[11:15]))
    mine = [process for process in parents if _descends(process, pid, parents)]
    return sum(used[process] for process in mine) / _TICKS if mine else None


def _descends(process: int, ancestor: int, parents: dict[int, int]) -> bool:
    parent = parents[process]
    while parent != ancestor and parent in parents:
        parent = parents[parent]
    return parent == ancestor
