"""python -m repro first: the first wrong value of a failing seed, and the line of sglang that it comes from."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from repro.cases.case import Case, Target
from repro.cases.codec import Seed, read
from repro.commands import cli
from repro.commands.cli import BadInput, Commands, say, seed_file
from repro.commands.options import watched
from repro.shrinking.first_divergence import of_run
from repro.shrinking.origin import lines, origin
from repro.shrinking.replay import trouble
from repro.suspects.changed_lines import Line
from repro.suspects.clues import Suspect
from repro.suspects.ranking import listed, suspects
from repro.traces.exit_codes import ExitCode, of_status
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Trace
from repro.upstream.rig import Rig


def add_parser(commands: Commands) -> None:
    meaning = "name the first wrong value, and the line of sglang that it comes from"
    parser = commands.add_parser("first", parents=[watched()], help=meaning)
    parser.add_argument("seed", type=seed_file, metavar="SEED.json")
    cli.add_target(parser)
    parser.set_defaults(fresh=False)


def go(options: argparse.Namespace, rig: Rig) -> ExitCode:
    """The exit code of the run's status. BadInput, BadSeed."""
    seed = read(options.seed)
    case = seed.case
    if lack := rig.lacks(options.target):
        raise BadInput(f"{options.target}: {lack}")
    with rig.noting(options.target) as run:
        trace = run(case)
        if not trace.ended.how.took_place:
            raise BadInput(f"{options.target}: the case could not be run: {trouble(trace.ended)}")
        verdicts = rig.judge(case, trace)
    status = rig.overall(verdicts)
    if status is Status.FAIL:
        failures = [verdict for verdict in verdicts if verdict.status is Status.FAIL]
        lines = list(named_lines(case, trace, verdicts))
        matching = [verdict for verdict in verdicts if _is_own(seed, verdict)]
        for text in lines or ["it fails, and no oracle names a first wrong value"]:
            say(text)
        # An earlier one may be of another bug that the same release has.
        of_own = list(named_lines(case, trace, matching)) if matching else []
        if of_own and of_own[0] != lines[0]:
            say("of the failure that the seed was stored for:")
            for text in of_own:
                say(text)
        for text in listed(likeliest(case, trace, matching or failures, verdicts, options.target, rig)):
            say(text)
    else:
        say(f"{options.seed} on {options.target}: {status.name}: there is no wrong value to be named")
    return of_status(status)


def named_lines(case: Case, trace: Trace, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The first wrong value of these failures, and where it comes from if that is known."""
    source = origin(case, trace, verdicts)
    if source:
        yield from lines(source)
    elif text := str(of_run(trace, verdicts)):
        yield text


def likeliest(
    case: Case,
    trace: Trace,
    failures: Sequence[Verdict],
    verdicts: Sequence[Verdict],
    target: Target,
    rig: Rig,
    changed: Sequence[Line] = (),
) -> tuple[Suspect, ...]:
    """The functions of the target that are likeliest to hold the mistake."""

    def text(file: str) -> str:
        return (rig.source(target) / file).read_text(encoding="utf-8")

    return suspects(case, trace, failures, verdicts, text, changed)


def _is_own(seed: Seed, verdict: Verdict) -> bool:
    """True if this is the failure that the seed was stored for."""
    is_named = (verdict.oracle, verdict.where) == (seed.about.get("oracle"), seed.about.get("where"))
    return verdict.status is Status.FAIL and is_named
