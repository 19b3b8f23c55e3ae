"""Checks that an exported file does what it says: it runs as its reader will run it, with sglang and without eagleeye
on the import path, on a target that has the bug and on one that does not."""

from __future__ import annotations

import os
import re
import resource
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.cases.case import Target
from repro.cases.own_place import temporary_folder
from repro.upstream.rig import Rig
from repro.upstream.running import run as to_its_end

_RAISED = re.compile(r"(\w+\.)*\w*(Error|Exception): ")
_SAID_LINES = 4
HOST = "sitecustomize.py"  # Python runs it first


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The runs of the file on the target of this name, and how many ended as is right there. expected: the exit
    code that is. code, output: the last run's own, and the end of what it printed. seconds: of the processor that a
    run took."""

    name: str
    expected: int
    right: int
    tries: int
    code: int
    output: str
    seconds: float = 0.0

    def __str__(self) -> str:
        what = "shows the bug" if self.expected else "passes"
        return f"{what} in {self.right} of {self.tries} runs on {self.name}"


def check(
    rig: Rig,
    text: str,
    target: Target,
    expected: int,
    tries: int,
    arguments: Sequence[str] = (),
    *,
    before: Sequence[str] = (),
    says: str = "",
    host: str = "",
) -> Checked:
    """Run the file that often, each time in a folder of its own. expected: the exit code that is right there. before:
    arguments of Python before the file. says: what must stand in its output for a run to be right. host: Python that
    is run first, which puts in what the reader's host has and this one may not."""
    right, code, output, before_s = 0, 0, "", _processor_seconds()
    for _ in range(tries):
        with temporary_folder("eagleeye-file-") as folder:
            path = folder / "test_repro.py"
            path.write_text(text)
            if host:
                (folder / HOST).write_text(host)
            code, printed = run(rig, [*before, str(path), *arguments], target, folder)
            right += code == expected and re.search(says, printed, re.MULTILINE) is not None
            output = ending(printed)
    seconds = (_processor_seconds() - before_s) / tries
    return Checked(
        name=rig.named(target), expected=expected, right=right, tries=tries, code=code, output=output, seconds=seconds
    )


def _processor_seconds() -> float:
    """The seconds of all processes that have been waited for: other work on the host does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ending(printed: str) -> str:
    """The last few lines; of an exception its first lines, as messages go on with advice."""
    lines = printed.splitlines()
    raised = [number for number, line in enumerate(lines) if _RAISED.match(line)]
    return "\n".join(lines[raised[-1] :][:_SAID_LINES] if raised else lines[-_SAID_LINES:])


def run(rig: Rig, command: Sequence[str], target: Target, folder: Path) -> tuple[int, str]:
    """The exit code of Python with these arguments, and what it printed."""
    interpreter, variables = rig.alone(target)
    environment = dict(variables)
    if (folder / HOST).exists():
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), variables["PYTHONPATH"]])
    try:
        code, printed = to_its_end([str(interpreter), *command], environment, rig.patience, folder)
    except subprocess.TimeoutExpired:
        return -1, f"silent for {rig.patience:.0f} s"
    return code, printed.decode(errors="replace")
