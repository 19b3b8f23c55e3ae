"""python -m fuzz run: one campaign for each target, or for each of its runners that has what is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from fuzz.aiming import Asked, asked, pairs, smallest_of
from fuzz.commands.context import CommandContext
from fuzz.commands.options import add_known_issues, add_workers, campaign_options
from fuzz.commands.touching import narrowed, touching
from fuzz.draw.profiles import DEFAULT, PROFILES
from fuzz.exits import exit_code
from fuzz.like import like
from fuzz.stats import Plan
from repro.cases.case import Setup, Target, engine_refuses
from repro.cases.codec import BadSeed
from repro.cases.own_place import own_folder
from repro.cases.release_list import has_runner
from repro.cases.runner_facts import RUNNER_FACTS, TOY
from repro.cases.server_args import BadOption, arguments
from repro.commands import cli
from repro.commands.cli import BadInput, Commands, Parser, count, positive
from repro.commands.settings import settings
from repro.traces.exit_codes import ExitCode
from runners.targets.server_arguments import argument_names

# Seconds of work in a chunk of a cluster's: what a lost node costs at most, and long enough that the way there and back
# does not count.
CHUNK_S = 20.0


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "run", parents=[campaign_options(draws_seed=True)], help="run one campaign for each target"
    )
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--minutes", type=positive, metavar="M", help="the time of each campaign (default: the profile's)"
    )
    limit.add_argument("--cases", type=count, metavar="N", help="instead: the cases of each campaign")
    parser.add_argument(
        "--shard", type=part, metavar="I/N", help="run only part I of N; the parts are disjoint and together the whole"
    )
    cli.add_cluster(parser)
    parser.add_argument(
        "--chunk-seconds",
        type=positive,
        default=CHUNK_S,
        metavar="S",
        help="with --cluster: seconds of work in a chunk, which is lost with its node (default: %(default)g)",
    )
    _add_aim(parser)
    parser.add_argument(
        "--lines",
        action="store_true",
        help="note which lines of sglang the cases run, which takes several times as long",
    )
    parser.add_argument("--stop-at-first", action="store_true", help="end a campaign at its first confirmed finding")
    parser.add_argument("--profile", choices=PROFILES, default=DEFAULT, help="how much to try (default: %(default)s)")
    parser.add_argument(
        "--examples",
        metavar="PLACE",
        help="replay and keep failing cases in this folder or redis://HOST (default: only nightly and soak do, in "
        "EAGLEEYE_EXAMPLES or .hypothesis/examples)",
    )
    add_known_issues(parser)
    add_workers(parser)


def _add_aim(parser: Parser) -> None:
    aim = parser.add_argument_group("aim", "what all setups have, by sglang's names (docs/commands.md)")
    aim.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="may be repeated")
    aim.add_argument(
        "--with", action="append", default=[], dest="having", metavar="OPTION", help="on, or at a drawn value"
    )
    aim.add_argument("--without", action="append", default=[], metavar="OPTION", help="off, or at its default")
    aim.add_argument(
        "--like", metavar="FLAGS|FILE", help="a server's command line, its server_args as JSON, or a log with them"
    )
    aim.add_argument("--near", type=Path, metavar="SEED.json", help="near a seed: some options and steps changed")
    aim.add_argument(
        "--touching",
        nargs="+",
        metavar="REV|FILE",
        help="only setups that can reach these files, or those that differ from this git revision",
    )


def part(text: str) -> tuple[int, int]:
    """I of N, both from 1 on."""
    index, slash, number = text.partition("/")
    if not slash or count(index) > count(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no part like 2/8")
    return count(index), count(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aimed:
    """lines: lines about a server's flags. driven: runners with their backends, and for each the aim of a Plan."""

    lines: tuple[str, ...] = ()
    driven: Mapping[Target, Sequence[tuple[str, str, str]]] = field(default_factory=dict)


def aimed(options: argparse.Namespace, targets: Sequence[Target]) -> Aimed:
    """The aim of --set, --with, --without, --like, --near and --touching. BadInput if there is no such setup on a
    target."""
    if not (options.set or options.having or options.without or options.like or options.near or options.touching):
        return Aimed(driven=dict.fromkeys(targets, () if options.runner else _of_settings(options.backend)))
    if options.near and (options.like or options.cluster or options.touching):
        raise BadInput("--near: not with --like, --touching or --cluster")
    try:
        server = None
        if options.like:
            refuses = partial(_refused_everywhere, targets)
            server = like(arguments(options.like), argument_names(targets), refuses)
        request = asked(options.set, options.having, options.without, server)
        request = replace(request, near=str(options.near)) if options.near else request
        driven = {target: list(_driven(options, request, target)) for target in targets}
        return Aimed(lines=request.lines, driven=driven)
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror}") from error
    except (BadOption, BadSeed) as error:
        raise BadInput(str(error)) from error


def _of_settings(backend: str | None) -> Sequence[tuple[str, str, str]]:
    """The runners that the settings name, over this backend or the first of theirs."""
    backends = {runner: RUNNER_FACTS[runner].backends for runner in settings().runners}
    return [(runner, backend or every[0], "") for runner, every in backends.items() if backend in (None, *every)]


def command(context: CommandContext, targets: Sequence[Target]) -> ExitCode:
    how: Aimed = context.options.aimed
    if context.options.seed_was_drawn:
        context.say(f"drawn: --seed {context.options.seed}, which draws the same cases again")
    context.say(*(f"--like: {line}" for line in how.lines))
    for target in targets:
        for runner, backend, aim in how.driven.get(target, ()):
            context.say(f"{target}, {runner}/{backend}: drawn with {aim or 'what campaigns draw'}")
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
        context.plan(target, **limits, stop_at_first=first, runner=runner, backend=backend, aim=aim)
        for runner, backend, aim in driven
    ]


def _driven(options: argparse.Namespace, request: Asked, target: Target) -> Iterator[tuple[str, str, str]]:
    """The runners of this target that have the aim. BadOption, BadInput if there are none."""
    if not options.touching:
        yield from ((*pair, str(request.aim)) for pair in _able(options, request, target))
        return
    log = own_folder(Path("out"), "touching") / "worker.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    every = touching(options.touching, target, options.runner or "", options.backend or "", options.timeout, log)
    for way in every:
        narrower = narrowed(request, way)
        for pair in _able(options, narrower, target, way.pair[1]):
            yield (*pair, str(narrower.aim))


def _able(options: argparse.Namespace, request: Asked, target: Target, backend: str = "") -> list[tuple[str, str]]:
    runner = options.runner or (TOY if target.engine == TOY else "")
    every = list(pairs(request, runner, backend or options.backend or ""))
    known = target.is_checkout or bool(runner)
    able = [pair for pair in every if known or has_runner(target.sglang, *pair)]
    if not able:
        raise BadOption(f"{target}: no {' or '.join(name for name, _ in every)} runner there")
    if refusal := engine_refuses(smallest_of(request, *able[0]), target.engine):
        raise BadOption(f"{target}: {refusal}")
    return able


def _refused_everywhere(targets: Sequence[Target], setup: Setup) -> str:
    """Why the engines of all targets refuse the setup; empty if one does not."""
    reasons = [engine_refuses(setup, target.engine) for target in targets]
    return reasons[0] if all(reasons) else ""
