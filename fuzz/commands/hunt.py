"""python -m fuzz hunt: a campaign for each target up to its first finding, every finding run on the other targets, and
a report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fuzz.commands.context import CommandContext
from fuzz.commands.options import add_known_issues, campaign_options
from fuzz.exits import exit_code
from fuzz.hunt import replay_on, summary
from reports.closing import closing
from reports.html import render
from reports.records import history_of
from repro.cases.atomic_file import write_text
from repro.cases.case import Target
from repro.cases.release_list import USES
from repro.commands import cli
from repro.commands.cli import Commands
from repro.ledger.known import load
from repro.traces.exit_codes import ExitCode
from repro.upstream.findings import load as published

HUNTED = tuple(f"{release}/emulated" for release in USES["hunt"])
SECONDS = 30.0  # a target


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "hunt", parents=[campaign_options()], help="find a bug on each target, compare the targets, write a report"
    )
    cli.add_minutes(parser, SECONDS, "the time for each target")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every detail of each campaign and finding")
    parser.set_defaults(workers=1)
    add_known_issues(parser)


def command(context: CommandContext, targets: Sequence[Target]) -> ExitCode:
    for target in targets:
        plan = context.plan(target, seconds=context.options.seconds, stop_at_first=True)
        if context.campaign(plan).stopped in ("interrupted", "error"):
            break
    try:
        compare(context, targets)
    except KeyboardInterrupt:
        context.say("interrupted: not every finding was tried on the other targets")
    context.write()
    report = context.out / "report.html"
    issues = () if context.issues else load()  # what was left by an experiment is not known by its name
    write_text(report, render(history_of(context.campaigns, context.replays), issues=issues))
    if context.options.verbose:
        context.say(*summary(context.campaigns, context.replays, issues))
    here = Path(sys.executable)
    python = str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here)
    context.say(*closing(context.campaigns, context.replays, issues, published(), report.absolute(), python))
    return exit_code(context.campaigns, context.replays)


def compare(context: CommandContext, targets: Sequence[Target]) -> None:
    """Run every finding on the targets whose own campaign did not show it."""
    findings = [finding for done in context.campaigns for finding in done.findings]
    for target in targets:
        seen = {finding.fingerprint for finding in findings if finding.target == str(target)}
        others = [finding for finding in findings if finding.fingerprint not in seen]
        if others:
            with context.hooks(target) as hooks:
                for finding in others:
                    replay = replay_on(finding, target, hooks, context.options.confirm)
                    context.replays.append(replay)
                    context.ledger.replay(replay, finding.case.setup)
