"""python -m fuzz bench --night: a campaign of many minutes, and whether it takes more of the machine at its end."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from fuzz.campaign import campaign
from fuzz.case_source import CaseStream
from fuzz.commands.context import CommandContext
from fuzz.draw.rounds import rounds
from fuzz.exits import exit_code
from fuzz.footprint import FIRST_S, Watch, grown, table
from reports.campaign import summary
from repro.cases.case import Target
from repro.commands.cli import complain, positive
from repro.traces.exit_codes import ExitCode

MINUTES_MIN = 2.5


def minutes(text: str) -> float:
    """The length of a night: a footprint after the first minute, and one more at least."""
    if positive(text) < MINUTES_MIN:
        raise argparse.ArgumentTypeError(f"{text!r}: {MINUTES_MIN:g} minutes at least")
    return positive(text)


def command(context: CommandContext, targets: Sequence[Target]) -> ExitCode:
    """One campaign for each target. Growth is an error of the harness."""
    options, growth = context.options, []
    for target in targets:
        plan = context.plan(target, seconds=60 * options.night)
        cases = rounds(plan.seed, plan.runner, plan.backend, options.cases_per_setup)
        with context.hooks(target) as hooks:
            watch = Watch(hooks.tell, context.out, every=max(FIRST_S, 4 * options.night))
            hooks = dataclasses.replace(hooks, tell=watch.tell)
            done = campaign(plan, CaseStream(cases, cases.coming, cases.leave), hooks)
            watch.end()
            context.put(done)
        context.say(*summary(done), *table(str(target), watch.taken))
        if done.stopped == "interrupted":
            break
        growth += [f"{target}: {text}" for text in grown(watch.taken)]
    for text in growth:
        complain(text)
    return ExitCode.ERROR if growth else exit_code(context.campaigns)
