"""The cases that are being run, on disk before they begin: one that takes the whole machine down is found there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from repro.cases.case import Case
from repro.cases.codec import Seed, dumps

T = TypeVar("T")

# One is being run, and the next one may lie with the session already.
CASES = 2
NAME = "under-way"


class UnderWay:
    """The latest cases in a folder. Mutable: the oldest gives way to the next. name: what tells them from those of
    others who work in the same folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._paths = [folder / f"{NAME}-{name}-{number}.json" for number in range(CASES)]
        self._latest: list[Case] = []

    def put(self, case: Case) -> None:
        """Have this case on disk. OSError if the disk refuses.

        Written through to the operating system and no further: flushing to the platter would cost more than a run,
        and what is at stake is a process or a driver that dies, not the power.
        """
        if any(case is one for one in self._latest):
            return
        self._latest = [*self._latest, case][-CASES:]
        path = self._paths[0]
        beside = path.with_suffix(f".{os.getpid()}.tmp")
        beside.write_text(dumps(Seed(about={"found": "under way when this was written"}, case=case)), encoding="utf-8")
        beside.replace(path)
        self._paths.append(self._paths.pop(0))

    def before(self, run: Callable[[Case], T]) -> Callable[[Case], T]:
        """The same, with the case on disk before it begins."""

        def put_and_run(case: Case) -> T:
            self.put(case)
            return run(case)

        return put_and_run

    def clear(self) -> None:
        """All came to an end that is known."""
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._latest = []
