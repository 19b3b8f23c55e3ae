"""Options that several commands of this package have."""

from __future__ import annotations

from pathlib import Path

from repro.commands import cli
from repro.commands.cli import Parser


def watched() -> Parser:
    """The options of every command that runs cases, as a parent of its parser."""
    parser = Parser(add_help=False)
    cli.add_timeout(parser)
    parser.add_argument("--log", type=Path, help="append what the worker prints to this file")
    return parser


def ran() -> Parser:
    """The options of every command that runs cases on targets that are named."""
    parser = Parser(add_help=False, parents=[watched()])
    parser.add_argument("--fresh", action="store_true", help="a new session process for every run")
    cli.add_probes(parser)
    return parser
