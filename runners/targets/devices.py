"""GPUs: those of this machine, those of them that the caller lets us use, and which worker gets which."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from itertools import cycle, islice

VISIBLE = "CUDA_VISIBLE_DEVICES"
# The other way in which CUDA names a device, besides its number.
_UNIQUE = ("GPU-", "MIG-")


def gpus() -> tuple[str, ...]:
    """The names of the NVIDIA GPUs of this machine."""
    return _asked("name")


def memory() -> tuple[float, ...]:
    """The memory of each of them, GiB."""
    return tuple(float(mebibytes) / 1024 for mebibytes in _asked("memory.total") if mebibytes.isdecimal())


@functools.cache
def _asked(what: str) -> tuple[str, ...]:
    """The answers of the driver's own tool for each GPU: torch would touch them."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return ()
    query = [tool, f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()  # a driver that does not answer cannot be used
    return tuple(line.strip() for line in listed.stdout.splitlines() if line.strip()) if listed.returncode == 0 else ()


def visible(count: int, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The devices that we may use, each as CUDA_VISIBLE_DEVICES names it: the caller's list if there is one, else all
    of this machine's `count`. CUDA reads that list up to the first entry that names none; so do we."""
    listed = environment.get(VISIBLE)
    if listed is None:
        return tuple(map(str, range(count)))
    devices: list[str] = []
    for entry in map(str.strip, listed.split(",")):
        numbered = entry.isascii() and entry.isdecimal() and int(entry) < count
        if not (numbered or entry.startswith(_UNIQUE)):
            break
        if entry not in devices:
            devices.append(entry)
    return tuple(devices)


def spread(workers: int, devices: Sequence[str]) -> list[str]:
    """A device for each worker, in turn; the empty text for all if there are no devices."""
    return list(islice(cycle(devices or ("",)), workers))


class Seats:
    """Places for workers, so many on each device, those of different devices first. Mutable: a place that is given
    back, as its worker died, is the next one's."""

    def __init__(self, devices: Sequence[str], a_device: int = 1) -> None:
        self._free = [device for _ in range(a_device) for device in devices]

    def take(self) -> str | None:
        """A device with a free place; None if all are taken."""
        return self._free.pop(0) if self._free else None

    def give_back(self, device: str) -> None:
        self._free.insert(0, device)

    def __len__(self) -> int:
        return len(self._free)
