"""python -m runners: install, list, examine and find the releases of sglang that cases are run on."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from oracles.catalogue import judge_all, overall
from repro.cases.atomic_file import write_text
from repro.cases.case import Target
from repro.cases.facts_table import table
from repro.cases.release_list import ADAPTED, USES
from repro.ledger.known import load
from runners.conformance import conform, report
from runners.conformance.rows import Row
from runners.targets.bundle.build import bundle
from runners.targets.bundle.unpack import unpack
from runners.targets.doctor import examination, listing
from runners.targets.environments import (
    NotUsable,
    cache_directory,
    checked_release,
    import_path,
    targets_directory,
)
from runners.targets.hypothesis_pin import bundled, export, other_python
from runners.targets.install import Pip, install, newest, run_pip
from runners.targets.venv import Run, make_environment, run_command

OK, RED, OURS = 0, 1, 3


def main(arguments: Sequence[str] | None = None, *, pip: Pip = run_pip, run: Run = run_command) -> int:
    """The exit code: 0; 1 where a release does not conform; or 3 where something could not be done or nothing is
    usable."""
    options = _options(arguments, argparse.Namespace(pip=pip, run=run))
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except NotUsable as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    except BrokenPipeError:
        # Whoever read our output has seen enough; keep the interpreter from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return OURS


class _Parser(argparse.ArgumentParser):
    """Bad arguments are one line and exit code 3, like every other bad input."""

    def error(self, message: str) -> NoReturn:
        self.exit(OURS, f"error: {message} (python -m runners --help)\n")


def _options(arguments: Sequence[str] | None, namespace: argparse.Namespace) -> argparse.Namespace:
    parser = _parser()
    options, rest = parser.parse_known_args(arguments, namespace)
    # argparse takes all positionals at the first of them: in `unpack BUNDLE --cache DIR RELEASE` it finds no release,
    # and leaves over what stands behind the option. Its parse_intermixed_args does not work with commands.
    if any(word.startswith("-") for word in rest) or (rest and "releases" not in options):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.releases = [*options.releases, *rest]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m runners", description=__doc__)
    parser.add_argument(
        "--cache", type=Path, help="where releases are stored (default: EAGLEEYE_CACHE, else ~/.cache/eagleeye)"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    command = commands.add_parser("install", help="install releases of sglang into the cache")
    command.add_argument("releases", nargs="+", metavar="RELEASE", help=f"adapted are {', '.join(ADAPTED)}")
    command.set_defaults(command=_install)
    command = commands.add_parser("list", help="the installed releases")
    command.set_defaults(command=_list)
    command = commands.add_parser(
        "doctor", help="list what is installed, usable and missing, with the commands that help"
    )
    command.set_defaults(command=_doctor)
    command = commands.add_parser("environment", help="install releases for the cuda engine, each with its own torch")
    command.add_argument("releases", nargs="+", metavar="RELEASE")
    command.set_defaults(command=_environment)
    command = commands.add_parser("bundle", help="pack releases for GPU hosts without a package index")
    command.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    command.add_argument("releases", nargs="*", default=list(ADAPTED), metavar="RELEASE", help="default: all adapted")
    command.set_defaults(command=_bundle)
    command = commands.add_parser(
        "unpack", help="unpack a bundle into the cache; the last line printed is a shell command"
    )
    command.add_argument("bundle", type=Path, metavar="BUNDLE")
    command.add_argument("releases", nargs="*", metavar="RELEASE", help="only these, where not all were carried")
    # Also behind the command; without it here, what was said in front of the command stays.
    command.add_argument("--cache", type=Path, default=argparse.SUPPRESS, help="put them there")
    command.set_defaults(command=_unpack)
    command = commands.add_parser("facts", help="the table of runners, or the releases that are used for something")
    command.add_argument("--releases", choices=sorted(USES), help="the releases with this use, in one line")
    command.set_defaults(command=_facts)
    command = commands.add_parser(
        "conform", help="whether releases can be driven: runner by runner, and what no adapter names"
    )
    command.add_argument(
        "releases", nargs="+", metavar="RELEASE", help="a release, latest, or an import path of sglang"
    )
    command.add_argument("--json", type=Path, metavar="OUT", help="write it there as JSON")
    command.add_argument("--markdown", type=Path, metavar="OUT", help="write a table there")
    command.add_argument(
        "--log", type=Path, default=Path("out/conform.log"), help="what workers print (default: %(default)s)"
    )
    command.set_defaults(command=_conform)
    command = commands.add_parser("path", help="the import path of an installed release")
    command.add_argument("release", metavar="RELEASE")
    command.set_defaults(command=_path)
    return parser


def _install(options: argparse.Namespace) -> int:
    return _each(options.releases, lambda release: install(release, options.cache, pip=options.pip, say=_aside))


def _environment(options: argparse.Namespace) -> int:
    return _each(
        options.releases, lambda release: make_environment(release, options.cache, run=options.run, say=_aside)
    )


def _each(releases: Sequence[str], put: Callable[[str], bool]) -> int:
    for release in releases:
        checked_release(release)  # all of them, before the first is fetched
    failed = False
    for release in dict.fromkeys(releases):
        try:
            new = put(release)
        except NotUsable as error:
            # The others may well be there.
            print(f"error: {error}", file=sys.stderr)
            failed = True
            continue
        print(f"sglang {release}: {'installed' if new else 'already there'}", flush=True)
    return OURS if failed else OK


def _aside(text: str) -> None:
    print(text, file=sys.stderr)


def _bundle(options: argparse.Namespace) -> int:
    for release in options.releases:
        checked_release(release)  # all of them, before the first is fetched
    bundle(options.out, options.releases, options.cache, pip=options.pip, say=lambda text: print(text, flush=True))
    return OK


def _unpack(options: argparse.Namespace) -> int:
    new = unpack(options.bundle, options.cache, options.releases, say=_aside)
    print(
        f"{targets_directory(options.cache)}: {', '.join(new) + ' unpacked' if new else 'all of it is already there'}"
    )
    if why := other_python():
        _aside(f"warning: {why}: compiled modules of one cannot be imported by the other")
    if path := bundled(options.cache):
        print(export(path))
    return OK


def _list(options: argparse.Namespace) -> int:
    lines = list(listing(options.cache))
    print("\n".join(lines) if lines else f"nothing is installed in {targets_directory(options.cache)}")
    return OK


def _doctor(options: argparse.Namespace) -> int:
    lines, usable = examination(options.cache)
    print("\n".join(lines))
    return OK if usable else OURS


def _facts(options: argparse.Namespace) -> int:
    print(" ".join(USES[options.releases]) if options.releases else table(), end="\n" if options.releases else "")
    return OK


def _conform(options: argparse.Namespace) -> int:
    """1 where a runner could not be driven or judged that was not declared unsupported."""
    names = [newest(options.pip) if name == "latest" else name for name in options.releases]
    options.log.parent.mkdir(parents=True, exist_ok=True)
    if options.cache:
        os.environ["EAGLEEYE_CACHE"] = str(options.cache)  # the worker's side looks there
    command = f"python -m runners conform {' '.join(options.releases)}"
    done: list[report.Release] = []
    for name in dict.fromkeys(names):
        if "/" not in name:
            install(name, options.cache, pip=options.pip, say=_aside)
        target = Target(name, "emulated")
        done.append(conform.release(target, judge_all, overall, log=options.log, tell=_row, issues=load()))
        print("\n".join(report.summary(done[-1])), flush=True)
        # As it grows: many releases take a while.
        if options.json:
            write_text(options.json, report.to_json(done))
        if options.markdown:
            write_text(options.markdown, report.to_markdown(done, f"{command} --markdown {options.markdown}"))
    return RED if any(release.red for release in done) else OK


def _row(row: Row) -> None:
    print(report.line(row), flush=True)


def _path(options: argparse.Namespace) -> int:
    # The engine plays no part in where a release lies.
    path = import_path(Target(checked_release(options.release), "emulated"), options.cache)
    if not path:
        raise NotUsable(f"sglang {options.release} is not in {cache_directory(options.cache)} but in {sys.executable}")
    print(os.pathsep.join(map(str, path)))
    return OK


if __name__ == "__main__":
    sys.exit(main())
