"""python -m runners install, environment, bundle and unpack: releases into the cache, and from host to host."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from repro.commands.cli import complain
from repro.traces.exit_codes import ExitCode
from runners.targets.bundle.build import bundle
from runners.targets.bundle.unpack import compile_bytecode, unpack
from runners.targets.environments import NotUsable, checked_release, targets_directory
from runners.targets.hypothesis_pin import bundled, export, other_python
from runners.targets.install import install
from runners.targets.venv import make_environment


def install_releases(options: argparse.Namespace) -> ExitCode:
    return _each(options.releases, lambda release: install(release, options.cache, pip=options.pip, say=aside))


def make_environments(options: argparse.Namespace) -> ExitCode:
    return _each(options.releases, lambda release: make_environment(release, options.cache, run=options.run, say=aside))


def _each(releases: Sequence[str], put: Callable[[str], bool]) -> ExitCode:
    for release in releases:
        checked_release(release)  # all of them, before the first is fetched
    failed = False
    for release in dict.fromkeys(releases):
        try:
            new = put(release)
        except NotUsable as error:
            # The others may well be there.
            complain(str(error))
            failed = True
            continue
        print(f"sglang {release}: {'installed' if new else 'already there'}", flush=True)
    return ExitCode.ERROR if failed else ExitCode.PASS


def aside(text: str) -> None:
    print(text, file=sys.stderr)


def make_bundle(options: argparse.Namespace) -> ExitCode:
    for release in options.releases:
        checked_release(release)  # all of them, before the first is fetched
    bundle(
        options.out,
        options.releases,
        options.cache,
        fa3=options.fa3,
        newer_flashinfer=options.newer_flashinfer,
        pip=options.pip,
        say=lambda text: print(text, flush=True),
    )
    return ExitCode.PASS


def unpack_bundle(options: argparse.Namespace) -> ExitCode:
    new = unpack(options.bundle, options.cache, options.releases, say=aside)
    compile_bytecode([targets_directory(options.cache) / name for name in new])
    print(
        f"{targets_directory(options.cache)}: {', '.join(new) + ' unpacked' if new else 'all of it is already there'}"
    )
    if why := other_python():
        aside(f"warning: {why}: compiled modules of one cannot be imported by the other")
    if path := bundled(options.cache):
        print(export(path))
    return ExitCode.PASS
