"""A ledger's history as tables: for the report's own counting, and for others' tools."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from reports.events import release_and_engine
from reports.subjects import Subject
from reports.wording import storable
from repro.ledger.read import CASE_COLUMNS, History
from repro.ledger.rows import CheckRow, FixRow, Run

if TYPE_CHECKING:
    import pandas as pd

CaseTuple = tuple[str, str, str, str, int, int, str, str, int, float, str]


def cases(rows: Iterable[CaseTuple]) -> pd.DataFrame:
    """One row for each run of a case, in the columns of the ledger."""
    # Here, as in the rest of this package: pandas costs as long to import as all else.
    import pandas as pd

    return pd.DataFrame([tuple(map(_storable, row)) for row in rows], columns=list(CASE_COLUMNS))


def tables(history: History, rows: Iterable[CaseTuple], subjects: Iterable[Subject]) -> dict[str, pd.DataFrame]:
    """Everything, by the name of its table. What is nested in the ledger has a table of its own."""
    return {
        "runs": _frame((_flat(asdict(run)) for run in history.runs), _names(Run)),
        "cases": cases(rows),
        "campaigns": _frame(map(_campaign, history.campaigns)),
        "verdicts": _frame(
            {"run": row.run, "target": str(row.campaign.target), "oracle": oracle, "status": word, "count": count}
            for row in history.campaigns
            for oracle, counts in row.campaign.verdicts.items()
            for word, count in counts.items()
        ),
        "transitions": _frame(
            {"run": row.run, "target": str(row.campaign.target), **asdict(covered.transition), "count": covered.count}
            for row in history.campaigns
            for covered in row.campaign.transitions
        ),
        "findings": _frame(_flat(asdict(row)) for row in history.findings),
        "checks": _frame(map(asdict, history.checks), _names(CheckRow)),
        "fixes": _frame(map(asdict, history.fixes), _names(FixRow)),
        "states": _frame(_state(subject, target) for subject in subjects for target in subject.squares),
    }


def _frame(rows: Iterable[dict[str, Any]], columns: list[str] | None = None) -> pd.DataFrame:
    import pandas as pd

    stored = [{name: _storable(value) for name, value in row.items()} for row in rows]
    return pd.DataFrame(stored, columns=columns)


def _storable(value: Any) -> Any:
    return storable(value) if isinstance(value, str) else value


def _names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Named values of one field as one text."""
    return {name: _text(value) if isinstance(value, dict) else value for name, value in row.items()}


def _text(named: dict[str, Any]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in named.items())


def _campaign(row: Any) -> dict[str, Any]:
    campaign = row.campaign
    plain = ("runner", "backend", "seed", "started", "ended", "stopped", "seconds", "cases", "judged", "replays")
    rest = ("setups", "skipped", "transitions_possible", "error", "workers")
    return {
        "run": row.run,
        "target": str(campaign.target),
        **{name: getattr(campaign, name) for name in (*plain, *rest)},
        "transitions": len(campaign.transitions),
        "findings": len(campaign.findings),
        "errors": sum(campaign.errors.values()),
        **{f"seconds_{stage}": seconds for stage, seconds in campaign.stages.items()},
    }


def _state(subject: Subject, target: str) -> dict[str, Any]:
    square = subject.squares[target]
    release, engine = release_and_engine(target)
    return {
        "kind": subject.kind,
        "subject": subject.name,
        "fingerprint": subject.fingerprint,
        "oracle": subject.oracle,
        "release": release,
        "engine": engine,
        **{name: getattr(square, name) for name in ("state", "failed", "tried", "rate", "first", "last", "why")},
    }
