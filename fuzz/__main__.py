"""python -m fuzz: run a campaign, bench its speed, hunt (compare two releases), check a change of sglang, mutate it."""

from __future__ import annotations

import sys

from repro.commands.interrupts import ENDS_WITH_INPUT, end_with, while_imported

if __name__ == "__main__":
    while_imported()  # first of all: the imports below take a second
    if sys.argv[1:] == ["slot"] or ENDS_WITH_INPUT in sys.argv:
        end_with(0)

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fuzz.commands import bench, check, hunt, recall, run, slot
from fuzz.commands.context import CommandContext
from fuzz.commands.options import complete
from fuzz.mutation import command as mutation
from fuzz.mutation.command import Tools, mutate
from oracles.catalogue import judge_all
from reports.progress import Display, Screen
from repro.cases.case import Target
from repro.commands.cli import BadInput, Parser, ended
from repro.commands.settings import settings
from repro.ledger.known import BadIssues
from repro.ledger.run import asked_for, new_run
from repro.traces.exit_codes import ExitCode
from runners.processes.fork_servers import processor_seconds
from runners.processes.pool import Pool
from runners.targets.environments import PROBES, lacks, sglang_path
from runners.targets.hypothesis_pin import warn_of_hypothesis_version

DESCRIPTION = """Draw cases, run them, judge them, keep what fails.
Exit codes: 0 no failure, 1 a failure, 2 nothing judged, 3 an error of the harness or its input (docs/commands.md)."""
# Commands without --target.
OWN_TARGETS = ("slot", "check", "recall")
CAMPAIGNS = {"run": run.command, "bench": bench.command, "hunt": hunt.command}


def main(arguments: Sequence[str] | None = None) -> int:
    return ended(partial(carry_out, arguments), BadIssues)


def parser() -> Parser:
    top = Parser(prog="python -m fuzz", description=DESCRIPTION)
    commands = top.add_subparsers(dest="command", required=True, metavar="command", parser_class=Parser)
    for command in (run, bench, hunt, mutation, check, recall, slot):
        command.add_parser(commands)
    return top


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line, sys.argv's if None is given. BadInput if they contradict each other."""
    options = parser().parse_args(arguments)
    if options.command in OWN_TARGETS:
        return options
    if not options.target and options.command == "hunt":
        options.target = [Target.parse(text) for text in hunt.HUNTED]
    options.target = options.target or list(settings().target)
    if not options.target:
        raise BadInput(f"--target is missing, for example --target {hunt.HUNTED[-1]}")
    if options.command != "mutate":
        complete(options)
    return options


def carry_out(arguments: Sequence[str] | None) -> ExitCode:
    options = options_of(arguments)
    if options.command == "slot":
        return slot.command()
    if options.command == "check":
        return check.command(options)
    if options.command == "recall":
        return recall.command(options)
    if getattr(options, "probes", False):
        os.environ[PROBES] = "1"  # inherited by every worker process
    targets = tuple(dict.fromkeys(options.target))
    for target in targets:
        if lack := lacks(target):
            raise BadInput(f"{target}: {lack}")
    warn_of_hypothesis_version()
    if options.command == "mutate":
        return mutate(
            options, Tools(sessions=_mutable, judge=judge_all, sources=sglang_path, processor_seconds=processor_seconds)
        )
    if options.command == "run":
        options.aimed = run.aimed(options, targets)
    kind = "campaign" if options.command == "run" else options.command
    with new_run(asked_for(options.ledger), kind) as ledger, Display(Screen()) as display:
        return CAMPAIGNS[options.command](CommandContext(options, display, ledger), targets)


def _mutable(target: Target, silence_s: float, log: Path) -> Pool:
    """A pool for mutants, in which every step is compared with the reference: kernels are wrong in both paths alike."""
    return Pool(target, timeout_s=silence_s, log=log)


if __name__ == "__main__":
    sys.exit(main())
