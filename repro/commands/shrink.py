"""python -m repro shrink: a failing case made small, towards the same failure."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path

from oracles.catalogue import judge_all, overall
from repro.cases.codec import Seed, read
from repro.cases.own_place import own_file
from repro.cases.words import sentence
from repro.commands import cli
from repro.commands.cli import BadInput, Commands, complain, count, say, seed_file
from repro.commands.options import ran
from repro.commands.run import opened
from repro.shrinking.confirm import failure
from repro.shrinking.replay import Outcome, line, outcome_of
from repro.shrinking.seed_file import SeedFile
from repro.shrinking.triage import Budget, TriageHooks
from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Verdict, fingerprint
from runners.targets.environments import lacks


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("shrink", parents=[ran()], help="make a failing case small, towards the same failure")
    parser.add_argument("seed", type=seed_file, metavar="SEED.json")
    cli.add_target(parser)
    parser.add_argument(
        "--runs", type=count, default=200, metavar="N", help="the most runs to spend (default: %(default)s)"
    )
    cli.add_minutes(parser, 300.0, "the most time to spend")
    cli.add_tries(parser, 3, "runs before and after shrinking, in fresh processes")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the best so far is at any moment (default: SEED.small.json; SEED-2.small.json while "
        "another process writes that)",
    )


def go(options: argparse.Namespace) -> ExitCode:
    seed, target = read(options.seed), options.target
    if lack := lacks(target):
        raise BadInput(f"{target}: {lack}")
    usual = options.seed.with_suffix(".small.json")
    with nullcontext(options.out) if options.out else own_file(usual) as out, opened(options, target) as (pool, _):
        if out.name != usual.name and not options.out:
            say(f"{usual} is being written by another process; this one writes {out}")
        pool.expect((seed.case.setup,) * options.tries)
        first = outcome_of(options.seed, seed.case, target, pool.run_fresh, judge_all, overall, options.tries)
        verdict = _wanted(first, seed)
        if verdict is None:
            (complain if first.errors else say)(line(first))
            return first.exit_code
        seen = f"{first.failed(verdict)} of {len(first.runs)} runs"
        say(f"{verdict.oracle} at {verdict.where}: {seen}; shrinking towards it")
        run = pool.run_fresh if options.fresh else pool.run
        hooks = TriageHooks(run=run, run_fresh=pool.run_fresh, judge=judge_all, say=say, expect=pool.expect)
        budget = Budget(runs=options.runs, seconds=options.seconds, tries=options.tries)
        work = SeedFile(seed, target, verdict, out, hooks, budget)
        try:
            finding = work.shrink()
        except KeyboardInterrupt:
            complain(f"interrupted; the best so far is in {out}")
            return first.exit_code
    say(
        f"FAIL {out} on {target}: {verdict.oracle} at {finding.verdict.where}: {finding.failed} of {finding.tried} runs"
    )
    say(f"{sentence(finding.case)}, from {sentence(seed.case)}, in {work.runs} runs")
    return first.exit_code


def _wanted(outcome: Outcome, seed: Seed) -> Verdict | None:
    """The failure to shrink towards: the one the seed was stored for, if it is among those seen, else the usual one. An
    earlier version may have named it, without the first wrong buffer."""
    stored = str(seed.about.get("fingerprint", ""))
    if not stored:
        return outcome.verdict
    verdicts = [verdict for run in outcome.runs for verdict in run]
    bufferless = [v for v in verdicts if fingerprint(v.runner, v.backend, v.oracle, v.where) == stored]
    return failure(verdicts, stored) or failure(bufferless) or outcome.verdict
