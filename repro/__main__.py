"""python -m repro: run a stored case on a target, shrink it, show it in words, check that it is valid; prove fixes.

Exit codes: 0 pass, 1 fail, 2 unknown, 3 harness error or bad input; for several, the worst, in the order 3, 1, 2, 0.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console

from fuzz.draw.rounds import rounds
from fuzz.search import search
from fuzz.triage import Hooks as CampaignHooks
from oracles.catalogue import ALL, judge_all, overall
from oracles.tolerance import across_engines
from reports.fidelity import show_fidelity
from reports.fixes import lines, show_fixes
from reports.outcome import show_outcome
from repro.cases.atomic_file import write_text
from repro.cases.case import RUNNERS, Case, Target
from repro.cases.codec import BadSeed, Seed, read
from repro.cases.own_place import own_file, own_folder
from repro.cases.words import sentence
from repro.commands import bisect, fidelity, first, judge, ledger, patch_test, script, show
from repro.commands.cli import BadInput, complain, ended, say
from repro.commands.options import options_of
from repro.commands.show import stored
from repro.fidelity.observation import Observation, observe
from repro.fidelity.recording import BadRecording
from repro.ledger import known
from repro.ledger.explain import to_json as told
from repro.ledger.run import LedgerRun, asked_for, new_run
from repro.shrinking.confirm import failure
from repro.shrinking.replay import ERROR, EXIT, Outcome, line, outcome_of, severest, to_json
from repro.shrinking.seed_file import InTheWay, SeedFile
from repro.shrinking.store import keep
from repro.shrinking.triage import Budget, TriageHooks
from repro.traces.finding import Status, Verdict
from repro.traces.trace import How
from repro.upstream import patches, prove
from repro.upstream.edits import Edit, EditNotFound
from repro.upstream.fixes import FIXES, NEWEST, Fix, Proof, not_covered
from repro.upstream.rig import Refused, Rig
from runners.processes.diagnose import extra_notes
from runners.processes.experiments import experiments
from runners.processes.pool import Pool
from runners.processes.rig import rig
from runners.processes.sanitizer import Reports, observed_pool
from runners.targets.environments import (
    PROBES,
    NotUsable,
    lacks,
    overlays_directory,
    sglang_path,
    whole_record,
)
from runners.targets.hypothesis_pin import warn_of_hypothesis_version
from runners.targets.overlay import CannotMake, Overlay, make_overlay
from runners.targets.usable import fetch, usable


def main(arguments: Sequence[str] | None = None) -> int:
    return ended(partial(carry_out, arguments), BadSeed, BadRecording, InTheWay, NotUsable, Refused, known.BadIssues)


def carry_out(arguments: Sequence[str] | None) -> int:
    options = options_of(arguments)
    if getattr(options, "probes", False):
        os.environ[PROBES] = "1"
    return COMMANDS[options.command](options)


# run


def command_run(options: argparse.Namespace, ledger_run: LedgerRun) -> int:
    seeds, codes = stored(options.seeds)
    outcomes: list[Outcome] = []
    replays: list[dict[str, object]] = []
    issues = known.load(options.known_issues) if options.known_issues else ()
    try:
        for target in dict.fromkeys(options.target):
            if lack := lacks(target):
                complain(f"{target}: {lack}")
                codes.append(ERROR)
            elif seeds:
                asking = experiments(issues, judge_all, overall, timeout_s=options.timeout, log=options.log)
                with _pool(options, target, options.sanitizer or "") as (pool, reports), asking as (explainer, _):
                    for path, seed in seeds:
                        if options.fresh:
                            pool.expect((seed.case.setup,) * options.tries)
                        outcome = outcome_of(path, seed.case, target, pool.run, judge_all, overall, options.tries)
                        outcomes.append(outcome)
                        ledger_run.outcome(outcome, seed.about)
                        _tell(outcome, options)
                        notes = extra_notes(pool, outcome, judge_all, reports.fresh())
                        asked = explainer.of_outcome(outcome) if issues else None
                        replays.append(to_json(outcome) | {"notes": notes} | ({"known": told(asked)} if asked else {}))
                        for note in () if options.json or options.quiet else [*notes, *([str(asked)] if asked else [])]:
                            say(f"  {note}")
                        if notes and options.sanitizer and outcome.status is Status.PASS:
                            codes.append(EXIT[Status.FAIL])
    except KeyboardInterrupt:
        complain("interrupted")
        codes.append(ERROR)
    code = severest([*codes, *(outcome.exit_code for outcome in outcomes)])
    if options.json:
        print(json.dumps({"exit_code": code, "replays": replays}, indent=1))
    return code


def _pool(options: argparse.Namespace, target: Target, tool: str = "") -> AbstractContextManager[tuple[Pool, Reports]]:
    return observed_pool(target, tool, timeout_s=options.timeout, fresh=options.fresh, log=options.log)


def _tell(outcome: Outcome, options: argparse.Namespace) -> None:
    for error in outcome.errors:
        complain(f"{outcome.seed} on {outcome.target}: could not be run: {error}")
    if not options.json and outcome.word != How.ERROR.name:
        say(line(outcome))
        if outcome.status is not None and not options.quiet:
            show_outcome(Console(), outcome)


def command_judge(options: argparse.Namespace) -> int:
    console = Console()
    return judge.go(options, judge.Means(judge=judge_all, overall=overall, show=partial(show_outcome, console)))


# shrink


def command_shrink(options: argparse.Namespace) -> int:
    seed, target = read(options.seed), options.target
    if lack := lacks(target):
        raise BadInput(f"{target}: {lack}")
    usual = options.seed.with_suffix(".small.json")
    with nullcontext(options.out) if options.out else own_file(usual) as out, _pool(options, target) as (pool, _):
        if out.name != usual.name and not options.out:
            say(f"{usual} is being written by another process; this one writes {out}")
        pool.expect((seed.case.setup,) * options.tries)
        first = outcome_of(options.seed, seed.case, target, pool.run_fresh, judge_all, overall, options.tries)
        verdict = _wanted(first, seed)
        if verdict is None:
            (complain if first.errors else say)(line(first))
            return first.exit_code
        seen = f"{first.failed(verdict)} of {len(first.runs)} runs"
        say(f"{verdict.oracle} at {verdict.where}: {seen}; shrinking towards it")
        run = pool.run_fresh if options.fresh else pool.run
        hooks = TriageHooks(run=run, run_fresh=pool.run_fresh, judge=judge_all, say=say, expect=pool.expect)
        budget = Budget(runs=options.runs, seconds=options.seconds, tries=options.tries)
        work = SeedFile(seed, target, verdict, out, hooks, budget)
        try:
            shrunk = work.shrink()
        except KeyboardInterrupt:
            complain(f"interrupted; the best so far is in {out}")
            return first.exit_code
    say(f"FAIL {out} on {target}: {verdict.oracle} at {shrunk.verdict.where}: {shrunk.failed} of {shrunk.tried} runs")
    say(f"{sentence(shrunk.case)}, from {sentence(seed.case)}, in {work.runs} runs")
    return first.exit_code


def _wanted(outcome: Outcome, seed: Seed) -> Verdict | None:
    """The failure to shrink towards: the one the seed was stored for, if it is among those seen, else the usual one."""
    stored = str(seed.about.get("fingerprint", ""))
    verdicts = [verdict for run in outcome.runs for verdict in run]
    return (failure(verdicts, stored) if stored else None) or outcome.verdict


# fixes


def command_fixes(options: argparse.Namespace, ledger_run: LedgerRun) -> int:
    oracles = {judge.__module__.rpartition(".")[2] for judge in ALL}
    rows = [
        prove.ProofRow(
            fix=fix,
            proof=proof,
            engine=options.engine,
            reason=not_covered(proof, options.engine, RUNNERS, oracles, stored=not options.fresh),
        )
        for fix in _fixes(options.fix)
        for proof in fix.proofs
    ]
    proven: list[prove.ProofRow] = []
    if options.fresh and not options.out:
        options.out = own_folder(Path("out"), "fixes")

    def on_row(row: prove.ProofRow) -> None:
        proven.append(row)
        ledger_run.proof(row)
        for text in lines(row):
            print(text, flush=True)
        write(proven, whole=False)

    def write(rows: Sequence[prove.ProofRow], *, whole: bool) -> None:
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            form = prove.to_json(rows, fresh=options.fresh, whole=whole)
            write_text(options.json, json.dumps(form, indent=1) + "\n")

    # Once before anything is run, so that a bad path shows at once.
    write([], whole=False)
    if options.install:
        for text in fetch(release for row in rows for release in (row.fix.buggy, row.fix.fixed)):
            complain(text)
    newest, there = (
        _installed(options.engine) if options.installed or options.install else (NEWEST, lambda release: True)
    )
    done = prove.prove(rows, newest, partial(_ask, options), _without, on_row, exact=not options.fresh, there=there)
    write(done, whole=True)
    show_fixes(Console(), done)
    say(prove.totals(done))
    if options.fresh and (times := prove.first_failures(done)):
        say(times)
    return prove.exit_code(done)


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
    return _changed(target, f"without #{fix.number}", fix.edits(target.sglang))


def _changed(target: Target, change: str, edits: Sequence[Edit]) -> Target:
    what = Overlay(release=target.sglang, change=change)
    try:
        path = make_overlay(sglang_path(target), what, edits, overlays_directory(target))
    except (NotUsable, CannotMake, EditNotFound) as error:
        raise prove.TargetUnavailable(str(error)) from error
    return Target(str(path), target.engine)


def _ask(options: argparse.Namespace, target: Target, proofs: Sequence[Proof]) -> list[prove.Result]:
    """Run the stored seeds, or search anew."""
    if lack := lacks(target):
        return [prove.Result(status=None, text=lack)] * len(proofs)
    with Pool(target, timeout_s=options.timeout, log=options.log) as pool:
        if not options.fresh:
            return [
                prove.replayed(proof, target, pool.run_fresh, judge_all, overall, options.tries) for proof in proofs
            ]
        hooks = CampaignHooks(
            run=pool.run,
            run_fresh=pool.run_fresh,
            judge=judge_all,
            overall=overall,
            keep=lambda finding: str(keep(options.out, finding)),
            tell=lambda progress: None,
            clock=time.monotonic,
        )
        results = [search(target, proof, hooks, seed=options.seed, seconds=options.seconds) for proof in proofs]
    return [prove.answer_of_search(done, proof) for done, proof in zip(results, proofs, strict=True)]


# repairs


def command_repairs(options: argparse.Namespace) -> int:
    known = {repair.seed: repair for repair in patches.CANDIDATE_PATCHES}
    for name in options.names:
        if name not in known:
            raise BadInput(f"{name}: no such repair; there are {', '.join(known)}")
    codes = []
    for repair in (known[name] for name in dict.fromkeys(options.names or known)):
        target = changed = Target(repair.release, options.engine)
        proof = Proof(runner="", seed=f"{repair.seed}.json", oracle=repair.oracle)
        answers = _ask(options, target, [proof])
        try:
            changed = _changed(target, f"with {repair.seed} repaired", repair.edits)
            answers += _ask(options, changed, [proof])
            shown = list(patches.patch(repair, sglang_path(target)))
        except (prove.TargetUnavailable, NotUsable) as trouble:
            answers, shown = [prove.Result(status=None, text=str(trouble))] * 2, []
        codes.append(patches.exit_code(*answers))
        for text in (*patches.lines(repair, (str(target), str(changed)), *answers), *(shown if options.diff else ())):
            print(text, flush=True)
    return severest(codes)


# fidelity


def command_fidelity(options: argparse.Namespace) -> int:
    @contextmanager
    def observers(targets: Sequence[Target]) -> Iterator[list[fidelity.Observer]]:
        with ExitStack() as stack:
            yield [
                partial(_observed, stack.enter_context(Pool(target, **watched, variables=whole_record(target))))
                for target in targets
            ]

    if options.drawn:
        warn_of_hypothesis_version()
    watched = {"timeout_s": options.timeout, "log": options.log}
    means = fidelity.Means(
        rounds=rounds, observers=observers, lacks=lacks, limit=across_engines, show=partial(show_fidelity, Console())
    )
    return fidelity.go(options, means)


def _observed(pool: Pool, case: Case) -> Observation:
    trace = pool.run(case)
    verdicts = judge_all(case, trace)
    return observe(case, trace, verdicts, overall(verdicts))


def _rig(options: argparse.Namespace) -> Rig:
    return rig(judge_all, overall, say, timeout_s=options.timeout, log=options.log)


def _with_ledger(
    kind: str, command: Callable[[argparse.Namespace, LedgerRun], int], options: argparse.Namespace
) -> int:
    """A command whose doings go into the ledger, if there is one."""
    with new_run(asked_for(options.ledger), kind) as ledger_run:
        return command(options, ledger_run)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": partial(_with_ledger, "seeds", command_run),
    "judge": command_judge,
    "shrink": command_shrink,
    "show": show.show,
    "check": show.check,
    "fixes": partial(_with_ledger, "fixes", command_fixes),
    "ledger": ledger.go,
    "repairs": command_repairs,
    "bisect": lambda options: bisect.go(options, _rig(options)),
    "script": lambda options: script.go(options, _rig(options)),
    "export": lambda options: script.export(options, _rig(options)),
    "first": lambda options: first.go(options, _rig(options)),
    "test": lambda options: patch_test.go(options, _rig(options)),
    "fidelity": command_fidelity,
}

if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        # A file name may hold what the terminal cannot show.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
