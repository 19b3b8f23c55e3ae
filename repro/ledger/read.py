"""Reading the ledger: everything in it as rows, except that of the cases only counts are at hand until they are asked
for. Reading changes nothing on disk, whatever the schema of the file.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from repro.ledger.rows import CampaignRow, CaseCount, CaseRow, CheckRow, FindingRow, FixRow, Row, Run
from repro.ledger.schema import TABLES, BadLedger, columns, connect_to_read, trouble
from repro.ledger.unfinished import Alike, unfinished
from repro.traces.campaign import Campaign
from repro.traces.finding import Cell
from repro.traces.typed import BadRecord, typed

R = TypeVar("R", CampaignRow, FindingRow, CheckRow, FixRow)
# The columns of a case's run that are read: most of CaseRow, in this order.
CASE_COLUMNS = tuple(field.name for field in fields(CaseRow) if field.name not in ("verdicts", "transitions"))


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that a ledger holds. runs: by their start. cases: counts. campaigns: also those that were killed, or are
    under way, as far as their cases were stored: stopped says "not ended". findings: for each (run, target,
    fingerprint) the form that was stored last. checks and fixes: in the order in which they were made."""

    path: Path
    runs: tuple[Run, ...] = ()
    cases: tuple[CaseCount, ...] = ()
    campaigns: tuple[CampaignRow, ...] = ()
    findings: tuple[FindingRow, ...] = ()
    checks: tuple[CheckRow, ...] = ()
    fixes: tuple[FixRow, ...] = ()

    def case_rows(self) -> Iterator[tuple[str, str, str, str, int, int, str, str, int, float, str]]:
        """Every run of a case as plain values, in the order of CASE_COLUMNS: (run, target, runner, backend, topk,
        num_steps, digest, status, replays, seconds, at). Read anew from the file: what was added since is in it."""
        with trouble(self.path):
            connection = connect_to_read(self.path)
            try:
                yield from connection.execute(f"SELECT {', '.join(CASE_COLUMNS)} FROM cases ORDER BY at, rowid")
            finally:
                connection.close()


def read(path: Path) -> History:
    """The ledger at this path, as it is at one moment. BadLedger, in one line, if that cannot be had."""
    with trouble(path):
        connection = connect_to_read(path)
        try:
            # One transaction, so that no finding is seen without its run.
            connection.execute("BEGIN")
            counts, campaigns = _counts(connection), _rows(connection, CampaignRow)
            findings = _latest(_rows(connection, FindingRow))
            return History(
                path=path,
                runs=_runs(connection),
                cases=counts,
                campaigns=(*campaigns, *_unfinished(connection, counts, campaigns, findings)),
                findings=findings,
                checks=_rows(connection, CheckRow),
                fixes=_rows(connection, FixRow),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, BadRecord) as error:
            raise BadLedger(f"{path}: is damaged: a row makes no sense: {error}") from error
        finally:
            connection.close()


def _runs(connection: sqlite3.Connection) -> tuple[Run, ...]:
    cursor = connection.execute(f"SELECT {columns(Run)} FROM runs ORDER BY started, id")
    return tuple(typed(Run(**(_named(Run, values) | {"facts": json.loads(values[-1])}))) for values in cursor)


def _counts(connection: sqlite3.Connection) -> tuple[CaseCount, ...]:
    same = "run, target, runner, backend, topk, num_steps, status"
    cursor = connection.execute(
        f"SELECT {same}, count(*), sum(replays), sum(seconds) FROM cases GROUP BY {same} ORDER BY min(at), min(rowid)"
    )
    return tuple(typed(CaseCount(**_named(CaseCount, values))) for values in cursor)


def _rows(connection: sqlite3.Connection, kind: type[R]) -> tuple[R, ...]:
    # Times are of one clock per host; rows of one host that share a microsecond stay in the order of their storing.
    cursor = connection.execute(f"SELECT {columns(kind)} FROM {TABLES[kind]} ORDER BY at, rowid")
    looked_at: set[tuple[type, ...]] = set()
    return tuple(_right(_made(kind, _named(kind, values)), tuple(map(type, values)), looked_at) for values in cursor)


def _right(row: R, kinds: tuple[type, ...], looked_at: set[tuple[type, ...]]) -> R:
    """The row, if its fields are of their kinds: looked at once for all rows whose columns are of the same ones."""
    if kinds not in looked_at:
        typed(row)
        looked_at.add(kinds)
    return row


def _named(kind: type[Row] | type[Run] | type[CaseCount] | type[Alike], values: tuple[Any, ...]) -> dict[str, Any]:
    return {field.name: value for field, value in zip(fields(kind), values, strict=True)}


def _made(kind: type[R], values: dict[str, Any]) -> R:
    if kind is CampaignRow:
        values["campaign"] = Campaign.from_json(json.loads(values["campaign"]))
    if kind is FindingRow:
        values["cell"] = typed(Cell(**json.loads(values["cell"]))) if values["cell"] else None
    return kind(**values)


def _unfinished(
    connection: sqlite3.Connection,
    counts: Iterable[CaseCount],
    campaigns: Iterable[CampaignRow],
    findings: Sequence[FindingRow],
) -> Iterator[CampaignRow]:
    """Campaigns that have cases, and no record of their end."""
    ended = {(row.run, str(row.campaign.target), row.campaign.runner, row.campaign.backend) for row in campaigns}
    begun = dict.fromkeys((count.run, count.target, count.runner, count.backend) for count in counts)
    killed: dict[tuple[str, str, str, str], list[Alike]] = {key: [] for key in begun if key not in ended}
    if not killed:
        return
    # All of them in one pass: after a bad night every campaign of a thousand may be one of these.
    same = "run, target, runner, backend, topk, num_steps, status, verdicts, transitions"
    cursor = connection.execute(
        f"SELECT {same}, count(*), sum(replays), min(at), max(at) FROM cases "
        f"GROUP BY {same} ORDER BY min(at), min(rowid)"
    )
    for values in cursor:
        if values[:4] in killed:
            killed[values[:4]].append(typed(Alike(**_named(Alike, values))))
    for key, groups in killed.items():
        campaign = unfinished(groups, [row for row in findings if (row.run, row.target) == key[:2]])
        yield CampaignRow(run=key[0], campaign=campaign, at=campaign.ended)


def _latest(findings: tuple[FindingRow, ...]) -> tuple[FindingRow, ...]:
    """The last form of each, in the order in which the first ones were stored."""
    return tuple({(row.run, row.target, row.fingerprint): row for row in findings}.values())
