"""The limit of an ending: a command that an interrupt does not end in time ends at once, with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict
from pathlib import Path

INTERRUPTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Seconds from an interrupt on. A command that must answer within ten has two to be noticed and torn down.
PATIENCE_S = 8.0
_PROJECT = str(Path(__file__).resolve().parents[2])


def limit_ending(patience_s: float = PATIENCE_S) -> None:
    """Have this process end so long after its first interrupt at the latest, whatever its main thread waits for: a
    kernel that frees a device's memory, a locked ledger. Records and ledgers are whole at every moment."""
    ours, noted = os.pipe()
    os.set_blocking(noted, False)
    # Written as a signal comes, not when the main thread gets to its handler.
    signal.set_wakeup_fd(noted, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(ours, patience_s), daemon=True).start()


def _watch(noted: int, patience_s: float) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)  # they are the main thread's
    while not any(number in INTERRUPTS for number in os.read(noted, 64)):
        pass
    time.sleep(patience_s)
    place = _place_of_main()
    end_all(descendants(os.getpid()))
    with contextlib.suppress(OSError):  # a terminal that is gone
        os.write(2, f"error: interrupted, and ended {patience_s:g} s later where it still was: {place}\n".encode())
    os._exit(3)  # ExitCode.ERROR, without importing it


def _place_of_main() -> str:
    """The innermost line of eagleeye in the main thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    lines = [entry for entry in traceback.extract_stack(frame) if entry.filename.startswith(_PROJECT)]
    return f"{lines[-1].filename}:{lines[-1].lineno} ({lines[-1].name})" if frame and lines else "at its exit"


def end_all(processes: list[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """All processes that this one, or one of them, has started and that are still there."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            children[_parent(entry)].append(int(entry.name))
    family = list(children[pid])
    for child in family:
        family += children[child]
    return family


def _parent(process: Path) -> int:
    """0 if it has ended meanwhile."""
    try:
        # The name, in parentheses, may hold anything; the state and the parent stand behind it.
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
