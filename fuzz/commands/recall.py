"""python -m fuzz recall: real bugs of sglang's history, each put back on a release and searched for by a campaign."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from fuzz.aiming import aim_of
from fuzz.campaign import campaign
from fuzz.case_source import CaseStream
from fuzz.commands.session_hooks import Place, session_hooks
from fuzz.draw.aim import why_not
from fuzz.draw.profiles import DEFAULT, PROFILES
from fuzz.draw.rounds import rounds
from fuzz.stats import Plan
from fuzz.triage import Hooks
from oracles.catalogue import judge_all, overall
from reports.progress import Display, Screen
from repro.cases.atomic_file import write_text
from repro.cases.case import Case, Target
from repro.cases.own_place import own_folder
from repro.cases.server_args import BadOption
from repro.commands import cli
from repro.commands.cli import BadInput, Commands, count, say, whole
from repro.commands.interrupts import ENDS_WITH_INPUT
from repro.ledger.explain import Explained
from repro.ledger.run import LedgerRun
from repro.recall.results import ERROR, FOUND, MISSED, OUT, Result, exit_code, markdown, totals
from repro.recall.rows import BadRows, Row, chosen, load
from repro.shrinking.confirm import Run
from repro.shrinking.first_divergence import of_run
from repro.shrinking.origin import lines, origin
from repro.suspects.ranking import suspects
from repro.traces.campaign import Campaign, CampaignFinding
from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Termination
from repro.upstream.edits import EditNotFound, edited
from runners.processes.pool import Pool
from runners.processes.rig import rig
from runners.processes.served import setups_per_session
from runners.processes.warm import room_for
from runners.targets.environments import NotUsable, lacks, sglang_path
from runners.targets.overlay import Overlay, make_overlay


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("recall", help="put real bugs of sglang back on a release: which are found?")
    parser.add_argument("--row", action="append", default=[], metavar="ID", help="only this bug; may be repeated")
    parser.add_argument(
        "--cases", type=count, default=150, metavar="N", help="most cases for a bug (default: %(default)s)"
    )
    cli.add_seed_number(parser, 1)
    cli.add_engine(parser)
    parser.add_argument(
        "--jobs", type=count, default=1, metavar="N", help="bugs at a time, each in a process (default: %(default)s)"
    )
    parser.add_argument(
        "--standbys",
        type=whole,
        metavar="N",
        help="sessions to open ahead of their use, of each process (default: by this host's cores)",
    )
    cli.add_json(parser, "the outcome of each bug")
    cli.add_markdown(parser, "figures and table")
    cli.add_out(parser, "findings and logs", "recall")
    parser.add_argument(ENDS_WITH_INPUT, action="store_true", help=argparse.SUPPRESS)
    cli.add_timeout(parser)


def command(options: argparse.Namespace) -> ExitCode:
    """BadInput, on one line, if a row cannot be put back on its release."""
    try:
        rows = chosen(load(), options.row)
    except BadRows as error:
        raise BadInput(str(error)) from error
    for row in rows:
        _check(row, Target(row.base, options.engine))
    options.out = options.out or own_folder(Path("out"), "recall")
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Result] = {}
    with closing(_each(rows, options)) as every:
        for result in every:
            results[result.row] = result
            say(str(result))
            _write(options, rows, [results[row.id] for row in rows if row.id in results])
    done = [results[row.id] for row in rows]
    for text in totals(done):
        say(text)
    return exit_code(done)


def _check(row: Row, target: Target) -> None:
    """BadInput if the row's edits have no place there, or no setup has its aim."""
    if not row.is_in_reach:
        return
    try:
        reason = why_not(row.runner, row.backend, aim_of(row.aim))
    except BadOption as error:
        reason = str(error)
    if reason:
        raise BadInput(f"{row.id}: {reason}")
    if lack := lacks(target):
        raise BadInput(f"{row.id}: {target}: {lack}")
    try:
        source = sglang_path(target)
        for file in {edit.file for edit in row.edits}:
            edited((source / file).read_text(), [edit for edit in row.edits if edit.file == file])
    except (EditNotFound, NotUsable) as error:
        raise BadInput(f"{row.id} on {row.base}: {error}") from error
    except OSError as error:
        raise BadInput(f"{row.id} on {row.base}: {error.filename}: {error.strerror}") from error


def _each(rows: Sequence[Row], options: argparse.Namespace) -> Generator[Result, None, None]:
    """The outcomes, each as soon as it is there. KeyboardInterrupt ends all that are under way."""
    if options.jobs == 1:
        yield from (_tried(options, row) for row in rows)
        return
    started: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(options.jobs) as workers:
        futures = [workers.submit(_in_process, options, row, started) for row in rows]
        try:
            yield from (future.result() for future in as_completed(futures))
        finally:
            workers.shutdown(wait=False, cancel_futures=True)
            for process in started:
                process.terminate()  # nothing, where it has ended


def _write(options: argparse.Namespace, rows: Sequence[Row], results: Sequence[Result]) -> None:
    how = f"{options.cases} cases each, seed {options.seed}, {options.engine} engine."
    form = {"cases": options.cases, "seed": options.seed, "rows": [result.to_json() for result in results]}
    texts = {"json": json.dumps(form, indent=1) + "\n", "markdown": markdown(rows, results, how)}
    for name, default in (("json", "recall.json"), ("markdown", "recall.md")):
        path: Path = getattr(options, name) or options.out / default
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, texts[name])


def _in_process(options: argparse.Namespace, row: Row, started: list[subprocess.Popen[bytes]]) -> Result:
    """The same command for this row alone, added to those that were started. It ends when this process does."""
    if not row.is_in_reach:
        return Result(row=row.id, state=OUT)
    place = options.out / row.id
    place.mkdir(parents=True, exist_ok=True)
    # The processes share the cores.
    standbys = room_for(options.engine) // options.jobs if options.standbys is None else options.standbys
    words = ["--row", row.id, "--out", str(place), "--json", str(place / "recall.json"), "--engine", options.engine]
    words += ["--standbys", str(standbys), ENDS_WITH_INPUT]
    words += ["--cases", str(options.cases), "--seed", str(options.seed), "--timeout", str(options.timeout)]
    (place / "recall.json").unlink(missing_ok=True)
    with (place / "recall.log").open("w") as log:
        command = [sys.executable, "-m", "fuzz", "recall", *words]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log) as process:
            started.append(process)
            process.wait()
    try:
        (form,) = json.loads((place / "recall.json").read_text())["rows"]
        return Result.from_json(form)
    except (OSError, ValueError):
        last = (place / "recall.log").read_text().splitlines()[-1:]
        return Result(row=row.id, state=ERROR, error=last[0] if last else "no outcome")


def _tried(options: argparse.Namespace, row: Row) -> Result:
    """The outcome of a row, by a campaign on its release with the bug, beside the release as it is."""
    if not row.is_in_reach:
        return Result(row=row.id, state=OUT)
    control = Target(row.base, options.engine)
    out: Path = options.out.absolute() / row.id
    out.mkdir(parents=True, exist_ok=True)
    what = Overlay(release=row.base, change=f"with the bug of {row.id}")
    target = Target(str(make_overlay(sglang_path(control), what, row.edits, out / "checkouts")), options.engine)
    log = out / "control.log"
    with _hooks(options, target, out) as hooks, Pool(control, timeout_s=options.timeout, log=log) as pool:
        beside = Control(pool.run)
        done = _campaign(options, row, target, replace(hooks, explain=beside.explain))
    if done.stopped == "interrupted":
        raise KeyboardInterrupt
    result = Result(row=row.id, state=MISSED, cases=done.cases, control=tuple(sorted(beside.seen)))
    findings = [finding for finding in done.findings if finding.failed]
    if findings:
        return _with_diagnosis(options, row, result, min(findings, key=lambda finding: finding.at_case))
    return replace(result, state=ERROR, error=_why_not(done)) if _why_not(done) else result


def _campaign(options: argparse.Namespace, row: Row, target: Target, hooks: Hooks) -> Campaign:
    drawn = rounds(options.seed, row.runner, row.backend, PROFILES[DEFAULT].cases_per_setup, aim=aim_of(row.aim))
    plan = Plan(
        target=target,
        runner=row.runner,
        backend=row.backend,
        aim=row.aim,
        seed=options.seed,
        cases=options.cases,
        stop_at_first=True,
        confirm_tries=1,
        shrink_runs=1,
    )
    return campaign(plan, CaseStream(drawn, drawn.coming, drawn.leave), hooks)


def _why_not(done: Campaign) -> str:
    """Why a campaign says nothing of a bug; empty if it does."""
    if done.stopped in ("error", "cannot run") or not done.judged:
        return f"{done.stopped}: {done.judged} of {done.cases} cases judged"
    return ""


@contextmanager
def _hooks(options: argparse.Namespace, target: Target, out: Path) -> Iterator[Hooks]:
    place = Place(
        target=target,
        out=out,
        log=out / "worker.log",
        timeout_s=options.timeout,
        standbys=room_for(target.engine) if options.standbys is None else options.standbys,
        setups_per_session=setups_per_session(target.engine),
    )
    with Display(Screen()) as display, session_hooks(place, LedgerRun(), display.tell) as hooks:
        yield hooks


class Control:
    """The release as it is. Mutable. seen: failures that it has, too. run: a case on it."""

    def __init__(self, run: Run) -> None:
        self._run, self.seen = run, set[str]()

    def explain(self, case: Case, failures: Sequence[Verdict]) -> Explained:
        """The failures that the control does not have in this case. None, where the control does not come through it:
        behind that it would have more."""
        if not failures:
            return Explained()
        trace = self._run(case)
        usual = {v.fingerprint for v in judge_all(case, trace) if v.status is Status.FAIL}
        self.seen |= {f"{v.oracle} at {v.where}" for v in failures if v.fingerprint in usual}
        if trace.ended.how is not Termination.DONE:
            return Explained()
        return Explained(left=tuple(v for v in failures if v.fingerprint not in usual))


def _with_diagnosis(options: argparse.Namespace, row: Row, result: Result, finding: CampaignFinding) -> Result:
    """The outcome of a row that was found, with the line and the functions that its case points at."""
    target = Target.parse(finding.target)
    tools = rig(judge_all, overall, say, timeout_s=options.timeout, log=options.out / row.id / "worker.log")
    with tools.noting(target) as run:
        trace = run(finding.case)
    verdicts = judge_all(finding.case, trace)
    failed = [v for v in verdicts if v.fingerprint == finding.fingerprint]
    source = origin(finding.case, trace, failed)
    others = [v for v in verdicts if f"{v.oracle} at {v.where}" not in result.control]
    named = suspects(finding.case, trace, failed, others, lambda file: (Path(target.sglang) / file).read_text())
    text = list(lines(source))[-1] if source else str(of_run(trace, failed))
    rank = next((n for n, suspect in enumerate(named, start=1) if suspect.function in row.places), 0)
    return replace(
        result,
        state=FOUND,
        oracle=finding.oracle,
        where=finding.where,
        case=finding.at_case,
        seconds=finding.at_seconds,
        first=" ".join(text.split()),
        guesses=tuple(map(str, named)),
        rank=rank,
        seed=finding.seed,
    )
