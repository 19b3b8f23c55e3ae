"""python -m repro repairs: that a bug's seed passes once the place named as its cause is changed."""

from __future__ import annotations

import argparse

from repro.cases.case import Target
from repro.cases.places import log
from repro.commands import cli
from repro.commands.cli import BadInput, Commands
from repro.commands.fixes import answers, changed
from repro.commands.options import watched
from repro.traces.exit_codes import ExitCode, severest
from repro.upstream import patch_table, patches, prove
from repro.upstream.fixes import Proof
from runners.targets.environments import NotUsable, sglang_path


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "repairs", parents=[watched()], help="show that a bug's seed passes once the place of its cause is changed"
    )
    parser.add_argument("names", nargs="*", metavar="SEED", help="only these bugs, by the names of their seeds")
    cli.add_engine(parser)
    cli.add_tries(parser, 1, "runs of each case on each target")
    parser.add_argument("--diff", action="store_true", help="print each change as a patch")
    parser.set_defaults(fresh=False)


def go(options: argparse.Namespace) -> ExitCode:
    known = {repair.seed: repair for repair in patch_table.CANDIDATE_PATCHES}
    for name in options.names:
        if name not in known:
            raise BadInput(f"{name}: no such repair; there are {', '.join(known)}")
    codes = []
    for repair in (known[name] for name in dict.fromkeys(options.names or known)):
        published = patched = Target(repair.release, options.engine)
        proof = Proof(runner="", seed=f"{repair.seed}.json", oracle=repair.oracle)
        results = answers(options, published, [proof])
        try:
            patched = changed(published, f"with {repair.seed} repaired", repair.edits)
            results += answers(options, patched, [proof])
            diff = list(patches.patch(repair, sglang_path(published)))
        except (prove.TargetUnavailable, NotUsable) as trouble:
            results, diff = [prove.Result(status=None, text=str(trouble))] * 2, []
        codes.append(patches.exit_code(*results))
        for text in (*patches.lines(repair, (str(published), str(patched)), *results), *(diff if options.diff else ())):
            print(log(text), flush=True)
    return severest(codes)
