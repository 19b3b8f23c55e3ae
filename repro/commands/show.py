"""python -m repro show and check: stored cases in words, and whether they are valid."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from repro.cases.codec import BadSeed, Seed, digest, read
from repro.cases.words import paragraph, sentence
from repro.commands.cli import complain, say
from repro.traces.exit_codes import ExitCode, severest


def show(options: argparse.Namespace) -> ExitCode:
    seeds, codes = stored(options.seeds)
    for path, seed in seeds:
        say(str(path))
        for text in paragraph(seed):
            print(f"  {text}")
    return severest(codes)


def check(options: argparse.Namespace) -> ExitCode:
    seeds, codes = stored(options.seeds)
    for path, seed in seeds:
        say(f"{path}: case {digest(seed.case)}, {sentence(seed.case)}")
    return severest(codes)


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
