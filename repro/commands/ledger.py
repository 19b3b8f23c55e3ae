"""python -m repro ledger: what a ledger holds, whether it is sound, and joining those of several hosts."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from repro.cases.places import log_line
from repro.commands.cli import Commands, Parser
from repro.ledger.identities import FACT
from repro.ledger.merge import check, merge
from repro.ledger.read import History, read
from repro.ledger.rows import FINDING, FindingRow, Run
from repro.ledger.states import CANNOT_RUN, PASSING, State, measurements, states
from repro.traces.exit_codes import ExitCode

RUNS_SHOWN = 20
_LINE_MAX = 300


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "ledger", help="summarise a ledger, check that it is sound, merge ledgers of several hosts"
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    joining = verbs.add_parser(
        "merge", help="merge the other ledgers into the first, which is created if it is missing"
    )
    joining.add_argument("out", type=Path, metavar="OUT.db")
    joining.add_argument("sources", nargs="+", type=Path, metavar="A.db")
    for verb, meaning in (("show", "print runs, and each failure's state"), ("check", "check that it is sound")):
        verbs.add_parser(verb, help=meaning).add_argument("ledger", type=Path, metavar="DB")


def go(options: argparse.Namespace) -> ExitCode:
    """PASS, or BadLedger."""
    match options.verb:
        case "merge":
            lines = _merged(options.out, options.sources)
        case "check":
            lines = [f"{options.ledger}: sound; {_counts(check(options.ledger))}"]
        case _:
            lines = list(shown(read(options.ledger)))
    for line in lines:
        print(log_line(line, _LINE_MAX))
    return ExitCode.PASS


def _merged(out: Path, sources: Sequence[Path]) -> list[str]:
    joined = merge(out, sources)
    return [f"{source.source}: {source.runs} new runs, {source.rows} new rows" for source in joined] + [
        f"{out}: {_counts(read(out))}"
    ]


def _counts(history: History) -> str:
    cases = sum(count.count for count in history.cases)
    return (
        f"{len(history.runs)} runs, {cases:,} cases, {len(history.campaigns)} campaigns, "
        f"{len(history.findings)} findings, {len(history.checks)} checks, {len(history.fixes)} stops of fixes"
    )


def shown(history: History) -> Iterator[str]:
    """The last runs, then the state of whatever failed or could not be run."""
    yield f"{history.path}: {_counts(history)}"
    numbers = {run.id: number for number, run in enumerate(history.runs, start=1)}
    if len(history.runs) > RUNS_SHOWN:
        yield f"the last {RUNS_SHOWN} of {len(history.runs)} runs:"
    for run in history.runs[-RUNS_SHOWN:]:
        yield f"run {numbers[run.id]}: {_run(run, history)}"
    for run in history.runs:
        if FACT in run.facts:
            yield f"run {numbers[run.id]}, {FACT}: {run.facts[FACT]}"
    names = {f"{FINDING}{row.fingerprint}": _failure(row) for row in history.findings}
    for state in states(measurements(history)).values():
        if state.state != PASSING or state.why:
            yield _state(state, names.get(state.subject, state.subject), numbers)


def _run(run: Run, history: History) -> str:
    cases: Counter[str] = Counter()
    for row in history.cases:
        if row.run == run.id:
            cases[row.status] += row.count
    parts = [f"{count:,} cases {status}" for status, count in sorted(cases.items())]
    for name, rows in (("findings", history.findings), ("checks", history.checks), ("stops", history.fixes)):
        if count := sum(row.run == run.id for row in rows):
            parts.append(f"{count} {name}")
    end = f"to {run.ended[:19]}" if run.ended else "not ended"
    return f"{run.kind} on {run.host}, {run.started[:19]} {end}: {', '.join(parts) or 'nothing stored'}"


def _failure(row: FindingRow) -> str:
    return f"{FINDING}{row.fingerprint} ({row.runner}/{row.backend} {row.oracle}: {row.where})"


def _state(state: State, name: str, numbers: dict[str, int]) -> str:
    def run(name: str, identity: str) -> str:
        return f", {name} run {numbers[identity]}" if identity else ""

    why = f" ({state.why})" if state.why else ""
    if state.state == CANNOT_RUN:
        return f"{name} on {state.target}: cannot run{why}"
    rate = f" in {state.rate:.0%} of the last runs" if 0 < state.rate < 1 else ""
    seen = run("since", state.since) + run("first seen in", state.first_seen) + run("last in", state.last_seen)
    unmeasured = f"; not measured last time{why}" if state.why else ""
    return f"{name} on {state.target}: {state.state}{rate}{seen}{unmeasured}"
