"""Campaigns over several processes, on a cluster or on this machine: what they and their driver are told."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fuzz.cluster.drive import Office
from fuzz.cluster.fan import connected, job_on
from fuzz.cluster.nodes import Nodes
from fuzz.cluster.processes import processes
from fuzz.stats import Plan
from reports.progress import Display
from repro.ledger.run import LedgerRun
from repro.shrinking.store import keep
from repro.traces.finding import Finding

# Seconds of work in a chunk of this machine's: a killed command loses as much, and the way there costs nothing.
CHUNK_S = 5.0


def office(out: Path, ledger: LedgerRun, display: Display) -> Office:
    def store(finding: Finding) -> str:
        ledger.finding(finding)
        return str(keep(out, finding))

    return Office(keep=store, note=ledger.case_row, tell=display.tell, say=display.line, clock=time.monotonic)


def on_nodes(options: argparse.Namespace, plan: Plan, run: str) -> AbstractContextManager[Nodes[Any]]:
    """The nodes of the cluster that was asked for. BadInput if there is no such cluster, or no Ray."""
    return connected(options.cluster, _job(options, plan, run), options.slots)


def here(
    options: argparse.Namespace, plan: Plan, run: str, out: Path, log: Path, devices: Sequence[str], *, warm: bool
) -> AbstractContextManager[Nodes[Any]]:
    """Processes of this machine, one for each of these devices. They keep findings where the campaign does. log: of
    their workers, to which a number is added. warm: each runs a case before the clock starts."""
    more = {"findings": str(out.absolute()), "log": str(log.absolute()), "folder": str(Path.cwd()), "warm": warm}
    return processes(_job(options, plan, run) | more | {"traces": options.keep_traces}, devices)


def _job(options: argparse.Namespace, plan: Plan, run: str) -> dict[str, Any]:
    """The job that every slot gets before its first chunk. run: of the ledger; empty without one."""
    known: Path | None = getattr(options, "known_issues", None)
    return {
        **job_on({plan.target.engine}),
        "target": str(plan.target),
        "runner": plan.runner,
        "backend": plan.backend,
        "timeout": options.timeout,
        "standbys": options.standbys,
        "setups_per_session": options.setups_per_session,
        "known_issues": known.read_text() if known else "",
        "run": run,
    }
