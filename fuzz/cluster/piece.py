"""A piece of a command: an eagleeye command with the files that it names, which any node can carry out.

A few KB, named by what it asks for, as is what it writes. It is carried out within the process of a slot, so that what
has been imported, and the fork servers, are there for the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fuzz.cluster.slot import Slot
from repro.commands.settings import VARIABLE as SETTINGS
from repro.ledger.write import RUN_VARIABLE, VARIABLE

# Arguments that name a place in the folder of a piece: what it writes; and a folder, whose seeds go back, too.
RESULT, LOG, KEPT = "result.json", "piece.log", "kept"
# Characters of a piece's complaint to report.
COMPLAINT_END = 400

# The command line of a package, given its name: arguments to exit code.
Main = Callable[[str], Callable[[Sequence[str]], int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """name: for a person. arguments: the package, and what stands behind `python -m PACKAGE`; RESULT, LOG, KEPT and the
    names of files are replaced by their paths. files: their texts."""

    name: str
    arguments: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        """The same for the same work."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Piece:
        return cls(**(dict(form) | {"arguments": tuple(form["arguments"])}))

    def put(self, folder: Path) -> list[str]:
        """Write its files into this folder, anew: its arguments there."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, text in self.files.items():
            (folder / name).write_text(text)
        places = {*self.files, RESULT, LOG, KEPT}
        return [str(folder / word) if word in places else word for word in self.arguments]


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceWork:
    """main: finds the command line of a package. folder: a place for the files of one piece at a time."""

    slot: Slot
    main: Main
    folder: Path

    def do(self, form: Mapping[str, Any], seconds: float | None) -> dict[str, Any]:
        """`code`, its exit code; `result`, what it wrote to RESULT, else printed; `complained`; `kept`, texts of files
        by their names. `lost` if it was interrupted."""
        piece = Piece.from_json(form)
        # The driver writes the ledger.
        for variable in (VARIABLE, RUN_VARIABLE):
            os.environ.pop(variable, None)
        os.environ[SETTINGS] = ""  # its words say all
        printed, complained = io.StringIO(), io.StringIO()
        code = -1
        # An interrupt is the command's, which ends as it does on one host.
        with (
            contextlib.suppress(KeyboardInterrupt),
            self.slot.under_way(),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(complained),
        ):
            package, *arguments = piece.put(self.folder)
            code = self.main(package)(arguments)
        print(complained.getvalue(), file=sys.stderr, end="")
        if self.slot.stopped:
            return {"id": piece.id, "lost": "interrupted"}
        result, kept = self.folder / RESULT, self.folder / KEPT
        return {
            "id": piece.id,
            "code": code,
            "result": result.read_text() if result.exists() else printed.getvalue(),
            "complained": complained.getvalue().strip()[-COMPLAINT_END:],
            "kept": {str(path.relative_to(kept)): path.read_text() for path in sorted(kept.rglob("*.json"))},
        }
