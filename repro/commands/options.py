"""The command line of python -m repro: its options, and combinations that it refuses."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from repro.cases.case import BACKENDS, RUNNERS
from repro.cases.releases import release_order
from repro.commands import cli, upstream_options
from repro.commands.cli import BadInput, Parser, count, positive, target
from repro.ledger.known import KNOWN_ISSUES

DESCRIPTION = """Replay, shrink, explain and hand over failing cases.
Exit codes: 0 pass, 1 fail, 2 unknown, 3 an error of the harness or its input (docs/commands.md)."""

SANITIZERS = ("memcheck", "initcheck", "racecheck", "synccheck")


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line, sys.argv's if None is given. BadInput if they contradict each other."""
    options = _parser().parse_args(arguments)
    if options.command == "fidelity":
        _need_a_comparison(options)
    if getattr(options, "cluster", None) and options.log:
        raise BadInput("--log: not with --cluster, whose nodes keep what workers print")
    return options


def _need_a_comparison(options: argparse.Namespace) -> None:
    """BadInput unless it is clear which cases are run where and what is compared with what."""
    hosts = [name for name in ("record", "against") if getattr(options, name)]
    if len(hosts) > 1:
        raise BadInput("--record and --against are for two different hosts")
    if len(options.targets) != (1 if hosts else 2):
        raise BadInput(f"{'one target is' if hosts else 'two targets are'} needed, not {len(options.targets)}")
    sources = [bool(options.seeds), bool(options.drawn), bool(options.against)]
    if sum(sources) != 1:
        raise BadInput("cases come from seed files, or from --drawn N, or from the recording that --against names")


def release(text: str) -> str:
    try:
        release_order(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _parser() -> Parser:
    watched = Parser(add_help=False)
    cli.add_timeout(watched)
    watched.add_argument("--log", type=Path, help="append what the worker prints to this file")
    recorded = Parser(add_help=False)
    cli.add_ledger(recorded)
    shared_out = Parser(add_help=False)
    cli.add_cluster(shared_out)
    ran = Parser(add_help=False, parents=[watched])
    ran.add_argument("--fresh", action="store_true", help="a new session process for every run")
    cli.add_probes(ran)
    top = Parser(prog="python -m repro", description=DESCRIPTION)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    run = commands.add_parser(
        "run", parents=[ran, recorded, shared_out], help="run cases and say which oracle fails, where, and k of n"
    )
    run.add_argument("seeds", nargs="+", type=Path, metavar="SEED.json")
    cli.add_targets(run)
    cli.add_tries(run, 1, "runs of each case on each target")
    run.add_argument("--json", action="store_true", help="print all verdicts as JSON")
    cli.add_known_issues(
        run,
        KNOWN_ISSUES,
        "say whether a failing case passes where the known issues (default: repro/known_issues.toml) are mended, "
        "and what still fails there",
    )
    run.add_argument("--quiet", action="store_true", help="no table of verdicts")

    run.add_argument(
        "--sanitizer",
        choices=SANITIZERS,
        metavar="TOOL",
        help=f"under NVIDIA's compute-sanitizer: {', '.join(SANITIZERS)}; names the kernel of a bad access",
    )

    judge = commands.add_parser("judge", help="what today's oracles conclude from kept traces, without running")
    judge.add_argument("traces", nargs="+", type=Path, metavar="TRACE.npz")
    judge.add_argument("--json", action="store_true", help="print all verdicts as JSON")

    shrink = commands.add_parser("shrink", parents=[ran], help="make a failing case small, towards the same failure")
    shrink.add_argument("seed", type=Path, metavar="SEED.json")
    cli.add_target(shrink)
    shrink.add_argument("--runs", type=count, default=200, metavar="N", help="the most runs to spend")
    shrink.add_argument("--seconds", type=positive, default=300.0, metavar="S", help="the most seconds to spend")
    cli.add_tries(shrink, 3, "runs before and after it, in fresh processes")
    shrink.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the best so far is at any moment (default: SEED.small.json; SEED-2.small.json while "
        "another process writes that)",
    )

    fixes = commands.add_parser(
        "fixes", parents=[watched, recorded, shared_out], help="show what each known fix does, with and without it"
    )
    fixes.add_argument(
        "--fix", type=count, nargs="+", action="extend", metavar="PR", help="only these, by pull request number"
    )
    fixes.add_argument("--runner", choices=RUNNERS, help="only what is shown on this runner")
    cli.add_engine(fixes)
    cli.add_tries(fixes, 1, "runs of each stored case on each target")
    fixes.add_argument("--fresh", action="store_true", help="search for each failure anew, without stored seeds")
    fixes.add_argument("--seconds", type=positive, default=30.0, metavar="S", help="with --fresh: of each search")
    cli.add_seed_number(fixes, 1, "with --fresh: ")
    fixes.add_argument(
        "--installed",
        action="store_true",
        help="use only releases that are installed; the proof lists the missing ones",
    )
    fixes.add_argument(
        "--install", action="store_true", help="the same, but fetch missing ones where there is an index"
    )
    fixes.add_argument("--releases", nargs="+", type=release, metavar="RELEASE", help="restrict to these releases")
    cli.add_json(fixes, "the rows")
    cli.add_out(fixes, "findings, with --fresh", "fixes")

    repairs = commands.add_parser(
        "repairs", parents=[watched], help="show that a bug's seed passes once the place that is named is changed"
    )
    repairs.add_argument("names", nargs="*", metavar="SEED", help="only these, by the names of their seeds")
    cli.add_engine(repairs)
    cli.add_tries(repairs, 1, "runs of each case on each target")
    repairs.add_argument("--diff", action="store_true", help="print each change as a patch")
    repairs.set_defaults(fresh=False)

    fidelity = commands.add_parser("fidelity", parents=[watched], help="how far two targets agree on the same cases")
    fidelity.add_argument("seeds", nargs="*", type=Path, metavar="SEED.json")
    fidelity.add_argument("--drawn", type=count, metavar="N", help="so many drawn cases instead of stored ones")
    cli.add_seed_number(fidelity, 1, "with --drawn: ")
    fidelity.add_argument("--runner", choices=(*RUNNERS, "all"), help="with --drawn; default: draft, toy on toys")
    fidelity.add_argument(
        "--backend", choices=(*BACKENDS, "all"), help="with --drawn; default: the runner's first, all for all runners"
    )
    fidelity.add_argument("--cases-per-setup", type=count, default=8, metavar="N", help="with --drawn")
    fidelity.add_argument(
        "--targets", nargs="+", type=target, required=True, metavar="T", help="two; one with --record or --against"
    )
    fidelity.add_argument(
        "--record",
        type=Path,
        metavar="OUT.npz",
        help="store what the target shows, for --against; with several runners or backends: a folder of files",
    )
    fidelity.add_argument(
        "--against",
        type=Path,
        nargs="+",
        metavar="OUT.npz",
        help="run the recorded cases and compare with the recordings: files, or a folder of files",
    )
    cli.add_json(fidelity, "the agreement")
    cli.add_out(fidelity, "cases that disagree", "fidelity")

    upstream_options.add(commands, [watched])

    ledger = commands.add_parser(
        "ledger", help="summarise a ledger, check that it is sound, merge ledgers of several hosts"
    )
    verbs = ledger.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    merge = verbs.add_parser("merge", help="merge the other ledgers into the first, which is created if it is missing")
    merge.add_argument("out", type=Path, metavar="OUT.db")
    merge.add_argument("sources", nargs="+", type=Path, metavar="A.db")
    for verb, meaning in (("show", "its runs, and the state of every failure"), ("check", "whether it is sound")):
        verbs.add_parser(verb, help=meaning).add_argument("ledger", type=Path, metavar="DB")

    commands.add_parser("paths", help="what a session records, as docs/traces.md has it")
    schema = commands.add_parser("schema", help="the JSON Schema of a case, as docs/case.schema.json has it")
    schema.add_argument("--table", action="store_true", help="the fields of a setup, as docs/cases.md has them")
    show = commands.add_parser("show", help="a case in words")
    check = commands.add_parser("check", help="whether these are seeds, and their cases valid")
    for command in (show, check):
        command.add_argument("seeds", nargs="+", type=Path, metavar="SEED.json")
    return top
