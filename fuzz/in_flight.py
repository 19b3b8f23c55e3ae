"""The cases that are being run, on disk before they begin: a case that takes the whole machine down is found there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from repro.cases.atomic_file import written
from repro.cases.case import Case
from repro.cases.codec import Seed, dumps

T = TypeVar("T")

NAME = "in-flight"
# Cases that were announced and never came, as their setup was left, give way in the end.
_CASES_MAX = 256


class InFlight:
    """The cases that are with sessions, or may be soon, a file each in a folder. Mutable. name: keeps apart the files
    of processes that work in the same folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._numbers: dict[Case, int] = {}  # the case that was put first stands first
        self._free = list(range(_CASES_MAX, -1, -1))

    def put(self, cases: Iterable[Case]) -> None:
        """Have these cases on disk. OSError if the disk refuses.

        Written through to the operating system and no further: flushing to the platter would cost more than a run,
        and what is at stake is a process or a driver that dies, not the power.
        """
        for case in cases:
            if case in self._numbers:
                continue
            if len(self._numbers) == _CASES_MAX:
                self._drop(next(iter(self._numbers)))
            self._numbers[case] = self._free.pop()
            with written(self._path(case), flushed=False) as file:
                file.write(dumps(Seed(about={"found": "in flight when this was written"}, case=case)).encode())

    def before(self, run: Callable[[Case], T]) -> Callable[[Case], T]:
        """The same function, with the case on disk from before it begins until it has ended."""

        def put_and_run(case: Case) -> T:
            self.put([case])
            result = run(case)
            self._drop(case)
            return result

        return put_and_run

    def clear(self) -> None:
        """Every run has ended in an orderly way: remove the files."""
        for case in list(self._numbers):
            self._drop(case)

    def _path(self, case: Case) -> Path:
        return self._folder / f"{NAME}-{self._name}-{self._numbers[case]}.json"

    def _drop(self, case: Case) -> None:
        if case in self._numbers:
            self._path(case).unlink(missing_ok=True)
            self._free.append(self._numbers.pop(case))
