"""python -m fuzz run: one campaign for each target, or for each of its runners that has what is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fuzz.aiming import Asked, asked, like, pairs
from fuzz.commands.context import CommandContext
from fuzz.draw.aim import smallest
from fuzz.exits import exit_code
from fuzz.stats import Plan
from repro.cases.case import Target, engine_refuses
from repro.cases.release_list import has_runner
from repro.cases.server_args import BadOption, arguments
from repro.commands.cli import BadInput
from repro.traces.exit_codes import ExitCode
from runners.targets.server_arguments import argument_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Aimed:
    """aim: as of a Plan; empty: none. said: lines about a server's flags. driven: runners with their backends."""

    aim: str = ""
    said: tuple[str, ...] = ()
    driven: Mapping[Target, Sequence[tuple[str, str]]] = field(default_factory=dict)


def aimed(options: argparse.Namespace, targets: Sequence[Target]) -> Aimed:
    """The aims of --set, --with, --without and --like. BadInput if there is no such setup on a target."""
    if not (options.set or options.having or options.without or options.like):
        return Aimed()
    try:
        server = like(arguments(options.like), argument_names(targets)) if options.like else None
        request = asked(options.set, options.having, options.without, server)
        driven = {target: _driven(options, request, target) for target in targets}
    except OSError as error:
        raise BadInput(f"--like {error.filename}: {error.strerror}") from error
    except BadOption as error:
        raise BadInput(str(error)) from error
    return Aimed(aim=str(request.aim), said=request.said, driven=driven)


def command(context: CommandContext, targets: Sequence[Target]) -> ExitCode:
    how: Aimed = context.options.aimed
    if how.driven:
        context.say(*(f"--like: {line}" for line in how.said), f"drawn with: {how.aim or 'what campaigns draw'}")
    for target in targets:
        for plan in _plans(context, target, how):
            if context.campaign(plan).stopped in ("interrupted", "error"):
                return exit_code(context.campaigns)
    return exit_code(context.campaigns)


def _plans(context: CommandContext, target: Target, how: Aimed) -> list[Plan]:
    """The campaigns on this target, which share its limit."""
    options = context.options
    seconds, first = 60 * options.minutes if options.minutes else None, options.stop_at_first
    driven = how.driven.get(target)
    if not driven:
        return [context.plan(target, cases=options.cases, seconds=seconds, stop_at_first=first)]
    limits = {"cases": options.cases and -(-options.cases // len(driven)), "seconds": seconds and seconds / len(driven)}
    return [
        context.plan(target, **limits, stop_at_first=first, runner=runner, backend=backend, aim=how.aim)
        for runner, backend in driven
    ]


def _driven(options: argparse.Namespace, request: Asked, target: Target) -> list[tuple[str, str]]:
    """The runners of this target that have the aim. BadOption if there are none."""
    every = list(pairs(request, options.runner or "", options.backend or ""))
    known = target.is_checkout or bool(options.runner)
    able = [pair for pair in every if known or has_runner(target.sglang, *pair)]
    if not able:
        raise BadOption(f"{target}: no {' or '.join(runner for runner, _ in every)} runner there")
    aim = request.aim
    setup = smallest(*able[0], aim.fixed, aim.having, aim.max_bs)
    if setup and (refusal := engine_refuses(setup, target.engine)):
        raise BadOption(f"{target}: {refusal}")
    return able
