"""The cases that are being run, on disk before they begin: a case that takes the whole machine down is found there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from repro.cases.case import Case
from repro.cases.codec import Seed, dumps

T = TypeVar("T")

NAME = "in-flight"


class InFlight:
    """The cases that are with sessions, a file each in a folder. Mutable. name: keeps apart the files of processes
    that work in the same folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._paths: dict[Case, Path] = {}
        self._ahead: dict[str, set[Case]] = {}  # those that were sent before their turn, by who said so

    def put(self, case: Case) -> None:
        """Have this case on disk. OSError if the disk refuses.

        Written through to the operating system and no further: flushing to the platter would cost more than a run,
        and what is at stake is a process or a driver that dies, not the power.
        """
        if case in self._paths:
            return
        numbers = {path.stem for path in self._paths.values()}
        stems = (f"{NAME}-{self._name}-{number}" for number in range(len(numbers) + 1))
        path = self._folder / f"{next(stem for stem in stems if stem not in numbers)}.json"
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(dumps(Seed(about={"found": "in flight when this was written"}, case=case)), "utf-8")
        temporary.replace(path)
        self._paths[case] = path

    def before(self, run: Callable[[Case], T]) -> Callable[[Case], T]:
        """The same function, with the case on disk from before it begins until it has ended."""

        def put_and_run(case: Case) -> T:
            self.put(case)
            result = run(case)
            self._drop({case})
            return result

        return put_and_run

    def ahead(self, who: str, cases: Iterable[Case]) -> None:
        """These may begin before their turn; what the same one said before and says no more has not, or is over."""
        before, now = self._ahead.get(who, set()), set(cases)
        self._ahead[who] = now
        self._drop(before - set().union(*self._ahead.values()))
        for case in now:
            self.put(case)

    def clear(self) -> None:
        """Every run has ended in an orderly way: remove the files."""
        self._drop(set(self._paths))

    def _drop(self, cases: set[Case]) -> None:
        for case in cases & self._paths.keys():
            self._paths.pop(case).unlink(missing_ok=True)
