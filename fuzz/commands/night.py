"""python -m fuzz bench --night: a campaign of many minutes, and whether it takes more of the machine at its end."""

from __future__ import annotations

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
from repro.commands.cli import complain
from repro.traces.exit_codes import ExitCode


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
