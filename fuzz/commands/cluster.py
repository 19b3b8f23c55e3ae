"""python -m fuzz run --cluster: what the nodes of a cluster are told, and who drives them."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fuzz.cluster.chunk import Cutter
from fuzz.cluster.drive import Drive, Office
from fuzz.cluster.fan import connected, job_on
from fuzz.stats import Plan
from reports.progress import Display
from repro.ledger.run import LedgerRun
from repro.shrinking.store import keep
from repro.traces.campaign import Campaign
from repro.traces.finding import Finding


def campaign(options: argparse.Namespace, plan: Plan, out: Path, ledger: LedgerRun, display: Display) -> Campaign:
    """The campaign of this plan. BadInput if there is no such cluster, or no Ray."""

    def store(finding: Finding) -> str:
        ledger.finding(finding)
        return str(keep(out, finding))

    office = Office(keep=store, note=ledger.case_row, tell=display.tell, say=display.line, clock=time.monotonic)
    with connected(options.cluster, _job(options, plan, ledger.run), options.slots) as nodes:
        cutter = Cutter(plan, options.cases_per_setup, plan.cases, options.chunk_seconds)
        return Drive(replace(plan, cases=None), cutter, nodes, office).work()


def _job(options: argparse.Namespace, plan: Plan, run: str) -> dict[str, Any]:
    """What every slot is told before its first chunk. run: of the ledger; empty without one."""
    known = options.known_issues
    return {
        **job_on({plan.target.engine}),
        "target": str(plan.target),
        "timeout": options.timeout,
        "standbys": options.standbys,
        "setups_per_session": options.setups_per_session,
        "known_issues": known.read_text() if known else "",
        "run": run,
    }
