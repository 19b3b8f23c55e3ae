"""python -m repro run: stored cases on targets, and which oracle fails, where, in k of n runs."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager

from rich.console import Console

from oracles.catalogue import judge_all, overall
from reports.outcome import show_outcome
from repro.cases.case import Target
from repro.commands.cli import complain, say
from repro.commands.show import stored
from repro.ledger import known
from repro.ledger.explain import to_json as explanation_to_json
from repro.ledger.run import LedgerRun, asked_for, new_run
from repro.shrinking.replay import AS_EXPECTED, Outcome, beside_expected, line, outcome_of, to_json
from repro.traces.exit_codes import ExitCode, severest
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.processes.diagnose import extra_notes
from runners.processes.experiments import experiments
from runners.processes.pool import Pool
from runners.processes.sanitizer import Reports, observed_pool
from runners.targets.environments import lacks


def go(options: argparse.Namespace) -> ExitCode:
    with new_run(asked_for(options.ledger), "seeds") as ledger:
        return replay(options, ledger)


def replay(options: argparse.Namespace, ledger: LedgerRun) -> ExitCode:
    seeds, codes = stored(options.seeds)
    outcomes: list[Outcome] = []
    replays: list[dict[str, object]] = []
    beside: list[str] = []
    issues = known.load(options.known_issues) if options.known_issues else ()
    try:
        for target in dict.fromkeys(options.target):
            if lack := lacks(target):
                complain(f"{target}: {lack}")
                codes.append(ExitCode.ERROR)
            elif seeds:
                asking = experiments(issues, judge_all, overall, timeout_s=options.timeout, log=options.log)
                with opened(options, target, options.sanitizer or "") as (pool, reports), asking as (explainer, _):
                    for path, seed in seeds:
                        if options.fresh:
                            pool.expect((seed.case.setup,) * options.tries)
                        outcome = outcome_of(path, seed.case, target, pool.run, judge_all, overall, options.tries)
                        outcomes.append(outcome)
                        ledger.outcome(outcome, seed.about)
                        beside.append(beside_expected(outcome, seed.about))
                        _show(outcome, beside[-1], options)
                        notes = extra_notes(pool, outcome, judge_all, reports.fresh())
                        asked = explainer.of_outcome(outcome) if issues else None
                        explained = {"known": explanation_to_json(asked)} if asked else {}
                        replays.append(to_json(outcome) | {"notes": notes, "expectation": beside[-1]} | explained)
                        for note in () if options.json or options.quiet else [*notes, *([str(asked)] if asked else [])]:
                            say(f"  {note}")
                        if notes and options.sanitizer and outcome.status is Status.PASS:
                            codes.append(ExitCode.FAIL)
    except KeyboardInterrupt:
        complain("interrupted")
        codes.append(ExitCode.ERROR)
    code = severest([*codes, *(outcome.exit_code for outcome in outcomes)])
    if options.json:
        print(json.dumps({"exit_code": code, "replays": replays}, indent=1))
    elif len(outcomes) > 1:
        say(_total(outcomes, beside))
    return code


def opened(options: argparse.Namespace, target: Target, tool: str = "") -> AbstractContextManager[tuple[Pool, Reports]]:
    return observed_pool(target, tool, timeout_s=options.timeout, fresh=options.fresh, log=options.log)


def _total(outcomes: Sequence[Outcome], beside: Sequence[str]) -> str:
    """One line of all of them: how each ended, and which did not end as their seeds expect."""
    words = ", ".join(f"{count} {word}" for word, count in sorted(Counter(o.word for o in outcomes).items()))
    others = [(o, text) for o, text in zip(outcomes, beside, strict=True) if text not in ("", AS_EXPECTED)]
    named = "".join(f"\n  {o.seed} on {o.target}: {text}" for o, text in others)
    return f"{len(outcomes)} in all: {words}; {beside.count(AS_EXPECTED)} as expected, {len(others)} not{named}"


def _show(outcome: Outcome, beside: str, options: argparse.Namespace) -> None:
    for error in outcome.errors:
        complain(f"{outcome.seed} on {outcome.target}: could not be run: {error}")
    if not options.json and outcome.word != Termination.ERROR.name:
        say(f"{line(outcome)}; {beside}" if beside else line(outcome))
        if outcome.status is not None and not options.quiet:
            show_outcome(Console(), outcome)
