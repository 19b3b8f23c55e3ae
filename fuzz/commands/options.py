"""Options that several campaign commands have, and combinations that they refuse."""

from __future__ import annotations

import argparse
import os
import secrets

from hypothesis.database import ExampleDatabase

from fuzz.draw.profiles import DEFAULT, PROFILES, BadExamples, database
from repro.cases.case import BACKENDS, RUNNERS
from repro.commands import cli
from repro.commands.cli import BadInput, Parser, count, positive, whole
from repro.ledger.known import KNOWN_ISSUES

# Seeds that are drawn have so few digits that they are easily typed again.
DRAWN_SEEDS = 1_000_000


def campaign_options(*, draws_seed: bool = False) -> Parser:
    """The options of every campaign, as a parent of a command's parser. draws_seed: whether a seed that is not given is
    drawn, as that of a search is; what is compared or shown begins with the same."""
    parser = Parser(add_help=False)
    cli.add_targets(parser, required=False)
    parser.add_argument("--runner", choices=RUNNERS, help="the runner to drive (default: draft; toy on the toy engine)")
    parser.add_argument("--backend", choices=BACKENDS, help="the attention backend (default: the runner's first)")
    if draws_seed:
        meaning = "the number from which all cases are drawn (default: drawn and printed; 0 where CI is set)"
        parser.add_argument("--seed", type=whole, metavar="N", help=meaning)
    else:
        cli.add_seed_number(parser, 0)
    cli.add_out(parser, "findings and logs", "COMMAND")
    cli.add_json(parser, "the record of the campaigns")
    parser.add_argument("--keep-traces", action="store_true", help="keep each finding's trace beside its seed")
    cli.add_ledger(parser)
    cli.add_probes(parser)
    cli.add_timeout(parser)
    parser.add_argument(
        "--standbys",
        type=whole,
        metavar="N",
        help="sessions to open ahead of their use (default: by this host's cores)",
    )
    parser.add_argument(
        "--setups-per-session",
        type=count,
        metavar="N",
        help="setups that a session process serves, one after the other (default: 200 on a GPU, else 1)",
    )
    parser.add_argument("--cases-per-setup", type=count, metavar="N", help="cases of a round (default: the profile's)")
    _add_triage(parser)
    return parser


def _add_triage(parser: Parser) -> None:
    parser.add_argument(
        "--confirm", type=count, default=5, metavar="N", help="fresh runs to confirm a finding (default: %(default)s)"
    )
    parser.add_argument(
        "--shrink-runs", type=count, default=60, metavar="N", help="most runs to shrink a case (default: %(default)s)"
    )
    parser.add_argument(
        "--shrink-seconds",
        type=positive,
        default=20.0,
        metavar="S",
        help="most seconds to shrink a case (default: %(default)g)",
    )


def add_workers(parser: Parser) -> None:
    meaning = "processes that share the cases; on GPUs each has one, out of CUDA_VISIBLE_DEVICES (default: %(default)s)"
    parser.add_argument("--workers", type=count, default=1, metavar="N", help=meaning)


def add_known_issues(parser: Parser) -> None:
    """--known-issues FILE, or --no-known-issues."""
    meaning = "a failure that these issues explain is no finding (default: repro/known_issues.toml)"
    cli.add_known_issues(parser, KNOWN_ISSUES, meaning, default=KNOWN_ISSUES)
    parser.add_argument(
        "--no-known-issues",
        dest="known_issues",
        action="store_const",
        const=None,
        help="every failure is a finding, also one of a known issue",
    )


def complete(options: argparse.Namespace) -> None:
    """Put in what the profile says. BadInput if options contradict each other."""
    profile = PROFILES[getattr(options, "profile", DEFAULT)]
    options.seed_was_drawn = options.seed is None and not os.environ.get("CI")
    if options.seed is None:
        options.seed = secrets.randbelow(DRAWN_SEEDS) if options.seed_was_drawn else 0
    options.cases_per_setup = options.cases_per_setup or profile.cases_per_setup
    if options.command == "bench" and options.only_together and options.workers == 1:
        raise BadInput("--only-together goes with --workers: there are no others to measure")
    if options.command != "run":
        return
    options.minutes = None if options.cases else options.minutes or profile.minutes
    if options.examples and options.workers > 1:
        raise BadInput("--examples cannot be combined with --workers, which share whole rounds of drawn cases")
    if options.lines and (options.workers > 1 or options.cluster):
        raise BadInput("--lines: not with --workers or --cluster")
    alone = {"workers": options.workers > 1, "shard": options.shard, "examples": options.examples}
    for name, value in {**alone, "keep-traces": options.keep_traces}.items():
        if options.cluster and value:
            raise BadInput(f"--{name}: not with --cluster, whose nodes share out all rounds and send back seeds")


def examples(options: argparse.Namespace) -> ExampleDatabase | None:
    """The example database of --examples, or of the profile; None if neither has one."""
    try:
        remembers = options.command == "run" and (options.examples or PROFILES[options.profile].remembers)
        return database(options.examples) if remembers and options.workers == 1 and not options.cluster else None
    except BadExamples as error:
        raise BadInput(str(error)) from error
