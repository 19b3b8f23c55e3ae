"""Migrates ledger rows whose failures had no runner and backend, and whose UNSUPPORTED and ERROR were one status; rows
that allow no assignment are counted in the facts of their run. And rows whose failures have another name now."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter, defaultdict
from typing import Any

from repro.cases import codec
from repro.cases.codec import BadSeed
from repro.ledger.rows import ERROR, FINDING, SEED, UNSUPPORTED
from repro.traces.earlier import UNFIT, places, renamed, told_apart
from repro.traces.finding import OF_PLANS, fingerprint

# The fact of a run that says which of its rows could not be assigned to a runner and backend.
FACT = "not told apart"
_COLUMNS = (
    "ALTER TABLE findings ADD COLUMN runner TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE findings ADD COLUMN backend TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE checks ADD COLUMN backend TEXT NOT NULL DEFAULT ''",
)
Kind = tuple[str, str]  # runner and backend


def tell_apart(connection: sqlite3.Connection) -> None:
    """In the transaction that is open. What is derived of a row is the same in every copy of the ledger."""
    for statement in _COLUMNS:
        connection.execute(statement)
    rest: defaultdict[str, Counter[str]] = defaultdict(Counter)
    known = _findings(connection, rest)
    _checks(connection, known, _backends(connection), rest)
    _trouble(connection, rest)
    for run, texts in rest.items():
        _add_fact(connection, run, "; ".join(f"{count} {text}" for text, count in texts.items()))


def _rows(connection: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    # By a name that no column has: fixes have a number of their own.
    cursor = connection.execute(f"SELECT rowid AS place, * FROM {table} ORDER BY rowid")
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, values, strict=True)) for values in cursor]


def _put(connection: sqlite3.Connection, table: str, row: dict[str, Any], forms: list[dict[str, Any]]) -> None:
    """Have these forms of a row in its place: itself, and copies whose keys follow from its own."""
    for number, changes in enumerate(forms):
        form = row | changes
        rowid = form.pop("place")
        if number == 0:
            named = ", ".join(f'"{name}" = ?' for name in changes)
            connection.execute(f"UPDATE {table} SET {named} WHERE rowid = ?", (*changes.values(), rowid))
            continue
        form["key"] = hashlib.sha256(row["key"] + str(number).encode()).digest()[: len(row["key"])]
        named = ", ".join(f'"{name}"' for name in form)
        marks = ", ".join("?" * len(form))
        connection.execute(f"INSERT INTO {table} ({named}) VALUES ({marks})", tuple(form.values()))


class _Known:
    """The stored findings of each fingerprint of before. Mutable."""

    def __init__(self) -> None:
        self.kinds: defaultdict[str, set[Kind]] = defaultdict(set)
        self.failures: dict[str, tuple[str, str]] = {}  # oracle and where

    def kind(self, old: str, runner: str) -> Kind | None:
        """The one runner and backend that this can be, of this runner if that is known."""
        kinds = {kind for kind in self.kinds[old] if runner in ("", kind[0])}
        return kinds.pop() if len(kinds) == 1 else None


def _findings(connection: sqlite3.Connection, rest: defaultdict[str, Counter[str]]) -> _Known:
    known = _Known()
    for row in _rows(connection, "findings"):
        old, oracle = row["fingerprint"], row["oracle"]
        try:
            setup = codec.loads(row["seed_text"]).case.setup
        except BadSeed:
            rest[row["run"]][f"finding {old}, whose seed cannot be read"] += 1
            continue
        known.kinds[old].add((setup.runner, setup.backend))
        known.failures[old] = (oracle, row["where"])
        named = places(oracle, row["where"])
        cell = json.loads(row["cell"]) if row["cell"] else {}
        identity = {"runner": setup.runner, "backend": setup.backend}
        forms = [
            identity
            | {
                "where": where,
                "fingerprint": fingerprint(setup.runner, setup.backend, oracle, where),
                "cell": row["cell"] if len(named) == 1 or where.endswith(f" {cell.get('buffer')}") else "",
            }
            for where in named
        ]
        _put(connection, "findings", row, forms)
    return known


def _backends(connection: sqlite3.Connection) -> dict[str, str]:
    """The backend of each runner, if the ledger knows but one."""
    by_runner = defaultdict(set)
    for table in ("cases", "fixes", "findings"):
        for runner, backend in connection.execute(f"SELECT DISTINCT runner, backend FROM {table}"):
            by_runner[runner].add(backend)
    return {runner: backends.pop() for runner, backends in by_runner.items() if len(backends) == 1}


def _checks(
    connection: sqlite3.Connection,
    known: _Known,
    backends: dict[str, str],
    rest: defaultdict[str, Counter[str]],
) -> None:
    proven = {
        f"{SEED}{seed}": (runner, backend)
        for seed, runner, backend in connection.execute("SELECT seed, runner, backend FROM fixes")
    }
    for row in _rows(connection, "checks"):
        old = row["subject"].removeprefix(FINDING)
        if old == row["subject"]:
            kind = proven.get(row["subject"], (row["runner"], backends.get(row["runner"], "")))
            _put(connection, "checks", row, [{"backend": kind[1]} | _failure(row, kind)])
            continue
        identity = known.kind(old, row["runner"])
        if identity is None:
            runner = f" of {row['runner']}" if row["runner"] else ""
            rest[row["run"]][f"{'check' if runner else 'replay'}{runner} of finding {old}"] += 1
            continue
        oracle, where = known.failures[old]
        forms = []
        for place in places(oracle, where):
            name = fingerprint(*identity, oracle, place)
            shown = {"fingerprint": name, "where": place} if row["fingerprint"] == old else _failure(row, identity)
            forms.append({"subject": f"{FINDING}{name}", "runner": identity[0], "backend": identity[1]} | shown)
        _put(connection, "checks", row, forms)


def _failure(row: dict[str, Any], kind: Kind) -> dict[str, str]:
    """The failure that a check showed; without a name where its backend is not known."""
    if not row["fingerprint"]:
        return {}
    where = places(row["oracle"], row["where"])[0]
    return {"where": where, "fingerprint": fingerprint(*kind, row["oracle"], where) if all(kind) else ""}


def _trouble(connection: sqlite3.Connection, rest: defaultdict[str, Counter[str]]) -> None:
    """Tell unsupported rows from errors: a case's reason is in its campaign, a check and a stop of a proof have their
    own."""
    was = UNFIT.upper()
    for row in _rows(connection, "checks"):
        if row["status"] == was:
            _put(connection, "checks", row, [{"status": told_apart(UNFIT, row["reason"]).name}])
    for row in _rows(connection, "fixes"):
        if row["status"] == was:
            _put(connection, "fixes", row, [{"status": ERROR if row["role"] else UNSUPPORTED}])
    same = "run = ? AND target = ? AND runner = ? AND backend = ? AND status = ?"
    reasons: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for run, text in connection.execute("SELECT run, campaign FROM campaigns"):
        form = json.loads(text)
        key = (run, form["target"], form["runner"], form["backend"])
        reasons[key] |= {told_apart(UNFIT, why).name for why in form.get(UNFIT, {})}
    groups = connection.execute(
        "SELECT run, target, runner, backend, count(*) FROM cases WHERE status = ? GROUP BY 1, 2, 3, 4", (was,)
    )
    for *key, count in groups.fetchall():
        kinds = reasons[tuple(key)]
        if len(kinds) == 1:
            connection.execute(f"UPDATE cases SET status = ? WHERE {same}", (*kinds, *key, was))
        else:
            rest[key[0]][f"cases of {key[1]} {key[2]}/{key[3]} that are {was}"] += count


def _add_fact(connection: sqlite3.Connection, run: str, text: str) -> None:
    for (facts,) in connection.execute("SELECT facts FROM runs WHERE id = ?", (run,)).fetchall():
        connection.execute(
            "UPDATE runs SET facts = ? WHERE id = ?", (json.dumps(json.loads(facts) | {FACT: text}), run)
        )


def name_buffers(connection: sqlite3.Connection) -> None:
    """Have the first wrong buffer of a plan in the fingerprints of findings, and of checks of them: of one that was of
    several buffers, a check for each."""
    names: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for row in _rows(connection, "findings"):
        buffer = json.loads(row["cell"])["buffer"] if row["cell"] else ""
        name = fingerprint(row["runner"], row["backend"], row["oracle"], row["where"], buffer)
        if row["oracle"] in OF_PLANS and all((row["runner"], row["backend"], row["fingerprint"])):
            names[row["fingerprint"]][name] = None
            _put(connection, "findings", row, [{"fingerprint": name}])
    for row in _rows(connection, "checks"):
        subject = row["subject"].removeprefix(FINDING)
        if subject != row["subject"] and subject in names:
            shown = row["fingerprint"] == subject
            forms: list[dict[str, Any]] = [
                {"subject": f"{FINDING}{name}", "fingerprint": name if shown else row["fingerprint"]}
                for name in names[subject]
            ]
            _put(connection, "checks", row, forms)


def rename(connection: sqlite3.Connection) -> None:
    """Have failures that the reference alone shows under its name: findings, checks of them, and what checks showed."""
    names: dict[str, str] = {}
    for table in ("findings", "checks"):
        for row in _rows(connection, table):
            oracle, where = renamed(row["oracle"], row["where"])
            changes: dict[str, Any] = {}
            if (oracle, where) != (row["oracle"], row["where"]):
                name = fingerprint(row["runner"], row["backend"], oracle, where) if row["fingerprint"] else ""
                names[row["fingerprint"]] = name
                changes = {"oracle": oracle, "where": where, "fingerprint": name}
            subject = row.get("subject", "").removeprefix(FINDING)
            if subject in names:
                changes["subject"] = f"{FINDING}{names[subject]}"
            if changes:
                _put(connection, table, row, [changes])
