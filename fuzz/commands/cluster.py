"""python -m fuzz run --cluster: what the nodes of a cluster are told, and who drives them."""

from __future__ import annotations

import argparse
import os
import time
import uuid
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fuzz.cluster.chunk import Cutter
from fuzz.cluster.drive import Drive, Office
from fuzz.cluster.nodes import Nodes
from fuzz.cluster.slot import code_digest
from fuzz.stats import Plan
from reports.progress import Display
from repro.commands.cli import BadInput
from repro.ledger.run import LedgerRun
from repro.shrinking.store import keep
from repro.traces.campaign import Campaign
from repro.traces.finding import Finding

PROJECT = Path(__file__).resolve().parent.parent.parent
# Of our own environment what means something to a worker wherever it runs.
CARRIED = ("EAGLEEYE_PROBES", "EAGLEEYE_REFERENCE")


def campaign(options: argparse.Namespace, plan: Plan, out: Path, ledger: LedgerRun, display: Display) -> Campaign:
    """The campaign of this plan. BadInput if there is no such cluster, or no Ray."""

    def store(finding: Finding) -> str:
        ledger.finding(finding)
        return str(keep(out, finding))

    office = Office(keep=store, note=ledger.case_row, tell=display.tell, say=display.line, clock=time.monotonic)
    with _connected(options, plan, ledger.run) as nodes:
        cutter = Cutter(plan, options.cases_per_setup, plan.cases, options.chunk_seconds)
        return Drive(replace(plan, cases=None), cutter, nodes, office).work()


def _connected(options: argparse.Namespace, plan: Plan, run: str) -> AbstractContextManager[Nodes]:
    try:
        # Only here: most have no Ray.
        from fuzz.cluster import on_ray
    except ImportError as error:
        raise BadInput(f"--cluster needs Ray: pip install 'eagleeye[ray]' ({error})") from error
    return on_ray.connected(options.cluster, _job(options, plan, run), options.slots)


def _job(options: argparse.Namespace, plan: Plan, run: str) -> dict[str, Any]:
    """What every slot is told before its first chunk. run: of the ledger; empty without one."""
    known = options.known_issues
    return {
        "campaign": uuid.uuid4().hex[:8],
        "checkout": str(PROJECT),
        "code": code_digest(),
        "cuda": plan.target.engine == "cuda",
        "environment": {name: os.environ[name] for name in CARRIED if name in os.environ},
        "target": str(plan.target),
        "timeout": options.timeout,
        "standbys": options.standbys,
        "setups_per_session": options.setups_per_session,
        "known_issues": known.read_text() if known else "",
        "run": run,
    }
