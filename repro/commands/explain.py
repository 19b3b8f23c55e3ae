"""python -m repro explain: a failing case with one switch changed at a time, and the cause as far as that shows it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repro.cases.atomic_file import write_text
from repro.cases.case import Setup, Target
from repro.cases.codec import Seed, read
from repro.cases.places import log_line
from repro.cases.releases import expected
from repro.commands import cli
from repro.commands.bisect import found_on, wanted_of
from repro.commands.cli import TARGET, BadInput, Commands, complain, count, say, seed_file
from repro.commands.first import likeliest, named_lines
from repro.commands.options import watched
from repro.ledger.known import Issue, load
from repro.ledger.rows import SEED
from repro.shrinking.confirm import Run
from repro.shrinking.first_divergence import of_run
from repro.shrinking.origin import writes
from repro.shrinking.replay import Outcome, line, outcome_of
from repro.suspects.changed_lines import FILES_MAX, changed_lines
from repro.suspects.clues import Suspect
from repro.suspects.ranking import listed
from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Termination
from repro.upstream.backports import edits_for
from repro.upstream.explain import Row, Runs, State, conclusion, failure_of, summary, to_json, try_all, try_patches
from repro.upstream.patch_table import BY_NAME, CANDIDATE_PATCHES, Backport
from repro.upstream.rig import Rig, Wanted, named
from repro.upstream.switches import BASE, Kind, Patch, Subject, switches
from runners.targets.mended import counts_as

# A GPU's races need several looks; without a GPU a case fails every time or never.
TRIES = {"cuda": 5}


def add_parser(commands: Commands) -> None:
    meaning = "run the case with one switch changed at a time, and name the cause"
    parser = commands.add_parser("explain", parents=[watched()], help=meaning)
    parser.add_argument("seed", type=seed_file, metavar="SEED.json")
    cli.add_target(parser, f"{TARGET} (default: that on which the seed was found)", required=False)
    runs = "runs for each switch (default: 5 on cuda, else 1)"
    parser.add_argument("--tries", type=count, metavar="K", help=runs)
    parser.add_argument("--without-first", action="store_true", help="leave out the first wrong write")
    cli.add_json(parser, "the runs of each switch")
    parser.set_defaults(fresh=False)


def go(options: argparse.Namespace, rig: Rig) -> ExitCode:
    """The exit code of the case as it is. BadInput, BadSeed, Refused."""
    seed = read(options.seed)
    target = options.target or _found_target(seed)
    if lack := rig.lacks(target):
        raise BadInput(f"{target}: {lack}")
    tries = options.tries or TRIES.get(target.engine, 1)
    with rig.opened(target) as run:
        outcome = outcome_of(options.seed, seed.case, target, run, rig.judge, rig.overall, tries)
        verdict = failure_of(_stored(seed, target), outcome.runs)
        if verdict is None:
            (complain if outcome.errors else say)(line(outcome))
            return outcome.exit_code
        subject = _subject(seed, target, verdict, outcome, rig)
        failure = subject.failure
        baseline = _baseline(outcome, failure)
        say(f"{options.seed} on {target}: {failure}: {baseline.failed} of {baseline.judged} runs")
        patches = list(known_patches(options.seed, subject, verdict, rig))
        rows = list(_tried(rig, subject, patches, run, tries))
    paragraph = conclusion(rows, patches, baseline)
    written, functions = ([], ()) if options.without_first else _first(rig, subject, _base(rows))
    _show(rows, [*summary(rows), *written, *listed(functions), paragraph])
    code = ExitCode.ERROR if any(row.runs.state is State.ERROR for row in rows) else outcome.exit_code
    if options.json:
        form = {
            "exit_code": code,
            "seed": str(options.seed),
            "target": str(target),
            "failure": {"oracle": failure.oracle, "where": failure.where},
            "failed": baseline.failed,
            "judged": baseline.judged,
            "tries": tries,
            "switches": to_json(rows),
            "summary": list(summary(rows)),
            "first": written,
            "suspects": [suspect.to_json() for suspect in functions],
            "conclusion": paragraph,
        }
        write_text(options.json, json.dumps(form, indent=1) + "\n")
    return code


def _tried(rig: Rig, subject: Subject, patches: Sequence[Patch], run: Run, tries: int) -> Iterator[Row]:
    """Each switch and then each patch, the likeliest patch first, with the runs of it; their states are shown."""
    rows = chain(
        try_all(rig, subject, list(switches(subject.case.setup)), run, tries),
        *(try_patches(rig, subject, part, run, tries) for part in (patches[:1], patches[1:])),
    )
    for row in rows:
        if row.runs.judged or row.runs.state is State.ERROR:
            rig.tell(f"{row.switch.name}: {row.runs.state}")
        yield row


def _found_target(seed: Seed) -> Target:
    if not found_on(seed):
        raise BadInput("--target T: the seed does not say on which target it was found")
    return Target.parse(str(seed.about["found"]))


def _stored(seed: Seed, target: Target) -> list[Wanted]:
    """The failure that the seed was stored for, and the oracle that it says fails on this target: a crash on a GPU is
    another failure without one."""
    stored = [wanted_of(seed)] if seed.about.get("oracle") else []
    oracle = "" if target.engine == "toy" else expected(seed.about, counts_as(target), target.engine)
    return [*stored, *([Wanted(oracle=oracle)] if oracle else [])]


def _baseline(outcome: Outcome, failure: Wanted) -> Runs:
    failed = sum(any(v.status is Status.FAIL and named(v) == str(failure) for v in run) for run in outcome.runs)
    return Runs(state=State.FAILS, failed=failed, judged=len(outcome.runs))


def _subject(seed: Seed, target: Target, verdict: Verdict, outcome: Outcome, rig: Rig) -> Subject:
    """The subject, with the step that goes wrong: of the first wrong value, else in which the run ended badly, else the
    last with requests. A scheduler's rounds are counted and may be more than the case has steps."""
    steps = [number for number, step in enumerate(seed.case.steps) if step.requests]
    wrong = (outcome.ended.step, verdict.cell.step if verdict.cell else -1)
    steps += [step for step in wrong if 0 <= step < len(seed.case.steps)]
    toy = target.engine == "toy"
    return Subject(
        case=seed.case,
        target=target,
        failure=Wanted(oracle=verdict.oracle, where=verdict.where),
        step=steps[-1],
        besides=frozenset(named(v) for run in outcome.runs for v in run if v.status is Status.FAIL) - {named(verdict)},
        releases=() if toy else rig.releases(target.engine),
        counts_as="" if toy else counts_as(target),
        in_capture=outcome.ended.how is not Termination.DONE and outcome.ended.step < 0,
    )


def known_patches(path: Path, subject: Subject, verdict: Verdict, rig: Rig) -> Iterator[Patch]:
    """The known changes that have a place in these sources and concern this failure, the likeliest first: those of
    known issues that name it, then of those that name its oracle, then of the others of its runner and backend."""
    if subject.target.engine == "toy":
        return
    source, setup = rig.source(subject.target), subject.case.setup
    issues = [
        issue for issue in load() if issue.concerns(setup) and issue.holds_on(subject.counts_as, subject.target.engine)
    ]
    issues.sort(key=lambda issue: _distance(issue, setup, verdict))
    backports = {
        patch.seed: Backport(name=patch.seed, why=patch.why, forms=(patch.edits,)) for patch in CANDIDATE_PATCHES
    }
    backports |= BY_NAME
    owners: dict[str, Issue | None] = {path.stem: None}
    for issue in issues:
        for name in (*issue.mended_by, *map(_seed_of, issue.probes)):
            owners[name] = owners.get(name) or issue
    for name, owner in owners.items():
        backport = backports.get(name)
        edits = edits_for(backport, lambda file: (source / file).read_text(encoding="utf-8")) if backport else ()
        if backport and edits:
            title, link = (owner.title, owner.link) if owner else ("", "")
            yield Patch(name=name, why=backport.why, edits=edits, title=title, link=link)


def _seed_of(probe: str) -> str:
    """The name of a probe's seed, which its candidate patch has, too."""
    return probe.removeprefix(SEED).removesuffix(".json")


def _distance(issue: Issue, setup: Setup, verdict: Verdict) -> int:
    oracles = {f"{runner}/{setup.backend} {verdict.oracle}" for runner in (setup.runner, verdict.runner)}
    by_oracle = not oracles.isdisjoint(text.partition(": ")[0] for text in issue.explains)
    return 0 if issue.names(setup, verdict) else 1 if by_oracle else 2


def _base(rows: Sequence[Row]) -> Target | None:
    """The release under a checkout, if the case does not fail so there."""
    for row in rows:
        if row.switch.name == BASE and row.runs.gone:
            return Target.parse(row.target)
    return None


def _first(rig: Rig, subject: Subject, base: Target | None) -> tuple[list[str], tuple[Suspect, ...]]:
    """The first wrong write of this failure, in a run that notes writes, and the same row's in the base; the functions
    that are likeliest to hold the mistake."""
    with rig.noting(subject.target) as run:
        trace = run(subject.case)
    if not trace.ended.how.took_place:
        return ["first wrong write: the case could not be run with writes noted"], ()
    verdicts = rig.judge(subject.case, trace)
    matching = [v for v in verdicts if v.status is Status.FAIL and named(v) == str(subject.failure)]
    if not matching:
        return ["first wrong write: the case did not fail so with writes noted"], ()
    texts = list(named_lines(subject.case, trace, matching)) or ["no oracle names a first wrong value"]
    cell = of_run(trace, matching).cell
    if base and cell:
        with rig.noting(base) as run:
            of_base = run(subject.case)
        places = [w.place for w in writes(of_base.facts, cell.step) if w.buffer == cell.buffer and w.reaches(cell.row)]
        by = ", ".join(dict.fromkeys(places)) or "no line of sglang"
        texts.append(f"on {base}, row {cell.row} of {cell.buffer} is written in call {cell.step} by {by}")
    changed = changed_lines(rig.source(base), rig.source(subject.target)) if base else []
    if base and not changed:
        texts.append(
            f"no changed line is known: none of sglang's code differs from {base}, or more than {FILES_MAX} files"
        )
    return texts, likeliest(subject.case, trace, matching, verdicts, subject.target, rig, changed)


def _show(rows: Sequence[Row], texts: Sequence[str]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    for heading in ("switch", "result", "fails so", "more"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        if row.runs.state is State.LEFT_OUT and row.switch.kind is not Kind.PATCH:
            continue
        count = f"{row.runs.failed} of {row.runs.judged}" if row.runs.judged else ""
        cells = (row.switch.name, row.runs.state.value, count, row.detail)
        # As Text, so that nothing in it is taken for markup.
        table.add_row(*(Text(log_line(cell)) for cell in cells))
    Console().print(table)
    for text in texts:
        say(text)
