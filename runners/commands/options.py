"""The command line of python -m runners."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from repro.cases.release_list import ADAPTED, USES
from repro.commands.cli import Commands, Parser, add_cluster, add_json, add_markdown
from runners.commands import record


def options_of(arguments: Sequence[str] | None, **functions: object) -> argparse.Namespace:
    """The options of the command line, sys.argv's if None is given, and these functions. BadInput."""
    top = parser()
    options, rest = top.parse_known_args(arguments, argparse.Namespace(**functions))
    # argparse takes all positionals at the first of them: in `unpack BUNDLE --cache DIR RELEASE` it finds no release,
    # and leaves over what stands behind the option. Its parse_intermixed_args does not work with commands.
    if any(word.startswith("-") for word in rest) or (
        rest and not isinstance(getattr(options, "releases", None), list)
    ):
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.releases = [*options.releases, *rest]
    if options.command == "bundle":
        options.releases = options.releases or list(ADAPTED)
    return options


def parser() -> Parser:
    top = Parser(prog="python -m runners", description="Install, list, examine and find releases of sglang.")
    top.add_argument(
        "--cache", type=Path, help="where releases are stored (default: EAGLEEYE_CACHE, else ~/.cache/eagleeye)"
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    _add_installing(commands)
    _add_bundles(commands)
    facts = commands.add_parser("facts", help="print the table of runners, or the releases of one use")
    facts.add_argument("--releases", choices=sorted(USES), help="print the releases of this use, in one line")
    conform = commands.add_parser(
        "conform", help="try whether releases can be driven: runner by runner, and buffers that no adapter names"
    )
    conform.add_argument(
        "releases", nargs="+", metavar="RELEASE", help="a release, latest, or an import path of sglang"
    )
    add_json(conform, "the rows")
    add_markdown(conform, "a table")
    conform.add_argument("--families", action="store_true", help="try families of models instead of algorithms")
    conform.add_argument(
        "--log", type=Path, default=Path("out/conform.log"), help="what workers print (default: %(default)s)"
    )
    add_cluster(conform)
    path = commands.add_parser("path", help="print the import path of an installed release")
    path.add_argument("release", metavar="RELEASE")
    record.add_parser(commands)
    for command in dict(commands.choices).values():
        # Also behind the command; if it is not there, the option in front of the command holds.
        command.add_argument("--cache", type=Path, default=argparse.SUPPRESS, help="where releases are stored")
    return top


def _add_installing(commands: Commands) -> None:
    install = commands.add_parser("install", help="install releases of sglang into the cache")
    install.add_argument("releases", nargs="+", metavar="RELEASE", help=f"adapted are {', '.join(ADAPTED)}")
    commands.add_parser("list", help="list the installed releases")
    commands.add_parser("doctor", help="list what is installed, usable and missing, with the commands that help")
    environment = commands.add_parser(
        "environment", help="install releases for the cuda engine, each with its own torch"
    )
    environment.add_argument("releases", nargs="+", metavar="RELEASE")


def _add_bundles(commands: Commands) -> None:
    bundle = commands.add_parser("bundle", help="pack releases for GPU hosts without a package index")
    bundle.add_argument("out", type=Path, metavar="OUT", help="the folder to write")
    bundle.add_argument("releases", nargs="*", metavar="RELEASE", help="default: all adapted")
    bundle.add_argument(
        "--fa3",
        action="store_true",
        help="with FlashAttention 3's kernels, for H100 and H200, the dtypes and head dims that cases draw: 15 MB more",
    )
    bundle.add_argument(
        "--newer-flashinfer",
        action="store_true",
        help="with flashinfer 0.7.2, which draft_extend and rounds over flashinfer need from 0.5.18 on: 11 MB more",
    )
    unpack = commands.add_parser(
        "unpack", help="unpack a bundle into the cache; the last line printed is a shell command"
    )
    unpack.add_argument("bundle", type=Path, metavar="BUNDLE")
    unpack.add_argument("releases", nargs="*", metavar="RELEASE", help="only these releases (default: all)")
