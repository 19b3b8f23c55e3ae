"""python -m repro fixes: what each known fix does, with it and without it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from fuzz.search import search
from fuzz.triage import Hooks
from oracles.catalogue import ALL, judge_all, overall
from reports.fixes import lines, show_fixes
from repro.cases.atomic_file import write_text
from repro.cases.case import RUNNERS, Target
from repro.cases.own_place import own_folder
from repro.cases.releases import release_order
from repro.commands import cli
from repro.commands.cli import BadInput, Commands, complain, count, positive, say
from repro.commands.fixes_spread import spread
from repro.commands.options import watched
from repro.ledger.run import LedgerRun, asked_for, new_run
from repro.shrinking.store import keep
from repro.traces.exit_codes import ExitCode, severest
from repro.upstream import prove
from repro.upstream.edits import Edit, EditNotFound
from repro.upstream.fixes import FIXES, NEWEST, Fix, Proof, not_covered
from runners.processes.pool import Pool
from runners.targets.environments import NotUsable, lacks, overlays_directory, sglang_path
from runners.targets.overlay import CannotMake, Overlay, make_overlay
from runners.targets.usable import fetch, usable


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "fixes", parents=[watched()], help="show what each known fix does, with and without it"
    )
    parser.add_argument(
        "--fix", type=count, nargs="+", action="extend", metavar="PR", help="only these fixes, by pull request number"
    )
    parser.add_argument("--runner", choices=RUNNERS, help="only what is shown on this runner")
    cli.add_engine(parser)
    cli.add_tries(parser, 1, "runs of each stored case on each target")
    parser.add_argument("--fresh", action="store_true", help="search for each failure anew, without stored seeds")
    parser.add_argument(
        "--seconds",
        type=positive,
        default=30.0,
        metavar="S",
        help="with --fresh: the time of each search (default: %(default)g)",
    )
    cli.add_seed_number(parser, 1, "with --fresh: ")
    parser.add_argument(
        "--installed",
        action="store_true",
        help="use only releases that are installed; the proof lists the missing ones",
    )
    parser.add_argument(
        "--install", action="store_true", help="the same, but fetch missing ones where there is an index"
    )
    parser.add_argument("--releases", nargs="+", type=release, metavar="RELEASE", help="restrict to these releases")
    cli.add_json(parser, "the rows")
    cli.add_out(parser, "findings, with --fresh", "fixes")
    cli.add_ledger(parser)
    cli.add_cluster(parser)


def release(text: str) -> str:
    try:
        release_order(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def go(options: argparse.Namespace) -> ExitCode:
    with new_run(asked_for(options.ledger), "fixes") as ledger:
        return prove_all(options, ledger)


def prove_all(options: argparse.Namespace, ledger: LedgerRun) -> ExitCode:
    rows = _rows(options)
    shown: list[prove.ProofRow] = []
    if options.fresh and not options.out:
        options.out = own_folder(Path("out"), "fixes")

    def on_row(row: prove.ProofRow) -> None:
        shown.append(row)
        ledger.proof(row)
        for text in lines(row):
            print(text, flush=True)
        write(shown, whole=False)

    def write(rows: Sequence[prove.ProofRow], *, whole: bool) -> None:
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            form = prove.to_json(rows, fresh=options.fresh, whole=whole)
            write_text(options.json, json.dumps(form | ({"exit_code": code} if whole else {}), indent=1) + "\n")

    # Once before anything is run, so that a bad path shows at once.
    write([], whole=False)
    if options.install:
        for text in fetch(release for row in rows for release in (row.fix.buggy, row.fix.fixed)):
            complain(text)
    newest, there = _releases(options)
    if options.cluster:
        done, codes = spread(options, rows, newest, there, on_row)
    else:
        ask, codes = partial(answers, options), []
        done = prove.prove(rows, newest, ask, _without, on_row, exact=not options.fresh, there=there)
    code = severest([*codes, prove.exit_code(done)])
    write(done, whole=True)
    show_fixes(Console(), done)
    say(prove.totals(done))
    if options.fresh and (times := prove.first_failures(done)):
        say(times)
    return code


def _rows(options: argparse.Namespace) -> list[prove.ProofRow]:
    """The requested proofs, with the reasons why some are not covered."""
    oracles = {judge.__module__.rpartition(".")[2] for judge in ALL}
    return [
        prove.ProofRow(
            fix=fix,
            proof=proof,
            engine=options.engine,
            reason=not_covered(proof, options.engine, RUNNERS, oracles, stored=not options.fresh),
        )
        for fix in _fixes(options.fix)
        for proof in fix.proofs
        if options.runner in (None, proof.runner)
    ]


def _releases(options: argparse.Namespace) -> tuple[str, Callable[[str], bool]]:
    """The newest release that is used, and whether one is used."""
    if options.releases:
        return max(options.releases, key=release_order), frozenset(options.releases).__contains__
    return _installed(options.engine) if options.installed or options.install else (NEWEST, lambda release: True)


def _installed(engine: str) -> tuple[str, Callable[[str], bool]]:
    """The newest release that this engine can be used with here, and whether one can."""
    releases = usable(engine)
    if not releases:
        raise BadInput(f"no release of sglang can be used with the {engine} engine here: python -m runners doctor")
    return releases[-1], frozenset(releases).__contains__


def _fixes(numbers: Sequence[int] | None) -> list[Fix]:
    known = {fix.number: fix for fix in FIXES}
    for number in numbers or ():
        if number not in known:
            raise BadInput(f"--fix {number}: no such fix in the table, which has {', '.join(map(str, known))}")
    return [known[number] for number in dict.fromkeys(numbers or known)]


def _without(fix: Fix, target: Target) -> Target:
    return changed(target, f"without #{fix.number}", fix.edits(target.sglang))


def changed(target: Target, change: str, edits: Sequence[Edit]) -> Target:
    what = Overlay(release=target.sglang, change=change)
    try:
        path = make_overlay(sglang_path(target), what, edits, overlays_directory(target))
    except (NotUsable, CannotMake, EditNotFound) as error:
        raise prove.TargetUnavailable(str(error)) from error
    return Target(str(path), target.engine)


def answers(options: argparse.Namespace, target: Target, proofs: Sequence[Proof]) -> list[prove.Result]:
    """Run the stored seeds, or search anew."""
    if lack := lacks(target):
        return [prove.Result(status=None, text=lack)] * len(proofs)
    with Pool(target, timeout_s=options.timeout, log=options.log) as pool:
        if not options.fresh:
            return [
                prove.replayed(proof, target, pool.run_fresh, judge_all, overall, options.tries) for proof in proofs
            ]
        hooks = Hooks(
            run=pool.run,
            run_fresh=pool.run_fresh,
            judge=judge_all,
            overall=overall,
            keep=lambda finding: str(keep(options.out, finding)),
            tell=lambda progress: None,
            clock=time.monotonic,
        )
        campaigns = [search(target, proof, hooks, seed=options.seed, seconds=options.seconds) for proof in proofs]
    return [prove.answer_of_search(done, proof) for done, proof in zip(campaigns, proofs, strict=True)]
