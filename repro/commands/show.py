"""python -m repro show, check, paths and settings: stored cases in words and whether they are valid; what a session
records; what commands take from the settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from repro.cases import case_schema
from repro.cases.codec import BadSeed, Seed, digest, read
from repro.cases.places import log_line
from repro.cases.words import paragraph, sentence
from repro.commands.cli import Commands, complain, say, seed_file
from repro.commands.settings import lines
from repro.traces.exit_codes import ExitCode, severest
from repro.traces.paths_page import page


def add_parser(commands: Commands) -> None:
    recorded = commands.add_parser("paths", help="print what a session records, as in docs/traces.md")
    recorded.add_argument("--rounds", action="store_true", help="what runners without a graph alone record")
    commands.add_parser("settings", help="print what commands take from eagleeye.toml, and from where")
    form = commands.add_parser("schema", help="print the JSON Schema of a case, as in docs/case.schema.json")
    form.add_argument("--table", action="store_true", help="the fields of a setup, as docs/cases.md has them")
    for verb, meaning in (("show", "print a case in words"), ("check", "check seeds and their cases")):
        parser = commands.add_parser(verb, help=meaning)
        parser.add_argument("seeds", nargs="+", type=seed_file, metavar="SEED.json")


def show(options: argparse.Namespace) -> ExitCode:
    seeds, codes = stored(options.seeds)
    for path, seed in seeds:
        say(str(path))
        for text in paragraph(seed):
            print(f"  {log_line(text)}")
    return severest(codes)


def check(options: argparse.Namespace) -> ExitCode:
    seeds, codes = stored(options.seeds)
    for path, seed in seeds:
        say(f"{path}: case {digest(seed.case)}, {sentence(seed.case)}")
    return severest(codes)


def paths(options: argparse.Namespace) -> ExitCode:
    print(page(rounds=options.rounds), end="")
    return ExitCode.PASS


def schema(options: argparse.Namespace) -> ExitCode:
    print(case_schema.table() if options.table else case_schema.text(), end="")
    return ExitCode.PASS


def in_force(options: argparse.Namespace) -> ExitCode:
    for text in lines():
        say(text)
    return ExitCode.PASS


def stored(paths: Sequence[Path]) -> tuple[list[tuple[Path, Seed]], list[ExitCode]]:
    """The seeds that can be read, and an exit code for each that cannot: one bad file does not hold up the rest."""
    seeds, codes = [], []
    for path in dict.fromkeys(paths):
        try:
            seeds.append((path, read(path)))
        except BadSeed as error:
            complain(str(error))
            codes.append(ExitCode.ERROR)
    return seeds, codes
