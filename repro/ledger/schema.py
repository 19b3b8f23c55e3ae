"""The ledger's file: one SQLite database per host, its schema, how old ones are brought up to date, and what can be
wrong with it, in one line each.

The journal is a write-ahead log, so readers and writers of any number of processes do not stand in each other's way and
a writer that is killed leaves nothing torn. Such a log needs memory shared between its users: the file must lie on a
disk of the host, not on a network; the ledgers of several hosts are joined with `python -m repro ledger merge`.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from repro.ledger.identities import name_buffers, rename, tell_apart
from repro.ledger.rows import CampaignRow, CaseRow, CheckRow, FindingRow, FixRow, Row, Run
from repro.traces.campaign import Campaign
from repro.traces.finding import Cell

# "eagl": what tells a ledger from any other SQLite database.
APPLICATION = 0x6561676C
# How long a writer waits for its turn. A turn takes far less than a millisecond, and as long as the disk wants where a
# finding is flushed; a minute of waiting means that somebody holds the file in a debugger.
WAIT_S = 60.0
_AGAIN_S = 0.02

# The version of a database is how many of these it has been through. What is here is never changed, only added to.
MIGRATIONS: tuple[str | Callable[[sqlite3.Connection], None], ...] = (
    """
    CREATE TABLE runs (
        id TEXT PRIMARY KEY NOT NULL, kind TEXT NOT NULL, started TEXT NOT NULL, ended TEXT NOT NULL,
        command TEXT NOT NULL, host TEXT NOT NULL, facts TEXT NOT NULL);
    -- A row is known by 16 random bytes, so that the same row is seen to be the same in every copy of the ledger.
    CREATE TABLE cases (
        key BLOB NOT NULL UNIQUE, run TEXT NOT NULL, target TEXT NOT NULL, runner TEXT NOT NULL, backend TEXT NOT NULL,
        topk INTEGER NOT NULL, num_steps INTEGER NOT NULL, digest TEXT NOT NULL, status TEXT NOT NULL,
        replays INTEGER NOT NULL, seconds REAL NOT NULL, at TEXT NOT NULL);
    CREATE TABLE campaigns (
        key BLOB NOT NULL UNIQUE, run TEXT NOT NULL, campaign TEXT NOT NULL, at TEXT NOT NULL);
    CREATE TABLE findings (
        key BLOB NOT NULL UNIQUE, run TEXT NOT NULL, target TEXT NOT NULL, fingerprint TEXT NOT NULL,
        oracle TEXT NOT NULL, "where" TEXT NOT NULL, detail TEXT NOT NULL, seed_text TEXT NOT NULL,
        failed INTEGER NOT NULL, tried INTEGER NOT NULL, cell TEXT NOT NULL, at TEXT NOT NULL);
    CREATE TABLE checks (
        key BLOB NOT NULL UNIQUE, run TEXT NOT NULL, target TEXT NOT NULL, subject TEXT NOT NULL, runner TEXT NOT NULL,
        status TEXT NOT NULL, expected TEXT NOT NULL, fingerprint TEXT NOT NULL, oracle TEXT NOT NULL,
        "where" TEXT NOT NULL, failed INTEGER NOT NULL, tried INTEGER NOT NULL, reason TEXT NOT NULL,
        seconds REAL NOT NULL, at TEXT NOT NULL);
    CREATE TABLE fixes (
        key BLOB NOT NULL UNIQUE, run TEXT NOT NULL, number INTEGER NOT NULL, title TEXT NOT NULL, runner TEXT NOT NULL,
        engine TEXT NOT NULL, role TEXT NOT NULL, target TEXT NOT NULL, expected TEXT NOT NULL, status TEXT NOT NULL,
        oracle TEXT NOT NULL, seed TEXT NOT NULL, seconds REAL NOT NULL, problem TEXT NOT NULL, detail TEXT NOT NULL,
        backend TEXT NOT NULL, at TEXT NOT NULL);
    """,
    # What a campaign that is killed had covered.
    """
    ALTER TABLE cases ADD COLUMN verdicts TEXT NOT NULL DEFAULT '';
    ALTER TABLE cases ADD COLUMN transitions TEXT NOT NULL DEFAULT '';
    """,
    # A failure is of a runner and a backend, and names one place; what cannot be run is of two kinds.
    tell_apart,
    # What the float64 reference alone says is a failure of its own oracle.
    rename,
    # Two causes that show in one place of a plan are two failures, told apart by the buffer that is wrong first.
    name_buffers,
)
SCHEMA = len(MIGRATIONS)
TABLES: dict[type[Row], str] = {
    CaseRow: "cases",
    CampaignRow: "campaigns",
    FindingRow: "findings",
    CheckRow: "checks",
    FixRow: "fixes",
}


# A view, a trigger, a table or a column that is computed: a ledger has plain tables alone.
_ODD = """
    SELECT name, type FROM sqlite_master WHERE type NOT IN ('table', 'index')
    UNION ALL SELECT name, 'virtual table' FROM sqlite_master WHERE type = 'table' AND rootpage = 0
    UNION ALL SELECT s.name, 'computed column' FROM sqlite_master m JOIN pragma_table_xinfo(m.name) s
        WHERE m.type = 'table' AND m.rootpage > 0 AND s.hidden > 0
"""
# Limit of a text of a row: a campaign's record, or a seed.
_TEXT_MAX = 256 << 20


class BadLedger(OSError):
    """The ledger cannot be read or written. The text is one line. An OSError, as campaigns take a full disk for part
    of their result, whatever it is that they could not store."""


@contextlib.contextmanager
def trouble(path: Path) -> Iterator[None]:
    """Turns what SQLite says into BadLedger."""
    try:
        yield
    except BadLedger:
        raise
    except sqlite3.Error as error:
        raise BadLedger(f"{path}: {_meaning(error)}") from error
    except UnicodeDecodeError as error:  # in what SQLite says of a damaged schema
        raise BadLedger(f"{path}: is damaged: {error}") from error
    except OSError as error:
        raise BadLedger(f"{path}: {error.strerror or error}") from error


def _meaning(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "")
    for beginning, meaning in (
        ("SQLITE_FULL", "the disk is full; what had been stored before is safe"),
        ("SQLITE_IOERR", "the disk refused the write (full, or over a limit?); what had been stored before is safe"),
        ("SQLITE_READONLY", "the file or its folder is read-only"),
        ("SQLITE_CANTOPEN", "cannot be opened: no such file, or its folder is read-only"),
        ("SQLITE_PERM", "no permission"),
        ("SQLITE_BUSY", f"another process kept it locked for {WAIT_S:.0f} s"),
        ("SQLITE_NOTADB", "not an eagleeye ledger: not an SQLite database"),
        ("SQLITE_CORRUPT", "is damaged"),
    ):
        if name.startswith(beginning):
            return f"{meaning} ({error})"
    return f"{type(error).__name__}: {error}"


def connect_to_write(path: Path) -> sqlite3.Connection:
    """A connection to a ledger of the current schema, which is made or brought up to date first. BadLedger."""
    with trouble(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = _connect(f"{path.absolute().as_uri()}?mode=rwc")
        try:
            check_kind(connection, path)
            _to_log_ahead(connection)
            migrate(connection, path)
            _need_columns(connection, path)
            # Also where nothing had to be made: a file that cannot be written shows at once, before anything is run.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE runs SET ended = ended WHERE id = ''")
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing on disk. A ledger of an older schema is brought up to date in memory."""
    with trouble(path):
        if not path.is_file():
            raise BadLedger(f"{path}: no such file")
        connection = _open_to_read(path)
        try:
            if check_kind(connection, path) == SCHEMA:
                _need_columns(connection, path)
                return connection
            copy = _connect(":memory:")
            connection.backup(copy)
        except BaseException:
            connection.close()
            raise
        connection.close()
        migrate(copy, path)
        _need_columns(copy, path)
        return copy


def _open_to_read(path: Path) -> sqlite3.Connection:
    connection = _connect(f"{path.absolute().as_uri()}?mode=ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        # Readers of a log share memory in a file beside it. A read-only folder has no such file and no writer, unless
        # another user may write; a log that is still there would then be overlooked.
        name = getattr(error, "sqlite_errorname", "")
        if not name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")) or path.with_name(f"{path.name}-wal").exists():
            raise
        connection = _connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1")
    return connection


def _connect(uri: str) -> sqlite3.Connection:
    # A campaign may judge in another thread than it runs in; writers hold a lock (write.py).
    connection = sqlite3.connect(uri, uri=True, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _TEXT_MAX)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def check_kind(connection: sqlite3.Connection, path: Path) -> int:
    """The schema number of a ledger, 0 of an empty database. BadLedger if it is neither, or newer than this code."""
    # In one statement, which sees one state of the file: another process may be making the ledger at this moment, and
    # between two statements an empty database would become one that has tables and was not ours.
    application, version, tables = connection.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master) "
        "FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    if application != APPLICATION and not (tables == 0 and application == 0):
        raise BadLedger(f"{path}: not an eagleeye ledger, but another SQLite database")
    if version > SCHEMA:
        raise BadLedger(f"{path}: has schema {version}, and this eagleeye knows schemas up to {SCHEMA}: update it")
    if odd := connection.execute(_ODD).fetchone():
        raise BadLedger(
            f"{path}: not an eagleeye ledger: {odd[0]} is a {odd[1]}, which runs what it says when it is read"
        )
    return int(version)


def _need_columns(connection: sqlite3.Connection, path: Path) -> None:
    """BadLedger if a table lacks a column of this schema. SQLite takes a name in quotes that is no column for
    a text, and reads on."""
    needed = {"runs": {field.name for field in fields(Run)}}
    needed |= {name: {"key", *(field.name for field in fields(kind))} for kind, name in TABLES.items()}
    for table, names in needed.items():
        present = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}
        if present and (absent := names - present):
            raise BadLedger(f"{path}: not an eagleeye ledger: its table {table} has no column {min(absent)}")


def _to_log_ahead(connection: sqlite3.Connection) -> None:
    """Keep a log from now on. While another process does the same, SQLite says busy at once, without waiting."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY") or time.monotonic() > end:
                raise
            time.sleep(_AGAIN_S)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema up to date, in one step; of several processes that try, one does."""
    if check_kind(connection, path) == SCHEMA:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Who had to wait finds it done.
        for number in range(check_kind(connection, path), SCHEMA):
            migration = MIGRATIONS[number]
            if isinstance(migration, str):
                for statement in migration.split(";"):
                    connection.execute(statement)
            else:
                migration(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def columns(kind: type[Row] | type[Run]) -> str:
    """The columns of a row, in the order of its fields."""
    return ", ".join(f'"{field.name}"' for field in fields(kind))


def stored(row: Row | Run) -> tuple[Any, ...]:
    """The values of these columns."""
    return tuple(_plain(getattr(row, field.name)) for field in fields(row))


def _plain(value: object) -> Any:
    if isinstance(value, Campaign):
        return json.dumps(value.to_json())
    if isinstance(value, Cell):
        return json.dumps(asdict(value))
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    return "" if value is None else value
