"""Rows of the ledger for tests, and processes that write them until they are killed."""

from __future__ import annotations

import os
import random
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from repro.cases.case import Case, Request, Setup, Step
from repro.cases.codec import Seed, dumps
from repro.ledger.rows import CaseRow, CheckRow, FindingRow, FixRow
from repro.ledger.write import Ledger
from repro.traces.finding import Cell

TARGET = "0.5.13/emulated"
SETUP = Setup(runner="toy", topk=1, num_steps=2, num_draft_tokens=3, capture_bs=(2,), slots=2)
CASE = Case(setup=SETUP, steps=(Step(requests=(Request(slot=1, seq_len=1, data=0),)),))
SEED_TEXT = dumps(Seed(about={"found": TARGET}, case=CASE))
Row = dict[str, Any]
SETUP_OF = {"runner": SETUP.runner, "backend": SETUP.backend}
JUDGED = ("PASS", "UNKNOWN", "FAIL")


def case_row(run: str, status: str = "PASS", **other: Any) -> CaseRow:
    row: Row = {"runner": "draft", "backend": "triton", "topk": 2, "num_steps": 3, "digest": "abc", "replays": 3}
    named: Row = {"run": run, "target": TARGET, "status": status, "seconds": 0.25}
    return CaseRow(**(named | row | other))


def finding_row(run: str, fingerprint: str = "a2dfbbbe8eea", **other: Any) -> FindingRow:
    row: Row = {"oracle": "slot0_padding", "where": "padded rows", "detail": "Row 1", "seed_text": SEED_TEXT}
    cell = Cell(step=1, buffer="topk_p", row=1, column=0, got="2", want="0")
    named: Row = {
        "run": run,
        "target": TARGET,
        "fingerprint": fingerprint,
        **SETUP_OF,
        "failed": 5,
        "tried": 5,
        "cell": cell,
    }
    return FindingRow(**(named | row | other))


def check_row(run: str, status: str = "PASS", subject: str = "seed:a.json", **other: Any) -> CheckRow:
    row: Row = {"target": TARGET, "runner": "draft", "failed": int(status == "FAIL"), "tried": int(status in JUDGED)}
    return CheckRow(**({"run": run, "status": status, "subject": subject} | row | other))


def fix_row(run: str, **other: Any) -> FixRow:
    row: Row = {"number": 23037, "title": "stale rows", "runner": "draft", "engine": "emulated", "role": "buggy"}
    defaults = {"target": TARGET, "expected": "FAIL", "status": "FAIL", "oracle": "slot0_padding", "seed": "a.json"}
    return FixRow(**({"run": run} | row | defaults | other))


def write_for_ever(path: Path, number: int, pipe: Connection, stderr: Path) -> None:
    """Open, begin, and store rows of all kinds; each finding is told of once its call has returned. stderr: the file
    in which this process leaves what it has to say about an early end."""
    with stderr.open("wb") as file:
        os.dup2(file.fileno(), 2)
    chance = random.Random(number)
    with Ledger.open(path) as ledger:
        run = ledger.begin("campaign", command=f"writer {number}")
        for count in range(1_000_000):
            for _ in range(chance.randrange(4)):
                ledger.case(case_row(run))
            ledger.check(check_row(run))
            fingerprint = f"{number}-{count}"
            ledger.finding(finding_row(run, fingerprint, detail="x" * chance.randrange(20_000)))
            pipe.send(fingerprint)
