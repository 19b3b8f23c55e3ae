"""Verdicts that are kept from check to check: of a case on a sglang that does not change, a published one above all."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.cases.atomic_file import write_text
from repro.cases.case import Case
from repro.cases.codec import digest
from repro.traces.finding import Verdict

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A file for each case in `folder`. The folder's name holds all that verdicts depend on besides the case: sglang's
    sources, the harness's, the environment's versions. Several processes may write here at once: they write the same,
    and a file is whole or absent."""

    folder: Path

    def has(self, case: Case) -> bool:
        """True if a file is kept for this case, whole or not."""
        return self._path(case).exists()

    def of(self, case: Case, judged: Callable[[], Sequence[Verdict] | None]) -> Sequence[Verdict] | None:
        """The verdicts of this case: those that are kept, else what `judged` says now, which is kept. None, and
        nothing is kept, where that could not be said."""
        path = self._path(case)
        stored = _read(path)
        if stored is not None:
            return stored
        verdicts = judged()
        if verdicts is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            form = {"format": FORMAT, "verdicts": [verdict.to_json() for verdict in verdicts]}
            write_text(path, json.dumps(form, indent=1) + "\n")
        return verdicts

    def _path(self, case: Case) -> Path:
        return self.folder / f"{digest(case)}.json"


def _read(path: Path) -> Sequence[Verdict] | None:
    """None where there is no such file, or one that was cut or made by another version of this module."""
    try:
        form = json.loads(path.read_text())
        return [Verdict.from_json(part) for part in form["verdicts"]] if form["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
