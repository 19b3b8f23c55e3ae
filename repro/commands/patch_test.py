"""python -m repro test: what a patch, or a pull request's checkout, does to seeds."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from repro.cases.atomic_file import write_text
from repro.cases.case import Target
from repro.cases.codec import read
from repro.commands import cli
from repro.commands.bisect import wanted_of
from repro.commands.cli import TARGET, BadInput, Commands, say, seed_file
from repro.commands.options import watched
from repro.traces.exit_codes import ExitCode
from repro.upstream.fixes import SEEDS
from repro.upstream.patch_file import applied
from repro.upstream.patch_test import Question, compare, exit_code, table, to_json
from repro.upstream.rig import Rig


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "test", parents=[watched()], help="show what a patch or a pull request does to seeds, as a table in Markdown"
    )
    parser.add_argument("seeds", nargs="+", type=seed_file, metavar="SEED.json")
    parser.add_argument("--patch", type=Path, metavar="FILE.diff", help="a patch of the target, as git diff writes it")
    cli.add_target(parser, f"with --patch: {TARGET}", required=False)
    parser.add_argument("--pr-base", type=Path, metavar="PATH", help="import path of a checkout without the change")
    parser.add_argument("--pr-head", type=Path, metavar="PATH", help="import path of a checkout with it")
    cli.add_engine(parser, "with --pr-base and --pr-head: the engine that runs them")
    cli.add_tries(parser, 3, "runs of each seed on each side")
    parser.add_argument("--no-guards", dest="guards", action="store_false", help="leave out all other stored seeds")
    cli.add_json(parser, "the runs of each seed")
    parser.set_defaults(fresh=False)


def go(options: argparse.Namespace, rig: Rig) -> ExitCode:
    """The exit code is that of repro/upstream/patch_test.py. BadInput, Refused, BadSeed."""
    before, after, names = _sides(options, rig)
    for target in (before, after):
        if lack := rig.lacks(target):
            raise BadInput(f"{target}: {lack}")
    questions = list(_questions(options))
    answers = compare(rig, before, after, questions, options.tries)
    for text in table(answers, *names):
        print(text, flush=True)
    code = exit_code(answers)
    if options.json:
        form = {"exit_code": code, "before": str(before), "after": str(after), "seeds": to_json(answers)}
        write_text(options.json, json.dumps(form, indent=1) + "\n")
    return code


def _sides(options: argparse.Namespace, rig: Rig) -> tuple[Target, Target, tuple[str, str]]:
    """Before and after, and what to call them."""
    if options.patch:
        if options.pr_base or options.pr_head or not options.target:
            raise BadInput("--patch FILE goes with --target T, and not with --pr-base and --pr-head")
        if lack := rig.lacks(options.target):
            raise BadInput(f"{options.target}: {lack}")
        patched = applied(options.patch, rig.source(options.target))
        for name in patched.left_out:
            say(f"not sglang's own, left out: {name}")
        # By its contents: two patches of one name are two overlays.
        mark = hashlib.sha256(repr(sorted(patched.contents.items())).encode()).hexdigest()[:8]
        after = rig.overlay(options.target, f"with {options.patch.stem} {mark}", patched.contents)
        return options.target, after, (str(options.target), f"with {options.patch.name}")
    if not (options.pr_base and options.pr_head):
        raise BadInput("either --patch FILE --target T, or --pr-base PATH --pr-head PATH")
    base, head = (
        Target(str(path.expanduser().absolute()), options.engine) for path in (options.pr_base, options.pr_head)
    )
    return base, head, (str(options.pr_base), str(options.pr_head))


def _questions(options: argparse.Namespace) -> Iterator[Question]:
    named = {path.resolve(): path for path in options.seeds}
    for path in named.values():
        seed = read(path)
        yield Question(path=path, seed=seed, failure=wanted_of(seed))
    for path in sorted(SEEDS.glob("*.json")) if options.guards else ():
        if path.resolve() not in named:
            seed = read(path)
            yield Question(path=Path(path.name), seed=seed, failure=wanted_of(seed), guard=True)
