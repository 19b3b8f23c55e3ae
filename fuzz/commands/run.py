"""python -m fuzz run: one campaign for each target."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.commands.context import CommandContext
from fuzz.exits import exit_code
from repro.cases.case import Target
from repro.traces.exit_codes import ExitCode


def command(context: CommandContext, targets: Sequence[Target]) -> ExitCode:
    options = context.options
    seconds = 60 * options.minutes if options.minutes else None
    for target in targets:
        plan = context.plan(target, cases=options.cases, seconds=seconds, stop_at_first=options.stop_at_first)
        if context.campaign(plan).stopped in ("interrupted", "error"):
            break
    return exit_code(context.campaigns)
