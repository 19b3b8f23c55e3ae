"""A ledger that another process makes while it is being opened: nobody mistakes it for something else."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from repro.ledger import schema
from repro.ledger.read import read
from repro.ledger.schema import BadLedger
from repro.ledger.write import Ledger

MADE, WAITS = "made", "waits"


class Meanwhile:
    """Another process that makes the ledger just as the n-th statement of a first connection begins, statements
    within statements included. Mutable. did: MADE, WAITS where it was not its turn, or its trouble; empty where there
    is no such statement."""

    def __init__(self, path: Path, moment: int, connect: Callable[[str], sqlite3.Connection]) -> None:
        self.path, self.moment, self._connect = path, moment, connect
        self.did = ""
        self._statements = itertools.count()
        self._busy = False

    def connect(self, uri: str) -> sqlite3.Connection:
        connection = self._connect(uri)
        if not self._busy:
            connection.set_trace_callback(self._statement)
        return connection

    def _statement(self, text: str) -> None:
        if self._busy or next(self._statements) != self.moment:
            return
        self._busy = True
        try:
            Ledger.open(self.path).close()
            self.did = MADE
        except BadLedger as error:
            # SQLite swallows what is raised here, so that the test has to look at it.
            self.did = WAITS if "database is locked" in str(error) else str(error)
        self._busy = False


@pytest.mark.slow
@pytest.mark.parametrize("opened", [Ledger.open, read])
def test_another_process_makes_it_at_any_moment(
    opened: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, did = schema._connect, []
    # Whoever holds the file does not go on before the other has given up.
    monkeypatch.setattr(schema, "WAIT_S", 0.0)
    for moment in itertools.count():
        path = tmp_path / f"{moment}.db"
        path.touch()
        meanwhile = Meanwhile(path, moment, connect)
        monkeypatch.setattr(schema, "_connect", meanwhile.connect)
        opened(path)
        if not meanwhile.did:
            break
        did.append(meanwhile.did)
        assert not read(path).runs
    assert set(did) == {MADE, WAITS} and len(did) > 5
