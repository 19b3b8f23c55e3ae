"""python -m repro judge: judge stored traces with today's oracles, without running anything."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from repro.cases.codec import digest
from repro.commands.cli import complain, say
from repro.shrinking.confirm import Judge
from repro.shrinking.replay import ERROR, EXIT, Outcome, line, severest
from repro.traces.finding import Status, Verdict
from repro.traces.trace_file import BadTrace, Kept, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """judge, overall: the oracles, and what their verdicts come to. show: an outcome to a person."""

    judge: Judge
    overall: Callable[[Sequence[Verdict]], Status]
    show: Callable[[Outcome], None]


def go(options: argparse.Namespace, means: Means) -> int:
    """The exit code: of several, the worst. One bad file does not hold up the rest."""
    codes, forms = [], []
    for path in dict.fromkeys(options.traces):
        try:
            outcome = _outcome(path, load(path), means)
        except BadTrace as error:
            complain(str(error))
            codes.append(ERROR)
            continue
        codes.append(ERROR if outcome.status is None else EXIT[outcome.status])
        forms.append(_to_json(outcome))
        if not options.json:
            say(line(outcome))
            means.show(outcome)
    code = severest(codes)
    if options.json:
        print(json.dumps({"exit_code": code, "traces": forms}, indent=1))
    return code


def _outcome(path: Path, stored: Kept, means: Means) -> Outcome:
    trace = stored.trace
    took_place = trace.ended.how.took_place
    verdicts = (tuple(means.judge(stored.case, trace)),) if took_place else ()
    return Outcome(
        seed=path,
        case=stored.case,
        target=stored.target,
        runs=verdicts,
        statuses=tuple(map(means.overall, verdicts)),
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
