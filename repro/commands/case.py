"""python -m repro case: a case of what a crashed server left, a table of its batches or its log; cases in the format of
today."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fuzz.aiming import Asked, pairs, smallest_of
from fuzz.like import like
from repro.cases import codec
from repro.cases.batches import BadEvidence
from repro.cases.case import RUNNERS, Target
from repro.cases.codec import Seed
from repro.cases.fitting import Notes, Sizes, fitted
from repro.cases.launch import opened
from repro.cases.options import CONTEXT_MAX, OPTION
from repro.cases.release_list import NEWEST
from repro.cases.runner_facts import RUNNER_FACTS
from repro.cases.server_args import MAX_BS, NAMED, Argument, BadOption, arguments, value_of, whole
from repro.cases.words import sentence
from repro.commands import cli
from repro.commands.cli import BadInput, Commands, Parser, say
from repro.commands.evidence import SOURCES, Evidence
from repro.commands.fixes import release
from repro.traces.exit_codes import ExitCode
from runners.targets.server_arguments import argument_names

_LONGEST = 256
# A served runner makes its batches itself.
_OF_BATCHES = tuple(name for name in RUNNERS if not RUNNER_FACTS[name].serves)
_SIZES = ("capture_bs", "slots", "context_len")


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "case", help="make a case of what a crashed server left, or migrate cases to the format of today"
    )
    sources = parser.add_subparsers(dest="source", required=True, metavar="SOURCE", parser_class=Parser)
    for name, (file, meaning, _) in SOURCES.items():
        source = sources.add_parser(name, help=meaning)
        source.add_argument("file", type=Path, metavar=file)
        source.add_argument(
            "--like", metavar="FLAGS|FILE", help="the server's flags (default: its own in the evidence, if any)"
        )
        source.add_argument("--runner", choices=_OF_BATCHES, help="the runner (default: such a server's first)")
        source.add_argument(
            "--release", type=release, default=NEWEST, metavar="R", help="the server's release (default: %(default)s)"
        )
        source.add_argument(
            "--longest",
            type=cli.count,
            default=_LONGEST,
            metavar="N",
            help=f"make longer prefixes some N tokens, at most {CONTEXT_MAX} (default: %(default)s)",
        )
        source.add_argument("--out", type=Path, metavar="CASE.json", help="the file to write (default: FILE.case.json)")
    migrated = sources.add_parser("migrate", help="write cases again, in place, in this version's format")
    migrated.add_argument("files", type=Path, nargs="+", metavar="CASE.json")


def go(options: argparse.Namespace) -> ExitCode:
    if options.source == "migrate":
        return _migrate(options.files)
    out = options.out or options.file.with_suffix(".case.json")
    if out.exists():
        raise BadInput(f"{out}: is there already; name another file with --out")
    if not out.parent.is_dir():
        raise BadInput(f"{out.parent}: no such folder; make it, or name another file with --out")
    try:
        seed = _seed(options, SOURCES[options.source][2](options.file))
    except OSError as error:
        raise BadInput(f"{error.filename or options.file}: {error.strerror}") from error
    except BadEvidence as error:
        raise BadInput(f"{options.file}: {error}") from error
    except BadOption as error:
        raise BadInput(str(error)) from error
    codec.write(out, seed)
    say(f"{out}: {sentence(seed.case)}")
    for name, lines in seed.about.items():
        for line in lines if isinstance(lines, tuple) else ():
            print(f"  {name}: {line}")
    return ExitCode.PASS


def _migrate(files: Sequence[Path]) -> ExitCode:
    """All of them, or, if any is no case, none. Their digests stay."""
    seeds = {path: codec.read(path) for path in files}
    for path, seed in seeds.items():
        codec.write(path, seed)
        say(f"{path}: format {codec.FORMAT}")
    return ExitCode.PASS


def _seed(options: argparse.Namespace, evidence: Evidence) -> Seed:
    notes = Notes()
    flags = opened(arguments(options.like)) if options.like else list(evidence.flags)
    if not flags:
        notes.missing.append("the server's flags (--like): the setup is the smallest of its kind")
    sizes = [argument for argument in flags if _is_size(argument)]
    limits = _sizes(sizes)
    runner = options.runner or evidence.runner
    request = _asked([argument for argument in flags if argument not in sizes], options.release, notes)
    request = _had_by(runner, request, notes)
    setup = smallest_of(request, *next(pairs(request, runner, "")))
    if not runner:
        notes.guessed.append(f"runner: {setup.runner} (--runner names another)")
    if "backend" not in request.values:
        notes.guessed.append(f"backend: {setup.backend}, as the flags name none that is driven")
    notes.scaled.append("the model: a tiny one with made weights")
    batches = evidence.batches(limits, setup.runner)
    notes.guessed += evidence.guessed
    notes.missing += evidence.missing
    if setup.dp_attention:
        notes.missing.append("the batches of the other rank: it has none here")
    case = fitted(setup, batches, notes, limits, min(options.longest, CONTEXT_MAX))
    ended = {"ended": evidence.ended} if evidence.ended else {}
    return Seed(about={"from": f"{options.source} {options.file.name}", **ended, **notes.about()}, case=case)


def _had_by(runner: str, request: Asked, notes: Notes) -> Asked:
    """The aim with an algorithm that this runner is driven with, if that of the server is not."""
    algorithms = RUNNER_FACTS[runner].algorithms if runner else ()
    algorithm = request.values.get("algorithm")
    if not algorithms or algorithm is None or algorithm in algorithms:
        return request
    notes.scaled.append(f"algorithm: {algorithm}, here {algorithms[0]}, with which {runner} is driven")
    return replace(request, values={**request.values, "algorithm": algorithms[0]})


def _is_size(argument: Argument) -> bool:
    return argument.name in MAX_BS or (argument.name in NAMED and NAMED[argument.name].field in _SIZES)


def _sizes(flags: Sequence[Argument]) -> Sizes:
    sizes = Sizes()
    for argument in flags:
        try:
            if argument.name in MAX_BS:
                sizes = replace(sizes, max_bs=whole(argument.value))
            elif NAMED[argument.name].field == "capture_bs":
                sizes = replace(sizes, buckets=value_of(OPTION["capture_bs"], argument.name, argument.value))
            elif NAMED[argument.name].field == "context_len":
                sizes = replace(sizes, context=whole(argument.value))
        except ValueError as error:
            raise BadOption(f"{argument}: {error}") from error
    return sizes


def _asked(flags: Sequence[Argument], version: str, notes: Notes) -> Asked:
    """The aim of the flags that are no sizes."""
    if not flags:
        return Asked(runners=("draft",))
    request = like(flags, argument_names([Target(version, "emulated")]))
    for line in request.lines:
        part = notes.scaled if "scaled down" in line else notes.missing
        part.append(line.partition("; --set")[0])
    return replace(request, lines=())
