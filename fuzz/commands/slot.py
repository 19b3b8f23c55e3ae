"""python -m fuzz slot: one process of a node of a cluster. Its job and chunks come on standard input."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuzz.bench import small_cases
from fuzz.cluster.campaign_work import CampaignWork
from fuzz.cluster.piece import PieceWork
from fuzz.cluster.slot import Do, Slot
from fuzz.commands.session_hooks import Place, session_hooks
from fuzz.triage import Hooks
from repro.cases.case import Target
from repro.commands.cli import BadInput, Commands
from repro.ledger.known import Issue, load
from repro.ledger.run import LedgerRun
from repro.traces.exit_codes import ExitCode
from runners.processes.served import setups_per_session
from runners.processes.warm import room_for
from runners.targets.environments import lacks


def add_parser(commands: Commands) -> None:
    """Without a help text: only other commands start it."""
    commands.add_parser("slot")


def command() -> ExitCode:
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other prints of this process
    Slot(sys.stdin, results).serve(work_of)
    return ExitCode.PASS


@contextmanager
def work_of(job: Mapping[str, Any], slot: Slot) -> Iterator[Do]:
    """The function that does the chunks of this job. BadInput if the node lacks one of its targets."""
    targets = [Target.parse(text) for text in (job["targets"] if "targets" in job else [job["target"]])]
    for target in targets:
        if lack := lacks(target):
            raise BadInput(f"{target}: {lack}")
    if "targets" in job:
        yield PieceWork(slot=slot, main=_main_of, folder=Path(job["out"]) / "piece").do
        return
    with hooks_of(job) as hooks:
        yield CampaignWork(slot=slot, hooks=hooks, run=job["run"]).do


def _main_of(package: str) -> Callable[[Sequence[str]], int]:
    main: Callable[[Sequence[str]], int] = importlib.import_module(f"{package}.__main__").main
    return main


@contextmanager
def hooks_of(job: Mapping[str, Any]) -> Iterator[Hooks]:
    """The hooks of a campaign's job, whose processes have all in their own folder, or what a person reads elsewhere."""
    target, folder = Target.parse(job["target"]), Path(job["out"])
    log = Path(job["log"]) if "log" in job else folder / "worker.log"
    issues: tuple[Issue, ...] = ()
    if job["known_issues"]:
        known = folder / "known_issues.toml"
        known.write_text(job["known_issues"])
        issues = load(known)
    standbys: int | None = job["standbys"]
    place = Place(
        target=target,
        out=Path(job.get("findings", folder)),
        log=log.with_stem(f"{log.stem}-{folder.name}"),
        timeout_s=job["timeout"],
        # Cores and GPUs are shared out among the slots, each of which sees one GPU. With a single core nothing opens
        # ahead.
        standbys=room_for(target.engine, job["slots"], devices=job["devices"]) if standbys is None else standbys,
        setups_per_session=job["setups_per_session"] or setups_per_session(target.engine),
        issues=issues,
        traces=job.get("traces", False),
    )
    # Rows of the ledger go back with the result, and the finding as it is then.
    with session_hooks(place, LedgerRun(), lambda progress: None) as hooks:
        if job.get("warm"):
            hooks.run(next(small_cases(job["runner"], job["backend"], 0, 1)))
        yield hooks
