"""Joining ledgers of several hosts, and whether a ledger is sound."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from repro.cases import codec
from repro.cases.codec import BadSeed
from repro.ledger.read import History, read
from repro.ledger.rows import Row, Run
from repro.ledger.schema import TABLES, BadLedger, columns, connect_to_read, connect_to_write, trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The runs and rows that one ledger added to another."""

    source: Path
    runs: int
    rows: int


def merge(out: Path, sources: Sequence[Path]) -> list[Joined]:
    """Put all runs and rows of the sources into `out`, which is made if it is not there. Whatever is there already
    stays as it is, so that nothing is counted twice however often it is done. BadLedger; then all sources before the
    one that it names are in `out`, whole."""
    for source in sources:
        # Before anything is written, so that a bad name shows at once.
        with trouble(source):
            connect_to_read(source).close()
    with trouble(out):
        connection = connect_to_write(out)
        try:
            return [_join(connection, source) for source in sources]
        finally:
            connection.close()


def _join(connection: sqlite3.Connection, source: Path) -> Joined:
    """All of a source, in one transaction."""
    with trouble(source):
        other = connect_to_read(source)
    try:
        with trouble(source):
            other.execute("BEGIN")
        connection.execute("BEGIN IMMEDIATE")
        try:
            runs = _join_runs(connection, partial(_found, source, other))
            rows = sum(_join_rows(connection, partial(_found, source, other), kind) for kind in TABLES)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    finally:
        other.close()
    return Joined(source=source, runs=runs, rows=rows)


def _found(source: Path, other: sqlite3.Connection, query: str) -> Iterator[tuple[object, ...]]:
    """The rows of a source. An error meanwhile is reported as the source's, not as that of the ledger written to."""
    with trouble(source):
        yield from other.execute(query)


Ask = Callable[[str], Iterator[tuple[object, ...]]]


def _join_runs(connection: sqlite3.Connection, ask: Ask) -> int:
    """A run that was copied while it was under way is completed."""
    before = _count(connection, "runs")
    connection.executemany(
        f"INSERT INTO runs ({columns(Run)}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
        "facts = iif(excluded.ended > ended, excluded.facts, facts), ended = max(ended, excluded.ended)",
        ask(f"SELECT {columns(Run)} FROM runs ORDER BY rowid"),
    )
    return _count(connection, "runs") - before


def _join_rows(connection: sqlite3.Connection, ask: Ask, kind: type[Row]) -> int:
    before, table = _count(connection, TABLES[kind]), TABLES[kind]
    named = f"key, {columns(kind)}"
    places = ", ".join("?" * (1 + len(fields(kind))))
    rows = ask(f"SELECT {named} FROM {table} ORDER BY rowid")
    connection.executemany(f"INSERT OR IGNORE INTO {table} ({named}) VALUES ({places})", rows)
    return _count(connection, table) - before


def _count(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def check(path: Path) -> History:
    """All of a ledger that was found sound: SQLite says so, every row makes sense and belongs to a run, and the seed
    of every finding can be read. BadLedger, naming the first thing that is not so."""
    with trouble(path):
        connection = connect_to_read(path)
        try:
            (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if result != "ok":
                raise BadLedger(f"{path}: is damaged: {' '.join(result.split())}")
            for table in TABLES.values():
                orphans = f"SELECT count(*) FROM {table} WHERE run NOT IN (SELECT id FROM runs)"
                if count := connection.execute(orphans).fetchone()[0]:
                    raise BadLedger(f"{path}: is damaged: {count} rows of {table} belong to no run")
        finally:
            connection.close()
    history = read(path)
    for finding in history.findings:
        try:
            codec.loads(finding.seed_text)
        except BadSeed as error:
            raise BadLedger(f"{path}: the seed of finding {finding.fingerprint}: {error}") from error
    return history
