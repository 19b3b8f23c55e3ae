"""The whole history as files for others' tools: a table each, as CSV or as Parquet."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path

from reports.frames import CaseTuple, tables
from reports.subjects import subjects
from repro.cases.atomic_file import written
from repro.ledger.known import Issue
from repro.ledger.read import History

KINDS = ("csv", "parquet")


class CannotExport(Exception):
    """Something that the kind of file needs is not installed; the text says what, and the command that helps."""


def export(
    history: History, cases: Iterable[CaseTuple], kind: str, folder: Path, issues: Sequence[Issue] = ()
) -> list[Path]:
    """Write every table; their paths. CannotExport; OSError if the disk refuses."""
    if kind == "parquet" and not importlib.util.find_spec("pyarrow"):
        raise CannotExport("--parquet needs pyarrow, which is not installed: .venv/bin/python -m pip install pyarrow")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, frame in tables(history, cases, subjects(history, issues)).items():
        paths.append(folder / f"{name}.{kind}")
        with written(paths[-1]) as file:
            if kind == "csv":
                frame.to_csv(file, mode="wb", index=False)
            else:
                frame.to_parquet(file, index=False)
    return paths
