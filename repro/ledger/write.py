"""Writing the ledger: any number of processes append to one file, each row in a transaction of its own.

What a call has returned from is stored, whatever kills the process afterwards.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import threading
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from repro.ledger.rows import CampaignRow, CaseRow, CheckRow, FindingRow, FixRow, Row, Run
from repro.ledger.schema import TABLES, columns, connect_to_write, stored, trouble

VARIABLE = "EAGLEEYE_LEDGER"
# A run of that ledger which a command is a part of, instead of one of its own: its id.
RUN_VARIABLE = "EAGLEEYE_RUN"


class Ledger:
    """A ledger that is open for writing. Mutable; for any number of threads, but not across a fork."""

    def __init__(self, path: Path) -> None:
        """BadLedger if it cannot be written."""
        self.path = path
        self._lock = threading.Lock()
        self._connection = connect_to_write(path)

    @classmethod
    def open(cls, path: Path) -> Ledger:
        return cls(path)

    def close(self) -> None:
        with self._lock, trouble(self.path):
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def begin(self, kind: str, *, command: str = "", facts: Mapping[str, str] | None = None) -> str:
        """A new run; its id."""
        run = Run(
            id=uuid.uuid4().hex,
            kind=kind,
            started=now(),
            command=command or shlex.join(sys.orig_argv),
            host=platform.node(),
            facts=own_facts() | dict(facts or {}),
        )
        self._execute(f"INSERT INTO runs ({columns(Run)}) VALUES (?, ?, ?, ?, ?, ?, ?)", stored(run))
        return run.id

    def facts(self, run: str, facts: Mapping[str, str]) -> None:
        """Add facts about the place of this run; texts of one name are listed, each once."""
        with self._lock, trouble(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for (text,) in self._connection.execute("SELECT facts FROM runs WHERE id = ?", (run,)).fetchall():
                    known = json.loads(text)
                    for name, more in facts.items():
                        texts = [*known.get(name, "").split(", "), *more.split(", ")]
                        known[name] = ", ".join(dict.fromkeys(filter(None, texts)))
                    self._connection.execute("UPDATE runs SET facts = ? WHERE id = ?", (json.dumps(known), run))
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def end(self, run: str, facts: Mapping[str, str] | None = None) -> None:
        """The run came to its end; facts: what has become known on the way."""
        self.facts(run, facts or {})
        self._execute("UPDATE runs SET ended = ? WHERE id = ?", (now(), run))

    def case(self, row: CaseRow) -> None:
        self._append(row, flush=False)

    def campaign(self, row: CampaignRow) -> None:
        self._append(row)

    def finding(self, row: FindingRow) -> None:
        self._append(row)

    def check(self, row: CheckRow) -> None:
        self._append(row)

    def fix(self, row: FixRow) -> None:
        self._append(row)

    def _append(self, row: Row, *, flush: bool = True) -> None:
        row = row if row.at else replace(row, at=now())
        values = (os.urandom(16), *stored(row))
        places = ", ".join("?" * len(values))
        text = f"INSERT INTO {TABLES[type(row)]} (key, {columns(type(row))}) VALUES ({places})"
        self._execute(text, values, flush=flush)

    def _execute(self, text: str, values: tuple[object, ...], *, flush: bool = True) -> None:
        """One statement, which is a transaction of its own: it waits for its turn, and then happens whole or not at
        all.

        A committed row outlives its process either way, since the log is with the operating system by then. With
        synchronous NORMAL a power cut may cost the rows since the last flush: of cases, which come by the thousand,
        that is fair; whatever else is stored is flushed to the disk, and the cases before it with it.
        """
        with self._lock, trouble(self.path):
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if flush else 'NORMAL'}")
            self._connection.execute(text, values)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def own_facts() -> dict[str, str]:
    """The facts about its host that every run has."""
    return {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
