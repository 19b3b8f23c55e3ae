"""python -m runners list, doctor, facts and path: what is there, and where."""

from __future__ import annotations

import argparse
import os
import sys

from repro.cases.case import Target
from repro.cases.facts_table import table
from repro.cases.release_list import USES
from repro.commands.verbs import spelled
from repro.traces.exit_codes import ExitCode
from runners.targets.doctor import examination, listing
from runners.targets.environments import NotUsable, cache_directory, checked_release, import_path, targets_directory


def list_releases(options: argparse.Namespace) -> ExitCode:
    lines = list(listing(options.cache))
    print("\n".join(lines) if lines else f"nothing is installed in {targets_directory(options.cache)}")
    return ExitCode.PASS


def doctor(options: argparse.Namespace) -> ExitCode:
    lines, usable = examination(options.cache)
    print(spelled("\n".join(lines)))
    return ExitCode.PASS if usable else ExitCode.ERROR


def facts(options: argparse.Namespace) -> ExitCode:
    print(" ".join(USES[options.releases]) if options.releases else table(), end="\n" if options.releases else "")
    return ExitCode.PASS


def path(options: argparse.Namespace) -> ExitCode:
    # The engine plays no part in where a release lies.
    folders = import_path(Target(checked_release(options.release), "emulated"), options.cache)
    if not folders:
        raise NotUsable(f"sglang {options.release} is not in {cache_directory(options.cache)} but in {sys.executable}")
    print(os.pathsep.join(map(str, folders)))
    return ExitCode.PASS
