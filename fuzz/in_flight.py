"""The cases that are being run, on disk before they begin: a case that takes the whole machine down is found there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from repro.cases.case import Case
from repro.cases.codec import Seed, dumps

T = TypeVar("T")

# The case that is being run, and the next one, which may lie with the session already.
CASES = 2
NAME = "in-flight"


class InFlight:
    """The latest cases in a folder. Mutable: the oldest gives way to the next. name: keeps apart the files of
    processes that work in the same folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._paths = [folder / f"{NAME}-{name}-{number}.json" for number in range(CASES)]
        self._latest: list[Case] = []

    def put(self, case: Case) -> None:
        """Have this case on disk. OSError if the disk refuses.

        Written through to the operating system and no further: flushing to the platter would cost more than a run,
        and what is at stake is a process or a driver that dies, not the power.
        """
        if any(case is known for known in self._latest):
            return
        self._latest = [*self._latest, case][-CASES:]
        path = self._paths[0]
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(dumps(Seed(about={"found": "in flight when this was written"}, case=case)), "utf-8")
        temporary.replace(path)
        self._paths.append(self._paths.pop(0))

    def before(self, run: Callable[[Case], T]) -> Callable[[Case], T]:
        """The same function, with the case on disk before it begins."""

        def put_and_run(case: Case) -> T:
            self.put(case)
            return run(case)

        return put_and_run

    def clear(self) -> None:
        """Every run has ended in an orderly way: remove the files."""
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._latest = []
