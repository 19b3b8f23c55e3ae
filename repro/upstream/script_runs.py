"""Runs of any command on a target: a failing script of a reader's, say, that no seed describes."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from repro.cases.case import Target
from repro.upstream.file_check import ending
from repro.upstream.rig import Refused, Rig, Sighting
from repro.upstream.running import run

# git bisect run takes it so: this version cannot be judged.
SKIPPED = 125


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line. Exit code 0: the target is good, 125: it cannot be judged, any other, or no end in time: it is
    bad. python and python3 are the target's own interpreter."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Command:
        """Refused if it is none."""
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            raise Refused(f"--cmd {text!r}: {error}") from error
        if not words:
            raise Refused("--cmd: it is empty")
        return cls(words=words)

    def __str__(self) -> str:
        return shlex.join(self.words)

    def sightings(self, rig: Rig, target: Target, most: int, until_bad: bool = False) -> Iterator[Sighting]:
        """Up to so many runs, in the current folder and with the target on the import path; one that says nothing ends
        them. Refused if there is no such program."""
        for _ in range(most):
            seen = self._run(rig, target)
            yield seen
            if seen.bad is None or (until_bad and seen.bad):
                return

    def _run(self, rig: Rig, target: Target) -> Sighting:
        interpreter, variables = rig.alone(target)
        words = [str(interpreter) if word in ("python", "python3") else word for word in self.words]
        try:
            code, printed = run(words, variables, rig.patience)
        except subprocess.TimeoutExpired:
            return Sighting(bad=True)
        except OSError as error:
            raise Refused(f"--cmd {words[0]}: {error.strerror or error}") from error
        if code == SKIPPED:
            last = ending(printed.decode(errors="replace")).splitlines()[-1:]
            return Sighting(bad=None, why=f"exit code {SKIPPED}: {''.join(last)}")
        return Sighting(bad=code != 0)
