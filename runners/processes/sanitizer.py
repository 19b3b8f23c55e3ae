"""NVIDIA's compute-sanitizer around a worker: where it is, how it is called, and what its reports say.

It runs every kernel under observation and names the kernel, the thread and the address of a bad access, of replayed
graphs as well. Everything is many times slower.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from repro.cases.case import Target
from repro.cases.own_place import temporary_folder
from runners.processes.pool import START_S, Pool
from runners.processes.warm import room_for
from runners.targets.environments import NotUsable

PROGRAM = "compute-sanitizer"
# By which factor a silence may be longer than without the sanitizer.
SLOWER = 20.0
# Each tensor has memory of its own, whose end the tool knows; torch keeps many in one piece otherwise, and what is read
# behind one of them lies within it. The driver gives no memory while a graph is captured.
_UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
# Of each process; the first one is what counts.
_REPORTS_MAX = 50

_LINE = re.compile(r"^=+ ?(.*)$", re.MULTILINE)
_HEAD = re.compile(
    r"(?P<what>(?:Invalid|Misaligned|Uninitialized) \S+ (?:memory )?(?:read|write|atomic)[^\n]*?|"
    r"(?:(?:Error|Warning): )?Race reported[^\n]*?|Barrier error[^\n]*?|Divergent thread[^\n]*?)"
    r"(?: of size (?P<size>\d+)(?: bytes?)?)?$"
)
_KERNEL = re.compile(r"^\s*at (?:0x[0-9a-f]+ in )?(?P<kernel>.+?)(?:[+:]0x[0-9a-f]+)?(?: in \S+:\d+)?$")
_THREAD = re.compile(r"by thread (?P<thread>\([\d,]+\)) in block (?P<block>\([\d,]+\))")
_ADDRESS = re.compile(r"(?:Access (?:at|to)|Address) (?P<address>0x[0-9a-f]+)(?P<why>[^\n]*)")
_NEAR = re.compile(r"and is (?P<near>(?:[\d,]+ bytes (?:before|after)|inside) the nearest allocation[^\n]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One bad access. what: "Invalid __global__ write"; size: in bytes, 0 if none is given; the rest as the tool has
    it, empty where it says nothing. near: where the address lies from the next allocation."""

    what: str
    size: int = 0
    kernel: str = ""
    thread: str = ""
    block: str = ""
    address: str = ""
    near: str = ""

    def __str__(self) -> str:
        parts = [self.what + (f" of {self.size} bytes" if self.size else "")]
        parts += [f"in {self.kernel}"] if self.kernel else []
        parts += [f"by thread {self.thread} of block {self.block}"] if self.thread else []
        parts += [f"at {self.address}"] if self.address else []
        return " ".join(parts) + (f", {self.near}" if self.near else "")


def program(environment: Mapping[str, str] = os.environ) -> Path:
    """The path of compute-sanitizer. NotUsable if it is missing."""
    on_path = shutil.which(PROGRAM, path=environment.get("PATH"))
    if on_path:
        return Path(on_path)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environment.get(variable) and (path := Path(environment[variable]) / "bin" / PROGRAM).exists():
            return path
    raise NotUsable(
        f"{PROGRAM} is neither on PATH nor in CUDA_HOME/bin; it comes with the CUDA toolkit (package cuda-sanitizer)"
    )


def is_there() -> bool:
    """True if compute-sanitizer is installed."""
    try:
        program()
    except NotUsable:
        return False
    return True


class Reports:
    """A folder for the reports of one worker and its sessions, and what they come to. Mutable: more come in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told: set[tuple[str, str]] = set()

    def fresh(self) -> tuple[Access, ...]:
        """The accesses that were not there at the last call."""
        unseen = [access for access in accesses(self._folder) if (access.what, access.kernel) not in self._told]
        self._told |= {(access.what, access.kernel) for access in unseen}
        return tuple(unseen)


@contextmanager
def observed_pool(
    target: Target, tool: str, *, timeout_s: float, fresh: bool, log: Path | None, captures: bool = True
) -> Iterator[tuple[Pool, Reports]]:
    """A pool whose worker runs under this tool, and the reports that come in; without a tool, a plain one and none.
    captures: whether its sessions capture graphs. NotUsable if compute-sanitizer is not there."""
    slower = SLOWER if tool else 1.0
    with temporary_folder("eagleeye-sanitizer-") as folder:
        reports = Reports(folder)
        with Pool(
            target,
            timeout_s=slower * timeout_s,
            start_s=slower * START_S,
            fresh=fresh,
            log=log,
            variables={} if captures or not tool else _UNCACHED,
            standbys=0 if tool else room_for(target.engine),
            wrapper=wrapper(tool, folder) if tool else (),
        ) as pool:
            yield pool, reports


def wrapper(tool: str, reports: Path) -> tuple[str, ...]:
    """The words in front of a worker's command line. reports: the folder that gets one report per process, sessions
    that the worker forks among them. NotUsable if the program is not there."""
    return (
        str(program()),
        *("--tool", tool),
        *("--target-processes", "all"),
        *("--print-limit", str(_REPORTS_MAX)),
        # What sglang asks of the driver and is refused is its own business.
        *("--report-api-errors", "no"),
        *("--log-file", str(reports / "%p.txt")),
    )


def accesses(reports: Path) -> tuple[Access, ...]:
    """The accesses of all reports in this folder, each kind in each kernel once, in the order of the reports."""
    texts = [path.read_text(errors="replace") for path in sorted(reports.glob("*.txt"), key=_age)]
    by_place: dict[tuple[str, str], Access] = {}
    for text in texts:
        for access in parse(text):
            by_place.setdefault((access.what, access.kernel), access)
    return tuple(by_place.values())


def parse(text: str) -> tuple[Access, ...]:
    """The bad accesses in a report, in its order."""
    reports: list[dict[str, str]] = []
    for line in (match.group(1).strip() for match in _LINE.finditer(text)):
        if head := _HEAD.match(line):
            reports.append({"what": head["what"], "size": head["size"] or "0"})
        elif reports:
            _add(reports[-1], line)
    return tuple(Access(size=int(report.pop("size")), **report) for report in reports)


def _add(access: dict[str, str], line: str) -> None:
    """Add what a further line says of an access, unless it is known."""
    if thread := _THREAD.search(line):
        access.setdefault("thread", thread["thread"])
        access.setdefault("block", thread["block"])
    elif address := _ADDRESS.search(line):
        access.setdefault("address", address["address"])
    elif near := _NEAR.search(line):
        access.setdefault("near", near["near"])
    elif "thread" not in access and (kernel := _KERNEL.match(line)):
        access.setdefault("kernel", kernel["kernel"])


def _age(path: Path) -> tuple[float, str]:
    return path.stat().st_mtime, path.name
