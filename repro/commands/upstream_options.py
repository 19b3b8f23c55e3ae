"""The options of the commands that speak to sglang's maintainers: bisect, test, script, export."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from repro.commands.cli import Parser, count, positive

Commands = argparse._SubParsersAction  # argparse has no public name for what add_subparsers returns


def add(commands: Commands[Parser], watched: Sequence[Parser]) -> None:
    """Add the parsers of these commands. watched: the options of every command that runs cases."""
    _bisect(commands, watched)


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
    bisect.add_argument("--engine", choices=("emulated", "cuda"), default="emulated")
    bisect.add_argument("--tries", type=count, default=5, metavar="N", help="runs of the first look")
    bisect.add_argument("--runs", type=count, default=1000, metavar="N", help="the most runs to spend")
    bisect.add_argument("--confidence", type=positive, default=0.99, metavar="P", help="posterior that is enough")
    bisect.add_argument("--json", type=Path, metavar="OUT", help="write what was seen to this file")
    bisect.set_defaults(fresh=False)
