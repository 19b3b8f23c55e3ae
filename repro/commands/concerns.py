"""python -m repro concerns: the known bugs that a server with these flags can meet in a release."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from repro.cases.case import Target
from repro.cases.codec import Seed, read
from repro.cases.places import log
from repro.cases.runner_facts import RUNNER_FACTS
from repro.cases.server_args import BadOption, arguments
from repro.commands import cli, run
from repro.commands.cli import SEEDS, BadInput, Commands, say
from repro.commands.fixes import release
from repro.commands.options import ran
from repro.ledger import known
from repro.ledger.concerns import ALSO, Concern, Server, concerns, server
from repro.traces.exit_codes import ExitCode
from repro.upstream import findings
from repro.upstream.patch_table import CANDIDATE_PATCHES
from runners.targets.environments import NotUsable
from runners.targets.server_arguments import argument_names


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "concerns", parents=[ran()], help="list the known bugs that a server with these flags can meet in a release"
    )
    parser.add_argument("--like", required=True, metavar="FLAGS|FILE", help="a server's flags, as in `fuzz run`")
    parser.add_argument("--release", type=release, required=True, metavar="R", help="the release that it runs")
    parser.add_argument("--run", action="store_true", help="replay their seeds on R/emulated")
    cli.add_tries(parser, 1, "with --run: runs of each seed")
    cli.add_ledger(parser)
    parser.set_defaults(cluster=None, json=False, known_issues=None, quiet=True, sanitizer=None)


def go(options: argparse.Namespace) -> ExitCode:
    target = Target(options.release, "emulated")
    seeds = {path.name: read(path) for path in sorted(SEEDS.glob("*.json"))}
    of = _server(options, target)
    bugs = concerns(of, options.release, known.load(), findings.load(), seeds)
    say(f"{options.release}: {', '.join(map(str, _runners(of)))}")
    for bug in bugs:
        for text in lines(bug, seeds):
            print(log(text))
    for text in dict.fromkeys(_undriven(of)):
        say(text)
    certain = sum(not bug.depends for bug in bugs)
    say(
        f"known bugs that concern these flags: {certain}; that may, by what the flags do not say: {len(bugs) - certain}"
    )
    names = dict.fromkeys(name for bug in bugs for name in bug.seeds)
    if not options.run or not names:
        return ExitCode.PASS
    options.seeds, options.target = [SEEDS / name for name in names], [target]
    return run.go(options)


def _server(options: argparse.Namespace, target: Target) -> Server:
    """BadInput if the flags cannot be read."""
    try:
        flags = arguments(options.like, ALSO)
        try:
            names = argument_names([target])
        except NotUsable:
            names = frozenset()
            say(f"{options.release} is not installed here: a flag that it does not have is not noticed")
        return server(flags, names, options.release)
    except OSError as error:
        raise BadInput(f"--like {error.filename}: {error.strerror}") from error
    except BadOption as error:
        raise BadInput(str(error)) from error


def _runners(of: Server) -> Iterator[str]:
    for name, depends in of.runners.items():
        over = f" over {of.backends[name]}" if of.backends[name] else ""
        yield f"{name}{over}{f' (if {depends})' if depends else ''}"


def _undriven(of: Server) -> Iterator[str]:
    """Pairs of runner and backend that are not driven."""
    for name, backend in of.backends.items():
        if backend not in ("", *RUNNER_FACTS[name].backends):
            yield f"{name} over {backend} is not driven: its bugs are unknown"


def lines(concern: Concern, seeds: Mapping[str, Seed]) -> Iterator[str]:
    """The bug for a person."""
    bug = concern.bug
    symptom = f"{bug.symptom}: " if bug else ""
    yield f"{symptom}{concern.title}"
    if concern.depends:
        yield f"  if {' and '.join(concern.depends)}"
    if bug:
        yield f"  impact: {bug.impact}"
        yield f"  releases: {bug.releases}; upstream: {bug.upstream}; docs/findings/{bug.name}.md"
    else:
        yield from (f"  {issue.link}" for issue in concern.issues)
    patched = {patch.seed: patch.release for patch in CANDIDATE_PATCHES}
    for name, options in concern.seeds.items():
        setup, stem = seeds[name].case.setup, name.removesuffix(".json")
        beside = f", with {' '.join(options)}" if options else ""
        yield f"  seed: repro/seeds/{name} ({setup.runner} over {setup.backend}{beside})"
        if stem in patched:
            yield f"  patch for {patched[stem]}: python -m repro repairs {stem} --diff"
    backports = dict.fromkeys(name for issue in concern.issues for name in issue.mended_by)
    if backports and not any(name.removesuffix(".json") in patched for name in concern.seeds):
        yield f"  backport of the fix: {', '.join(backports)} (repro/upstream/backports.py)"
