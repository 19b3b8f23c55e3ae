"""Patience with a session that is silent for a reason of the host: its compilers are at work, which may take longer
than it may be silent, or those of another process on which it waits, or it waits for a processor that others use."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from runners.processes.wire import Silence
from runners.targets.environments import kernels_directory

_TICKS = os.sysconf("SC_CLK_TCK")
# Who uses less than this part of a core, and does not wait for one, is idle: a pool of compilers without work, say.
_IDLE = 0.2


# For how long it may be silent behind the end of its patience for such a reason: kernels of flashinfer take minutes
# where many sessions compile side by side. How long it may then be silent before it is looked at again, or goes on.
_EXCUSED_S, _AGAIN_S = 900.0, 30.0
# Shorter waits for a processor do not count: a process waits some milliseconds on any host.
_STARVED_S = 1.0


def patient(wait: Callable[[float], None], pid: int, deadline: float) -> float:
    """Wait until a session says something; the deadline for the rest of it. Silence past the deadline, unless what the
    session started works, or did when it was last looked at; seconds in which the session was ready to run and had no
    processor are not silence. wait: until a deadline, past which it raises Silence."""
    latest, worked, starved = deadline + _EXCUSED_S, False, _starved(pid)
    while True:
        try:
            wait(deadline)
            return deadline
        except Silence:
            earlier, starved = starved, _starved(pid)
            lost = starved - earlier
            # Compiled code is loaded and run after its compilers have ended.
            before, worked = worked, at_work(pid) or kernels_are_locked()
            more = max(_AGAIN_S if worked or before else 0.0, lost if lost > _STARVED_S else 0.0)
            if not more or deadline >= latest:
                raise
            deadline = min(latest, time.monotonic() + more)


def _starved(pid: int) -> float:
    """Seconds in which a process was ready to run and waited for a processor; 0 where Linux does not count them."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def at_work(pid: int, seconds: float = 1.0) -> bool:
    """True if descendants of a process use the processor during so many seconds, or would on a machine with less to
    do. At once False where it has none."""
    before = _spent(pid)
    if before is None:
        return False
    time.sleep(seconds)
    after = _spent(pid)
    return after is not None and (after[0] - before[0] > _IDLE * seconds or (before[1] and after[1]))


def kernels_are_locked(folder: Path | None = None, locks: Path = Path("/proc/locks")) -> bool:
    """True if a process of this host holds a lock in the folder of kernels: it compiles some, and others wait. False
    where Linux does not list locks. folder: instead of that folder."""
    try:
        # As in proc_locks(5): device and inode of each locked file, as 08:02:1234.
        locked = {line.split()[-3].rpartition(":")[2] for line in locks.read_text().splitlines() if " FLOCK " in line}
        files = (folder or kernels_directory()).rglob("*.lock") if locked else ()
        return any(str(path.stat().st_ino) in locked for path in files)
    except OSError:  # or a lock's file was removed between being listed and being read
        return False


def _spent(pid: int) -> tuple[float, bool] | None:
    """Seconds of processor time that all descendants of a process have used, with those that they waited for, and
    whether one of them runs or waits for a processor; None if there are none."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    ready: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # It may end between being listed and being read.
            with contextlib.suppress(OSError):
                # Behind the name, which may hold anything: state, parent, ...; see proc(5), fields 3 and on.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                used[int(entry.name)] = sum(map(int, fields[11:15]))
                ready |= {int(entry.name)} if fields[0] == "R" else set()
    mine = [process for process in parents if _descends(process, pid, parents)]
    return (sum(used[process] for process in mine) / _TICKS, not ready.isdisjoint(mine)) if mine else None


def _descends(process: int, ancestor: int, parents: dict[int, int]) -> bool:
    parent = parents[process]
    while parent != ancestor and parent in parents:
        parent = parents[parent]
    return parent == ancestor
