"""python -m fuzz bench: cases a second on one small setup and on random ones, alone and with several workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

from fuzz import bench
from fuzz.campaign import campaign
from fuzz.case_source import CaseStream
from fuzz.commands import night
from fuzz.commands.context import CommandContext
from fuzz.commands.options import add_workers, campaign_options
from fuzz.draw.rounds import rounds
from fuzz.exits import exit_code
from fuzz.stats import Plan
from fuzz.triage import Hooks
from repro.cases.case import Target
from repro.commands.cli import Commands, count, positive
from repro.traces.campaign import Campaign
from repro.traces.exit_codes import ExitCode
from repro.traces.trace import Termination, Trace
from runners.processes.pool import Pool
from runners.targets.environments import bare_loop


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("bench", parents=[campaign_options()], help="measure cases a second and each stage")
    parser.add_argument(
        "--cases", type=count, default=30, metavar="N", help="cases on each of the two mixes (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=positive, metavar="S", help="the time for random setups, instead of --cases")
    parser.add_argument("--mix", choices=("small", "rounds"), default="", help="measure one mix (default: both)")
    parser.add_argument(
        "--night",
        type=night.minutes,
        metavar="MINUTES",
        help="instead: run one campaign of this length, and report growth of memory, files and disk",
    )
    parser.add_argument("--only-together", action="store_true", help="with --workers: do not measure one worker first")
    add_workers(parser)


# Runs so many further cases in the bare loop: seconds and batches of each.
BareLoop = Callable[[int], list[tuple[float, int]]]


@dataclass(slots=True, kw_only=True)
class _Alone:
    """One worker's campaigns, by mix. Mutable. bare_seconds: of the bare loop, a batch; 0 if that is not known."""

    campaigns: dict[str, Campaign] = field(default_factory=dict)
    bare_seconds: float = 0.0


def command(context: CommandContext, targets: Sequence[Target]) -> ExitCode:
    options = context.options
    if options.night:
        return night.command(context, targets)
    count = bench.enough(options.cases, options.workers, options.cases_per_setup)
    for target in targets:
        # Cases of the small setup are counted all the same: the bare loop beside them has as many.
        plan = context.plan(target, cases=count, triage=False)
        alone = _Alone()
        if options.only_together:
            _measure_together(context, plan, alone, (options.mix,) if options.mix else tuple(bench.NAMES))
            continue
        with context.hooks(target) as hooks, _bare_loop(context, plan) as bare:
            measured = _measure_alone(context, plan, hooks, bare, alone)
        if not measured:
            break
        # Only now, when that pool has ended: several workers and one that idles would be another comparison.
        if options.workers > 1:
            _measure_together(context, plan, alone, tuple(alone.campaigns))
    return exit_code(context.campaigns)


def _measure_alone(context: CommandContext, plan: Plan, hooks: Hooks, bare: BareLoop, alone: _Alone) -> bool:
    """Both mixes on one worker; False as soon as one of them could not be measured."""
    options, count = context.options, plan.cases or 0
    small = bench.small_cases(plan.runner, plan.backend, plan.seed, count + 1)
    start = time.monotonic()
    hooks.run(next(small))
    context.say(f"{plan.target}: first case, worker and session started: {time.monotonic() - start:.1f} s")
    if options.mix in ("", "small"):
        bare(1)  # warms up, as in the campaign
        # One half before and one after the campaign it is compared with: a machine's speed drifts.
        batches = bare(count // 2)
        if not _measure(context, plan, hooks, "small", CaseStream(small), alone):
            return False
        batches += bare(count - count // 2)
        alone.bare_seconds = sum(seconds for seconds, _ in batches) / max(1, sum(number for _, number in batches))
        context.say(*bench.against_bare(alone.campaigns["small"], alone.bare_seconds))
    if options.mix in ("", "rounds"):
        random = rounds(plan.seed, plan.runner, plan.backend, options.cases_per_setup, bench.WHOLE_ROUNDS)
        return _measure(
            context, _timed(context, plan), hooks, "rounds", CaseStream(random, random.coming, random.leave), alone
        )
    return True


def _timed(context: CommandContext, plan: Plan) -> Plan:
    """For as long as --seconds says, if it is given."""
    seconds = context.options.seconds
    return replace(plan, cases=None, seconds=seconds) if seconds else plan


def _measure(context: CommandContext, plan: Plan, hooks: Hooks, mix: str, cases: CaseStream, alone: _Alone) -> bool:
    done = alone.campaigns[mix] = context.put(campaign(plan, cases, hooks))
    context.say(*bench.figures(f"{plan.target} {bench.NAMES[mix]}", done))
    return bench.measured(done)


def _measure_together(context: CommandContext, plan: Plan, alone: _Alone, mixes: Sequence[str]) -> None:
    """These mixes on several workers, beside what one alone gave, if that was measured."""
    for mix in mixes:
        timed = _timed(context, plan) if mix == "rounds" else plan
        together = context.shared_campaign(timed, mix=mix, numbers=bench.WHOLE_ROUNDS, warm=True)
        figures = bench.figures(f"{plan.target} {bench.NAMES[mix]}", together)
        context.say(*figures)
        if single := alone.campaigns.get(mix):
            context.say(*bench.speed_up(single, together))
        context.say(*bench.against_bare(together, alone.bare_seconds if mix == "small" else 0.0))
        if not bench.measured(together):
            break


@contextmanager
def _bare_loop(context: CommandContext, plan: Plan) -> Iterator[BareLoop]:
    """A loop over the next of the small cases that only replays the graph and runs eager."""
    log, timeout = context.log(plan.target), context.options.timeout
    cases = bench.small_cases(plan.runner, plan.backend, plan.seed, (plan.cases or 0) + 1)
    with Pool(plan.target, timeout_s=timeout, log=log, variables=bare_loop()) as pool:
        yield lambda count: [_bare(pool.run(case), len(case.steps)) for case in islice(cases, count)]


def _bare(trace: Trace, steps: int) -> tuple[float, int]:
    """Its seconds, and so many steps. RuntimeError where the case was not run to its end: the next one would pay for
    another session."""
    if trace.ended.how != Termination.DONE:
        raise RuntimeError(f"the bare loop {trace.ended.how} {trace.ended.what} at {trace.ended.path}")
    return trace.seconds.get("bare", 0.0), steps
