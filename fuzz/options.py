"""The command line of python -m fuzz: its options, and combinations that it refuses."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from hypothesis.database import ExampleDatabase

from fuzz.draw.profiles import DEFAULT, PROFILES, BadExamples, database
from repro.cases.case import BACKENDS, RUNNERS, Target
from repro.cases.release_list import USES
from repro.commands import cli
from repro.commands.cli import BadInput, Parser, count, positive, whole
from repro.ledger.known import KNOWN_ISSUES

HUNTED = tuple(f"{release}/emulated" for release in USES["hunt"])
HUNT_SECONDS = 30.0  # a target
NIGHT_MINUTES_MIN = 2.5
# Of a chunk: what a lost node costs at most, and long enough that the way there and back does not count.
CHUNK_S = 20.0
# Commands without --target.
OWN_TARGETS = ("slot", "check")
DESCRIPTION = """Draw cases, run them, judge them, keep what fails.
Exit codes: 0 no failure, 1 a failure, 2 nothing judged, 3 an error of the harness or its input (docs/commands.md)."""


def _parser() -> Parser:
    shared = Parser(add_help=False)
    cli.add_targets(shared, required=False)
    shared.add_argument("--runner", choices=RUNNERS, help="default: draft, or toy on the toy engine")
    shared.add_argument("--backend", choices=BACKENDS, help="default: the first that the runner has")
    cli.add_seed_number(shared, 0)
    cli.add_out(shared, "findings and logs", "COMMAND")
    cli.add_json(shared, "the record of the campaigns")
    shared.add_argument("--keep-traces", action="store_true", help="keep the trace of each finding beside its seed")
    cli.add_ledger(shared)
    cli.add_probes(shared)
    cli.add_timeout(shared)
    shared.add_argument(
        "--standbys",
        type=whole,
        metavar="N",
        help="sessions that may be open ahead of their use; default: as many as this machine has cores for",
    )
    shared.add_argument(
        "--setups-per-session",
        type=count,
        metavar="N",
        help="setups that a session process may serve, one after the other; default: 200 on a GPU, else 1",
    )
    shared.add_argument("--cases-per-setup", type=count, help="default: as the profile has it")
    shared.add_argument("--confirm", type=count, default=5, help="fresh processes that confirm a finding")
    shared.add_argument("--shrink-runs", type=count, default=60)
    shared.add_argument("--shrink-seconds", type=positive, default=20.0)
    top = Parser(prog="python -m fuzz", description=DESCRIPTION)
    commands = top.add_subparsers(dest="command", required=True, metavar="command", parser_class=Parser)
    run = commands.add_parser("run", parents=[shared], help="one campaign for each target")
    limit = run.add_mutually_exclusive_group()
    limit.add_argument("--minutes", type=positive, help="for each target; default: as the profile has it")
    limit.add_argument("--cases", type=count, help="for each target")
    run.add_argument(
        "--shard",
        type=part,
        metavar="I/N",
        help="only part I of N: the parts are disjoint and together the whole, whoever runs them and wherever",
    )
    cli.add_cluster(run)
    run.add_argument(
        "--chunk-seconds",
        type=positive,
        default=CHUNK_S,
        metavar="S",
        help="with --cluster: of work in a piece, which is what a lost node costs; default: %(default)g",
    )
    aim = run.add_argument_group("aim", "what all setups have, by sglang's names (docs/commands.md)")
    aim.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="repeatable")
    aim.add_argument("--with", action="append", default=[], dest="having", metavar="OPTION", help="at a drawn value")
    aim.add_argument("--without", action="append", default=[], metavar="OPTION", help="at its default")
    aim.add_argument(
        "--like", metavar="FLAGS|FILE", help="a server's command line, its server_args as JSON, or a log with them"
    )
    run.add_argument("--stop-at-first", action="store_true", help="end a campaign at its first confirmed finding")
    run.add_argument("--profile", choices=PROFILES, default=DEFAULT, help=f"how much is tried; default: {DEFAULT}")
    run.add_argument(
        "--examples",
        metavar="PLACE",
        help="replay and keep failing cases here: a directory, or redis://HOST; default: only nightly and soak do, in "
        "EAGLEEYE_EXAMPLES or .hypothesis/examples",
    )
    speed = commands.add_parser("bench", parents=[shared], help="cases per second and time per stage")
    speed.add_argument("--cases", type=count, default=30, help="on each of the two mixes")
    speed.add_argument("--seconds", type=positive, metavar="S", help="random setups for so long, however many cases")
    speed.add_argument("--mix", choices=("small", "rounds"), default="", help="only one setup, or only random ones")
    speed.add_argument(
        "--night",
        type=minutes_of_a_night,
        metavar="MINUTES",
        help="instead: one campaign of so long, and what it takes of the machine after a minute and at its end",
    )
    speed.add_argument(
        "--only-together", action="store_true", help="with --workers: measure them alone, without one worker before"
    )
    speed.add_argument(
        "--openings", type=count, metavar="N", help="instead: open N sessions and say where the seconds of that go"
    )
    hunt = commands.add_parser("hunt", parents=[shared], help="the main job: find, compare, report")
    hunt.add_argument("--seconds", type=positive, default=HUNT_SECONDS, help="for each target")
    hunt.set_defaults(workers=1)
    for command in (run, hunt):
        cli.add_known_issues(
            command,
            KNOWN_ISSUES,
            "put to these what fails only by them, as a run with their bugs mended shows: it is no finding (default: "
            "repro/known_issues.toml)",
            default=KNOWN_ISSUES,
        )
        command.add_argument(
            "--no-known-issues",
            dest="known_issues",
            action="store_const",
            const=None,
            help="what known issues make fail is a finding like any other",
        )
    for command in (run, speed):
        command.add_argument(
            "--workers",
            type=count,
            default=1,
            metavar="N",
            help="processes that share the cases; on GPUs each has one, out of those in CUDA_VISIBLE_DEVICES in turn",
        )
    mutate = commands.add_parser("mutate", help="change sglang in one small place at a time: which oracle notices?")
    cli.add_targets(mutate, "RELEASE/ENGINE", required=False)
    mutate.add_argument(
        "--runner", choices=RUNNERS, help="only what this runner runs, killed by it alone; default: all"
    )
    mutate.add_argument("--backend", choices=BACKENDS, help="only with this attention backend")
    mutate.add_argument("--sample", type=count, metavar="N", help="so many, over all runners; default: all there are")
    mutate.add_argument("--seed", type=whole, default=0, help="which ones")
    mutate.add_argument(
        "--only",
        action="append",
        metavar="ID|FILE[:LINE]",
        help="these mutants; repeatable; the end of a file's name does",
    )
    mutate.add_argument("--cases", type=count, default=40, help="on which a mutant is tried, of each runner at most")
    mutate.add_argument("--limit", type=positive, default=180.0, help="seconds after which no further case is begun")
    cli.add_timeout(mutate, 30.0)
    mutate.add_argument("--workers", type=count, default=2, metavar="N", help="processes that share the mutants")
    mutate.add_argument(
        "--try-equivalent", action="store_true", help="also mutants kept as equivalent: red if one is killed"
    )
    cli.add_json(mutate, "the outcome of each mutant")
    cli.add_markdown(mutate, "figures, tables and survivors")
    cli.add_out(mutate, "logs", "mutate")
    cli.add_cluster(mutate)
    # Of a piece that a node does: write what the runner runs to this file; try the mutants that this file has.
    for word in ("--trace", "--part"):
        mutate.add_argument(word, type=Path, help=argparse.SUPPRESS)
    check = commands.add_parser("check", help="a guard for a change of sglang: the failures it brings, within minutes")
    check.add_argument(
        "checked", type=checkout, metavar="PATH|RELEASE", help="a checkout, its python folder, or a release"
    )
    check.add_argument(
        "--base", type=checkout, metavar="RELEASE|PATH", help="a failure that is there as well is not the change's"
    )
    check.add_argument(
        "--unknown",
        choices=("pass", "fail"),
        default="",
        help="end with 0 or 1 where not all could be judged; default: with 2",
    )
    check.add_argument(
        "--only-changed",
        nargs="+",
        metavar="FILES|REV",
        help="only runners and backends that run these files of sglang, or those that differ from this git revision",
    )
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    check.add_argument("--markdown", type=Path, metavar="F", default=summary, help="default: GITHUB_STEP_SUMMARY")
    cli.add_out(check, "findings and logs", "check")
    cli.add_timeout(check)
    # A process of a campaign that several share, or of a node of a cluster: only other commands start it.
    commands.add_parser("slot")
    return top


def part(text: str) -> tuple[int, int]:
    """I of N, both from 1 on."""
    index, slash, number = text.partition("/")
    if not slash or count(index) > count(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no part like 2/8")
    return count(index), count(number)


def minutes_of_a_night(text: str) -> float:
    """A footprint after the first minute, and one more at least."""
    if positive(text) < NIGHT_MINUTES_MIN:
        raise argparse.ArgumentTypeError(f"{text!r}: {NIGHT_MINUTES_MIN:g} minutes at least")
    return positive(text)


def checkout(text: str) -> Target:
    """A release on the emulated engine, or a path: an import path of sglang, or a repository of it."""
    path = Path(text).expanduser().absolute()
    if "/" not in text and not path.is_dir():
        return Target(text, "emulated")
    inner = path / "python"
    return Target(str(inner if (inner / "sglang" / "srt").is_dir() else path), "emulated")


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line, sys.argv's if None is given. BadInput if they contradict each other."""
    options = _parser().parse_args(arguments)
    if options.command in OWN_TARGETS:
        return options
    if not options.target:
        if options.command != "hunt":
            raise BadInput(f"--target is missing, for example --target {HUNTED[-1]}")
        options.target = [Target.parse(text) for text in HUNTED]
    if options.command != "mutate":
        profile = PROFILES[getattr(options, "profile", DEFAULT)]
        options.cases_per_setup = options.cases_per_setup or profile.cases_per_setup
    if options.command == "bench" and options.only_together and options.workers == 1:
        raise BadInput("--only-together goes with --workers: there are no others to measure")
    if options.command == "run":
        options.minutes = None if options.cases else options.minutes or profile.minutes
        if options.examples and options.workers > 1:
            raise BadInput("--examples cannot be combined with --workers, which lease whole rounds of drawn cases")
        alone = {"workers": options.workers > 1, "shard": options.shard, "examples": options.examples}
        for name, asked in {**alone, "keep-traces": options.keep_traces}.items():
            if options.cluster and asked:
                raise BadInput(f"--{name}: not with --cluster, whose nodes share out all rounds and send back seeds")
    return options


def examples(options: argparse.Namespace) -> ExampleDatabase | None:
    """The example database of --examples, or of the profile; None if neither has one."""
    try:
        asked = options.command == "run" and (options.examples or PROFILES[options.profile].remembers)
        return database(options.examples) if asked and options.workers == 1 and not options.cluster else None
    except BadExamples as error:
        raise BadInput(str(error)) from error
