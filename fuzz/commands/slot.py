"""python -m fuzz slot: one process of a node of a cluster. Its job and chunks come on standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuzz.cluster.slot import Slot
from fuzz.commands.session_hooks import Place, session_hooks
from fuzz.triage import Hooks
from repro.cases.case import Target
from repro.commands.cli import BadInput
from repro.ledger.known import Issue, load
from repro.ledger.run import LedgerRun
from repro.traces.exit_codes import ExitCode
from runners.processes.warm import room_for
from runners.targets.environments import lacks


def command() -> ExitCode:
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other prints of this process
    Slot(sys.stdin, results, hooks_of).serve()
    return ExitCode.PASS


@contextmanager
def hooks_of(job: Mapping[str, Any]) -> Iterator[Hooks]:
    """The hooks of this job. BadInput if the node lacks its target."""
    target, out = Target.parse(job["target"]), Path(job["out"])
    if lack := lacks(target):
        raise BadInput(f"{target}: {lack}")
    issues: tuple[Issue, ...] = ()
    if job["known_issues"]:
        known = out / "known_issues.toml"
        known.write_text(job["known_issues"])
        issues = load(known)
    place = Place(
        target=target,
        out=out,
        log=out / "worker.log",
        timeout_s=job["timeout"],
        # The cores are shared out among the slots: one that has a single core opens nothing ahead.
        standbys=room_for(target.engine, job["slots"]) if job["standbys"] is None else job["standbys"],
        setups_per_session=job.get("setups_per_session", 1),
        issues=issues,
    )
    # What is to be stored goes back with the result.
    with session_hooks(place, LedgerRun(), lambda progress: None) as hooks:
        yield hooks
