"""python -m repro: run a stored case on a target, shrink it, show it in words, check that it is valid; prove fixes."""

from __future__ import annotations

from repro.commands.interrupts import while_imported

if __name__ == "__main__":
    while_imported()  # first of all: the imports below take a second

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from oracles.catalogue import judge_all, overall
from repro.cases.codec import BadSeed
from repro.commands import (
    bisect,
    case,
    concerns,
    explain,
    fidelity,
    first,
    fixes,
    judge,
    ledger,
    patch_test,
    repairs,
    run,
    script,
    show,
    shrink,
)
from repro.commands.cli import BadInput, Parser, ended, print_any_name, say
from repro.fidelity.recording import BadRecording
from repro.ledger.known import BadIssues
from repro.shrinking.seed_file import InTheWay
from repro.traces.exit_codes import ExitCode
from repro.upstream.rig import Refused, Rig
from runners.processes.rig import rig
from runners.targets.environments import PROBES, NotUsable

DESCRIPTION = """Replay, shrink, explain and hand over failing cases.
Exit codes: 0 pass, 1 fail, 2 unknown, 3 an error of the harness or its input (docs/commands.md)."""
COMMANDS = {
    "run": run.go,
    "concerns": concerns.go,
    "case": case.go,
    "judge": judge.go,
    "shrink": shrink.go,
    "fidelity": fidelity.go,
    "ledger": ledger.go,
    "show": show.show,
    "check": show.check,
    "paths": show.paths,
    "schema": show.schema,
    "settings": show.in_force,
    "fixes": fixes.go,
    "repairs": repairs.go,
}
# Commands that know no runner and no oracle: they are given what runs, judges and patches.
RIGGED: dict[str, Callable[[argparse.Namespace, Rig], ExitCode]] = {
    "bisect": bisect.go,
    "first": first.go,
    "explain": explain.go,
    "test": patch_test.go,
    "script": script.go,
    "export": script.export,
}


def main(arguments: Sequence[str] | None = None) -> int:
    return ended(partial(carry_out, arguments), BadSeed, BadRecording, InTheWay, NotUsable, Refused, BadIssues)


def parser() -> Parser:
    top = Parser(prog="python -m repro", description=DESCRIPTION)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for command in (
        run,
        concerns,
        case,
        judge,
        shrink,
        fixes,
        repairs,
        fidelity,
        bisect,
        first,
        explain,
        patch_test,
        script,
        ledger,
        show,
    ):
        command.add_parser(commands)
    return top


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line, sys.argv's if None is given. BadInput if they contradict each other."""
    options = parser().parse_args(arguments)
    if getattr(options, "cluster", None) and options.log:
        raise BadInput("--log: not with --cluster, whose nodes keep what workers print")
    return options


def carry_out(arguments: Sequence[str] | None) -> ExitCode:
    options = options_of(arguments)
    if getattr(options, "probes", False):
        os.environ[PROBES] = "1"
    if options.command in COMMANDS:
        return COMMANDS[options.command](options)
    tools = rig(judge_all, overall, say, timeout_s=options.timeout, log=options.log)
    return RIGGED[options.command](options, tools)


if __name__ == "__main__":
    print_any_name()
    sys.exit(main())
