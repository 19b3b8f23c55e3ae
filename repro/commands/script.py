"""python -m repro script and export: files that need no part of eagleeye, checked before they are written."""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from repro.cases.atomic_file import write_text
from repro.cases.case import Target
from repro.cases.codec import Seed, read
from repro.cases.releases import expected, release_order
from repro.commands import cli
from repro.commands.bisect import wanted_of
from repro.commands.cli import BadInput, Commands, Parser, complain, say, seed_file
from repro.commands.options import watched
from repro.traces.exit_codes import ExitCode
from repro.upstream import patch_table
from repro.upstream.edits import edited
from repro.upstream.file_check import Checked, check
from repro.upstream.findings import load, of_seed
from repro.upstream.patch_file import applied
from repro.upstream.rig import Contents, Rig, Wanted
from repro.upstream.script import HELPER, helper, host, script, upstream_test

_WIDTH = 130
EST_TIME_MAX = 10.0  # seconds of a CPU test
# An exception ends with the same exit code as a failed assertion; unittest and pytest tell them apart.
FAILED, PASSED = r"AssertionError: Lists differ", r"^OK$|\b1 passed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The target on which the file must show the bug, the one on which it must not, and the releases of both."""

    seed: Seed
    failure: Wanted
    buggy: Target
    clean: Target | None
    releases: tuple[str, ...]


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "script", parents=[_handed_over()], help="write a file that shows the bug with sglang and torch alone"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the file here instead of printing it")
    parser = commands.add_parser("export", parents=[_handed_over()], help="write a test for sglang's own suite")
    parser.add_argument("--sglang-test", type=Path, required=True, metavar="FILE.py", help="where to write the test")


def _handed_over() -> Parser:
    """The options of every file that is checked before it is handed over."""
    parser = Parser(add_help=False, parents=[watched()])
    parser.add_argument("seed", type=seed_file, metavar="SEED.json")
    cli.add_target(parser, "a target with the bug: the file must fail there")
    parser.add_argument(
        "--fixed", type=cli.target, metavar="T", help="a target without it: it must pass there (default: by the seed)"
    )
    parser.add_argument(
        "--patch", type=Path, metavar="FILE.diff", help="instead of --fixed: the target with this patch"
    )
    cli.add_tries(parser, 3, "runs on each side before it is handed over")
    parser.set_defaults(fresh=False)
    return parser


def go(options: argparse.Namespace, rig: Rig) -> ExitCode:
    """PASS: the file did what it says in every run; FAIL: it did not, and is not handed over."""
    sides = sides_of(options, rig)
    text = script(options.seed.stem, sides.seed, sides.failure, sides.releases)
    results = list(checks(options, rig, sides, text))
    for result in results:
        print(str(result), file=sys.stderr, flush=True)
    if any(result.right < result.tries for result in results):
        complain(f"not handed over: {wrong(results)}")
        return ExitCode.FAIL
    text = script(options.seed.stem, sides.seed, sides.failure, sides.releases, said_of(results))
    if options.out:
        write_text(options.out, text)
    else:
        print(text, end="")
    return ExitCode.PASS


def export(options: argparse.Namespace, rig: Rig) -> ExitCode:
    """The same as go(), for a test in the form of sglang's own suite: run by Python and by pytest."""
    if not options.sglang_test.parent.is_dir():
        raise BadInput(f"--sglang-test {options.sglang_test}: no folder {options.sglang_test.parent}")
    sides = sides_of(options, rig)
    text = _test_of(options, sides)
    ends = [(side, code, says) for side, code, says in _ends(sides) if side is not None]
    targets = {side: with_helper(rig, side) for side, _, _ in ends}
    seconds, emulated = 0.0, options.target.engine == "emulated"
    for way in ([], ["-m", "pytest", "-q", "-p", "no:cacheprovider"]):
        for side, code, says in ends:
            more = host() if emulated else ""
            result = check(rig, text, targets[side], code, options.tries, before=way, says=says, host=more)
            result = replace(result, name=rig.named(side))
            seconds = max(seconds, result.seconds)
            print(f"{'pytest' if way else 'python'}: {result}", file=sys.stderr, flush=True)
            if result.right < result.tries:
                complain(f"not handed over: {wrong([result])}")
                return ExitCode.FAIL
    write_text(options.sglang_test, _test_of(options, sides, math.ceil(seconds)))
    say(str(options.sglang_test))
    if emulated:
        write_text(options.sglang_test.with_name(Path(HELPER).name), helper())
        say(f"{options.sglang_test.with_name(Path(HELPER).name)}: python/{HELPER}, which such tests share")
    if seconds > EST_TIME_MAX:
        say(f"est_time {seconds:.0f}: above {EST_TIME_MAX:.0f} s, the custom of sglang's CPU suite")
    return ExitCode.PASS


def _test_of(options: argparse.Namespace, sides: Sides, seconds: int = 10) -> str:
    bug = of_seed(load(), options.seed.stem)
    cause = f"{bug.impact} {bug.cause}" if bug else ""
    engine = options.target.engine
    return upstream_test(
        options.seed.stem, sides.seed, sides.failure, sides.releases, engine, cause=cause, seconds=seconds
    )


def _ends(sides: Sides) -> tuple[tuple[Target | None, int, str], ...]:
    """The targets, with the exit code and the words that are right there."""
    return (sides.buggy, 1, FAILED), (sides.clean, 0, PASSED)


def with_helper(rig: Rig, target: Target) -> Target:
    """The target with the file that its tests share."""
    name = f"{Path(target.sglang).name} " if target.is_checkout else ""
    return rig.overlay(target, f"{name}with stand-ins for tests", {HELPER: helper()})


def checks(options: argparse.Namespace, rig: Rig, sides: Sides, text: str) -> Iterator[Checked]:
    """First where it must fail, then where it must pass; not the second if the first goes wrong."""
    for target, code in ((sides.buggy, 1), (sides.clean, 0)):
        if target is not None:
            result = check(rig, text, target, code, options.tries, arguments(target))
            yield result
            if result.right < result.tries:
                return


def arguments(target: Target) -> list[str]:
    return ["--cpu"] if target.engine == "emulated" else []


def wrong(results: list[Checked]) -> str:
    result = results[-1]
    return f"{result}; it ended with code {result.code} and: {' / '.join(result.output.splitlines()) or 'nothing'}"


def said_of(results: list[Checked]) -> str:
    """For the file's own header."""
    return "\n".join(textwrap.wrap(f"Checked before it was handed over: {'; '.join(map(str, results))}.", _WIDTH))


def sides_of(options: argparse.Namespace, rig: Rig) -> Sides:
    """The sides of the command line, else those known of the seed: the nearest release that is to pass, or the
    candidate patch. BadInput if the target cannot be used."""
    seed = read(options.seed)
    for target in filter(None, (options.target, options.fixed)):
        if lack := rig.lacks(target):
            raise BadInput(f"{target}: {lack}")
    clean = options.fixed
    if options.patch:
        clean = rig.overlay(
            options.target, f"with {options.patch.stem}", applied(options.patch, rig.source(options.target)).contents
        )
    clean = clean or _candidate(options.seed.stem, options.target, rig) or _passing(seed, options.target, rig)
    releases = {options.target.sglang, clean.sglang if clean else ""}
    named = sorted((release for release in releases if release and "/" not in release), key=release_order)
    if not named:
        raise BadInput("name the release that a checkout is driven as: --target RELEASE/ENGINE")
    return Sides(seed=seed, failure=wanted_of(seed), buggy=options.target, clean=clean, releases=tuple(named))


def _passing(seed: Seed, target: Target, rig: Rig) -> Target | None:
    """The first newer release on which the seed is said to pass; if there is none, on which what it was stored for does
    not fail, but something else does."""
    if target.is_checkout:
        return None
    newer = [r for r in rig.releases(target.engine) if release_order(r) > release_order(target.sglang)]
    outcomes = {release: expected(seed.about, release, target.engine) for release in newer}
    others = [release for release in newer if outcomes[release] not in (None, seed.about.get("oracle"))]
    passing = [release for release in newer if outcomes[release] == ""]
    return Target((passing or others)[0], target.engine) if others else None


def _candidate(name: str, target: Target, rig: Rig) -> Target | None:
    """The target with this seed's candidate patch, if there is one for its release."""
    contents = candidate(name, target, rig)
    return rig.overlay(target, f"with the candidate patch of {name}", contents) if contents else None


def candidate(name: str, target: Target, rig: Rig) -> Contents:
    """The files that the candidate patch changes, as it leaves them; empty if this release has no candidate patch."""
    patch = [
        candidate_patch
        for candidate_patch in patch_table.CANDIDATE_PATCHES
        if candidate_patch.seed == name and candidate_patch.release == target.sglang
    ]
    changed: dict[str, str | None] = {}
    for repair in patch:
        for file in dict.fromkeys(edit.file for edit in repair.edits):
            text = (rig.source(target) / Path(file)).read_bytes().decode()
            changed[file] = edited(text, [edit for edit in repair.edits if edit.file == file])
    return changed
