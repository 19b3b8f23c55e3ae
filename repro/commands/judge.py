"""python -m repro judge: the verdicts of today's oracles on kept traces, without running anything."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from oracles.catalogue import judge_all, overall
from reports.outcome import show_outcome
from repro.cases.codec import digest
from repro.cases.places import printed_json
from repro.commands.cli import Commands, complain, say
from repro.shrinking.replay import Outcome, line
from repro.traces.exit_codes import ExitCode, of_status, severest
from repro.traces.trace_file import BadTrace, Kept, load


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("judge", help="judge kept traces by today's oracles, without running")
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE.npz")
    parser.add_argument("--json", action="store_true", help="print all verdicts as JSON")


def go(options: argparse.Namespace) -> ExitCode:
    """The exit code: of several, the worst. One bad file does not hold up the rest."""
    console = Console()
    codes, forms = [], []
    for path in dict.fromkeys(options.traces):
        try:
            outcome = _outcome(path, load(path))
        except BadTrace as error:
            complain(str(error))
            codes.append(ExitCode.ERROR)
            continue
        codes.append(ExitCode.ERROR if outcome.status is None else of_status(outcome.status))
        forms.append(_to_json(outcome))
        if not options.json:
            say(line(outcome))
            show_outcome(console, outcome)
    code = severest(codes)
    if options.json:
        print(printed_json({"exit_code": code, "traces": forms}))
    return code


def _outcome(path: Path, stored: Kept) -> Outcome:
    trace = stored.trace
    took_place = trace.ended.how.took_place
    verdicts = (tuple(judge_all(stored.case, trace)),) if took_place else ()
    return Outcome(
        seed=path,
        case=stored.case,
        target=stored.target,
        runs=verdicts,
        statuses=tuple(map(overall, verdicts)),
        ended=trace.ended,
        facts=dict(trace.facts),
        seconds=dict(trace.seconds),
    )


def _to_json(outcome: Outcome) -> dict[str, object]:
    return {
        "trace": str(outcome.seed),
        "case": digest(outcome.case),
        "target": str(outcome.target),
        "status": outcome.word,
        "line": line(outcome),
        "verdicts": [asdict(v) | {"status": v.status.name} for run in outcome.runs for v in run],
        "facts": outcome.facts,
    }
