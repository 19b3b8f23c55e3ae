"""The options of the commands that speak to sglang's maintainers: bisect, test, script, export."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from repro.commands import cli
from repro.commands.cli import TARGET, Parser, count, positive, target

Commands = argparse._SubParsersAction  # argparse has no public name for what add_subparsers returns


def add(commands: Commands[Parser], watched: Sequence[Parser]) -> None:
    """Add the parsers of these commands. watched: the options of every command that runs cases."""
    _bisect(commands, watched)
    _first(commands, watched)
    _test(commands, watched)
    _script(commands, watched)
    _export(commands, watched)


def _bisect(commands: Commands[Parser], watched: Sequence[Parser]) -> None:
    bisect = commands.add_parser(
        "bisect", parents=list(watched), help="the release or commit that brought a failure, and that which removed it"
    )
    bisect.add_argument("seed", type=Path, metavar="SEED.json")
    bisect.add_argument("--from", dest="since", metavar="R", help="the oldest release (default: that is installed)")
    bisect.add_argument("--to", metavar="R", help="the newest release (default: that is installed)")
    bisect.add_argument("--repo", type=Path, metavar="PATH", help="over the commits of this checkout of sglang")
    bisect.add_argument("--good", metavar="REV", help="with --repo: a commit that passes")
    bisect.add_argument("--bad", metavar="REV", help="with --repo: a later commit that fails")
    bisect.add_argument("--keep", type=Path, metavar="DIR", help="with --repo: clones stay here for the next search")
    cli.add_engine(bisect)
    cli.add_tries(bisect, 5, "runs of the first look")
    bisect.add_argument("--runs", type=count, default=1000, metavar="N", help="the most runs to spend")
    bisect.add_argument("--confidence", type=positive, default=0.99, metavar="P", help="posterior that is enough")
    cli.add_json(bisect, "the runs of each candidate")
    bisect.set_defaults(fresh=False)


def _first(commands: Commands[Parser], watched: Sequence[Parser]) -> None:
    meaning = "the first wrong value, and the line of sglang that it comes from"
    first = commands.add_parser("first", parents=list(watched), help=meaning)
    first.add_argument("seed", type=Path, metavar="SEED.json")
    cli.add_target(first)
    first.set_defaults(fresh=False)


def _test(commands: Commands[Parser], watched: Sequence[Parser]) -> None:
    test = commands.add_parser(
        "test", parents=list(watched), help="what a patch or a pull request does to seeds, as one table in Markdown"
    )
    test.add_argument("seeds", nargs="+", type=Path, metavar="SEED.json")
    test.add_argument("--patch", type=Path, metavar="FILE.diff", help="applied to the target, as git diff writes it")
    cli.add_target(test, f"with --patch: {TARGET}", required=False)
    test.add_argument("--pr-base", type=Path, metavar="PATH", help="import path of a checkout without the change")
    test.add_argument("--pr-head", type=Path, metavar="PATH", help="import path of a checkout with it")
    cli.add_engine(test, "with --pr-base and --pr-head")
    cli.add_tries(test, 3, "runs of each seed on each side")
    test.add_argument("--no-guards", dest="guards", action="store_false", help="without all other stored seeds")
    cli.add_json(test, "the runs of each seed")
    test.set_defaults(fresh=False)


def _script(commands: Commands[Parser], watched: Sequence[Parser]) -> None:
    script = commands.add_parser(
        "script", parents=list(watched), help="a file that shows the bug with sglang and torch alone"
    )
    _handed_over(script)
    script.add_argument("--out", type=Path, metavar="FILE", help="instead of printing it")


def _export(commands: Commands[Parser], watched: Sequence[Parser]) -> None:
    export = commands.add_parser("export", parents=list(watched), help="a test in the form of sglang's own suite")
    _handed_over(export)
    export.add_argument("--sglang-test", type=Path, required=True, metavar="FILE.py", help="where to write it")


def _handed_over(command: Parser) -> None:
    """Add the options of every file that is checked before it is handed over."""
    command.add_argument("seed", type=Path, metavar="SEED.json")
    cli.add_target(command, "has the bug: the file must fail there")
    command.add_argument("--fixed", type=target, metavar="T", help="has not: it must pass there (default: by the seed)")
    command.add_argument(
        "--patch", type=Path, metavar="FILE.diff", help="instead of --fixed: the target with this patch"
    )
    cli.add_tries(command, 3, "runs on each side before it is handed over")
    command.set_defaults(fresh=False)
