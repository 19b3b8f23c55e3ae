"""python -m fuzz: run a campaign, bench its speed, or hunt: campaigns on two releases and what tells them apart.

Exit codes: 0 nothing found, 1 found, 2 nothing could be judged, 3 our own error or bad input.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from fuzz import bench
from fuzz.campaign import campaign
from fuzz.check.command import command_check
from fuzz.draw.corpus import Remembered
from fuzz.draw.rounds import rounds
from fuzz.draw.transitions import exercised
from fuzz.exits import exit_code
from fuzz.hunt import elsewhere, story
from fuzz.in_flight import UnderWay
from fuzz.known import explain
from fuzz.mutation.command import Tools, mutate
from fuzz.options import examples, options_of
from fuzz.parallel.coordinator import Crew
from fuzz.parallel.merge import with_seeds
from fuzz.parallel.scheduler import Deal
from fuzz.parallel.shard import Line, Member, plan_from_json, plan_to_json
from fuzz.stats import Plan, Tally
from fuzz.triage import Means
from oracles.catalogue import judge_all, overall
from reports.campaign import summary
from reports.html import render
from reports.progress import Display, Screen
from reports.records import history_of
from repro.cases.atomic_file import write_text
from repro.cases.case import Case, Target
from repro.cases.own_place import own_folder
from repro.cases.runner_facts import RUNNER_FACTS
from repro.commands.cli import BadInput, ended
from repro.ledger.known import BadIssues, Issue, load
from repro.ledger.run import Book, asked_for, new_run, same_run
from repro.shrinking.replay import ERROR
from repro.shrinking.store import keep, keep_trace
from repro.traces.campaign import Campaign, Progress, Replay, dumps
from repro.traces.finding import Finding, Status, Verdict
from repro.traces.trace import Trace
from runners.processes.diagnose import first_wrong
from runners.processes.experiments import experiments
from runners.processes.pool import Pool
from runners.processes.warm import room_for
from runners.targets.devices import gpus, spread, visible
from runners.targets.environments import PROBES, bare_loop, lacks, sglang_path
from runners.targets.hypothesis_pin import warn_of_other_cases


class Desk:
    """What the commands share: where things are written and shown. Mutable: campaigns and replays gather here."""

    def __init__(self, options: argparse.Namespace, display: Display, book: Book) -> None:
        self.options = options
        self.book = book
        self.remembered = Remembered(examples(options), display.line)
        self.display = display
        self.out: Path = options.out or own_folder(Path("out"), options.command)
        self.out.mkdir(parents=True, exist_ok=True)
        known: Path | None = getattr(options, "known_issues", None)
        self.issues: tuple[Issue, ...] = load(known) if known else ()
        self.campaigns: list[Campaign] = []
        self.replays: list[Replay] = []
        self.write()

    def write(self) -> None:
        """Put the record beside the findings and where it was asked for: as it grows, and once before anything is
        run, so that a bad path shows at once."""
        for path in (self.out / "record.json", self.options.json):
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, dumps(self.campaigns, self.replays))

    @contextmanager
    def means(self, target: Target) -> Iterator[Means]:
        """A target's pool and everything else that a campaign is given."""
        log = self.log(target)
        tell, standbys = self.display.tell, self.standbys(target, 1)
        own = partial(working, target, self.out, log, self.options.timeout, tell, self.book)
        with own(standbys=standbys, issues=self.issues, traces=self.options.keep_traces) as means:

            def kept(finding: Finding) -> str:
                self.remembered.remember(finding)
                return means.keep(finding)

            yield dataclasses.replace(means, keep=kept)

    def standbys(self, target: Target, workers: int) -> int:
        """How many sessions each of so many workers may open ahead."""
        asked: int | None = self.options.standbys
        return room_for(target.engine, workers) if asked is None else asked

    def log(self, target: Target, number: int | None = None) -> Path:
        """Where what a worker prints goes."""
        name = re.sub(r"[^A-Za-z0-9.]+", "-", str(target)).strip("-")
        return self.out / (f"worker-{name}.log" if number is None else f"worker-{name}-{number}.log")

    def plan(self, target: Target, **limits: Any) -> Plan:
        options = self.options
        runner = options.runner or ("toy" if target.engine == "toy" else "draft")
        backends = RUNNER_FACTS[runner].backends
        if options.backend and options.backend not in backends:
            raise BadInput(f"--backend {options.backend}: the {runner} runner has {' and '.join(backends)}")
        plan = Plan(
            target=target,
            runner=runner,
            backend=options.backend or backends[0],
            seed=options.seed,
            confirm_tries=options.confirm,
            shrink_runs=options.shrink_runs,
            shrink_seconds=options.shrink_seconds,
        )
        return dataclasses.replace(plan, **limits)

    def campaign(self, plan: Plan) -> Campaign:
        """One campaign, shown and written."""
        if self.options.workers > 1:
            done = self.crew(plan, "rounds")
        else:
            cases = rounds(plan.seed, plan.runner, plan.backend, self.options.cases_per_setup)
            with self.means(plan.target) as means:
                # Kept before the workers are ended, which takes a moment in which one may lose patience.
                known = self.remembered.cases(plan.runner, plan.backend)
                done = self.put(campaign(plan, chain(known, cases), means, coming=cases.coming))
        self.say(*summary(done))
        return done

    def say(self, *lines: str) -> None:
        for line in lines:
            self.display.line(line)

    def put(self, done: Campaign) -> Campaign:
        self.campaigns.append(done)
        self.write()
        self.book.campaign(done)
        return done

    def crew(self, plan: Plan, mix: str, *, warm: bool = False) -> Campaign:
        """One campaign of several workers. mix: as of bench.a_round. warm: whether they start their clocks only once
        each has run a case."""
        options = self.options
        devices = visible(len(gpus())) if plan.target.engine == "cuda" else ()
        tasks = [
            {
                "plan": plan_to_json(dataclasses.replace(plan, cases=None)),
                "mix": mix,
                "warm": warm,
                "cases_per_setup": options.cases_per_setup,
                "timeout": options.timeout,
                "out": str(self.out),
                "log": str(self.log(plan.target, number)),
                "device": device,
                "standbys": self.standbys(plan.target, options.workers),
                "ledger": str(self.book.path or ""),
                "run": self.book.run,
                "keep_traces": options.keep_traces,
                "known_issues": str(getattr(options, "known_issues", None) or ""),
            }
            for number, device in enumerate(spread(options.workers, devices))
        ]
        crew = Crew(plan, Deal(plan.cases, options.cases_per_setup), self.display.tell)
        done = crew.work([sys.executable, "-m", "fuzz", "member"], tasks)
        return self.put(with_seeds(done, lambda finding: str(keep(self.out, finding))))


@contextmanager
def working(
    target: Target,
    out: Path,
    log: Path,
    timeout: float,
    tell: Callable[[Progress], None],
    book: Book,
    claim: Callable[[str], bool] = lambda fingerprint: True,
    device: str = "",
    standbys: int = 0,
    issues: Sequence[Issue] = (),
    traces: bool = False,
) -> Iterator[Means]:
    """The means of a campaign, and the pool that they need."""

    def kept(finding: Finding) -> str:
        book.finding(finding)
        return str(keep(out, finding))

    def note(case: Case, trace: Trace, verdicts: Sequence[Verdict], status: Status) -> None:
        book.case(target, case, trace, verdicts, status, exercised(case, trace.replayed))

    under_way = UnderWay(out, f"{log.stem}-{os.getpid()}")
    with (
        Pool(target, timeout_s=timeout, log=log, device=device, standbys=standbys) as pool,
        experiments(issues, judge_all, overall, timeout_s=timeout, log=log, device=device) as (explainer, worker),
    ):
        means = Means(
            run=under_way.before(pool.run),
            # In the same worker: another one would have to import everything again.
            run_fresh=under_way.before(pool.run_fresh),
            send=under_way.before(pool.send),
            expect=pool.expect,
            blame=partial(first_wrong, pool, judge=judge_all),
            judge=judge_all,
            overall=overall,
            keep=kept,
            tell=tell,
            clock=time.monotonic,
            claim=claim,
            note=note,
        )
        means = dataclasses.replace(means, keep_trace=partial(keep_trace, target)) if traces else means
        blame = partial(first_wrong, judge=judge_all)
        asked = partial(explain, explainer, worker.on, blame, target, means)
        yield dataclasses.replace(means, explain=asked) if issues else means
    under_way.clear()


def member() -> int:
    """One of the workers of a crew: told on standard input what to do, heard on standard output."""
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints by habit
    line = Line(sys.stdin, say)
    try:
        take_part(line, line.hear())
    except KeyboardInterrupt:
        return ERROR  # before it had begun, so that there is nothing to tell
    return 0


def take_part(line: Line, task: Mapping[str, Any]) -> None:
    plan = plan_from_json(task["plan"])
    one = Member(line, Tally(plan, time.monotonic), time.monotonic)
    out, log = Path(task["out"]), Path(task["log"])
    ledger = Path(task["ledger"]) if task["ledger"] else None
    issues = load(Path(task["known_issues"])) if task["known_issues"] else ()
    own = (one.claim, task["device"], task["standbys"], issues, task["keep_traces"])
    with (
        same_run(ledger, task["run"]) as book,
        working(plan.target, out, log, task["timeout"], one.account, book, *own) as means,
    ):
        if task["warm"]:
            means.run(next(bench.small_cases(plan.runner, plan.backend, plan.seed, 1)))
        line.ask(say="ready")
        # The clock starts when everybody is ready.
        one.tally = Tally(plan, time.monotonic)
        cases = one.cases(lambda number: bench.a_round(plan, task["mix"], number, task["cases_per_setup"]))
        one.work(lambda: campaign(plan, cases, means, one.tally))


def command_run(desk: Desk, targets: Sequence[Target]) -> int:
    options = desk.options
    seconds = 60 * options.minutes if options.minutes else None
    for target in targets:
        plan = desk.plan(target, cases=options.cases, seconds=seconds, stop_at_first=options.stop_at_first)
        if desk.campaign(plan).stopped in ("interrupted", "error"):
            break
    return exit_code(desk.campaigns)


def command_bench(desk: Desk, targets: Sequence[Target]) -> int:
    options, workers = desk.options, desk.options.workers
    count = bench.enough(options.cases, workers, options.cases_per_setup)
    for target in targets:
        plan = desk.plan(target, cases=count, settle=False)
        small = bench.small_cases(plan.runner, plan.backend, options.seed, count + 1)
        random = rounds(options.seed, plan.runner, plan.backend, options.cases_per_setup)
        alone = {}
        bare = 0.0
        with desk.means(target) as means, bare_loop_of(desk, plan) as bare_batches:
            start = time.monotonic()
            means.run(next(small))
            desk.say(f"{target}: first case, worker and session started: {time.monotonic() - start:.1f} s")
            for mix, cases, coming in (("small", small, tuple), ("rounds", random, random.coming)):
                if options.mix not in ("", mix):
                    continue
                if mix == "small":
                    bare_batches(1)  # warms up, as in the campaign
                    taken = bare_batches(count // 2)
                alone[mix] = desk.put(campaign(plan, cases, means, coming=coming))
                desk.say(*bench.figures(f"{target} {bench.NAMES[mix]}", alone[mix]))
                if not bench.measured(alone[mix]):
                    return exit_code(desk.campaigns)
                if mix == "small":
                    # One half before and one after what it is compared with: a machine is not as fast all the time.
                    taken += bare_batches(count - count // 2)
                    bare = sum(seconds for seconds, _ in taken) / max(1, sum(batches for _, batches in taken))
                    desk.say(*bench.against_bare(alone[mix], bare))
        # The pool above has ended: what is compared is one worker with several, not with several and one that idles.
        for mix, one in alone.items() if workers > 1 else ():
            together = desk.crew(plan, mix, warm=True)
            desk.say(*bench.figures(f"{target} {bench.NAMES[mix]}", together), *bench.speed_up(one, together))
            desk.say(*bench.against_bare(together, bare if mix == "small" else 0.0))
            if not bench.measured(together):
                break
    return exit_code(desk.campaigns)


@contextmanager
def bare_loop_of(desk: Desk, plan: Plan) -> Iterator[Callable[[int], list[tuple[float, int]]]]:
    """Runs the next so many of the small cases in a loop without any of us: seconds and batches of each."""
    log, timeout = desk.log(plan.target), desk.options.timeout
    cases = bench.small_cases(plan.runner, plan.backend, desk.options.seed, (plan.cases or 0) + 1)
    with Pool(plan.target, timeout_s=timeout, log=log, variables=bare_loop()) as pool:
        yield lambda count: [
            (pool.run(case).seconds.get("bare", 0.0), len(case.steps)) for case in islice(cases, count)
        ]


def command_hunt(desk: Desk, targets: Sequence[Target]) -> int:
    for target in targets:
        plan = desk.plan(target, seconds=desk.options.seconds, stop_at_first=True)
        if desk.campaign(plan).stopped in ("interrupted", "error"):
            break
    try:
        compare(desk, targets)
    except KeyboardInterrupt:
        desk.display.line("interrupted: not every finding was tried on the other targets")
    desk.write()
    report = desk.out / "report.html"
    write_text(report, render(history_of(desk.campaigns, desk.replays)))
    desk.say(*story(desk.campaigns, desk.replays), f"report: {report.absolute()}")
    return exit_code(desk.campaigns, desk.replays)


def compare(desk: Desk, targets: Sequence[Target]) -> None:
    """Run every finding on the targets whose own campaign did not show it."""
    findings = [found for done in desk.campaigns for found in done.findings]
    for target in targets:
        own = {found.fingerprint for found in findings if found.target == str(target)}
        others = [found for found in findings if found.fingerprint not in own]
        if others:
            with desk.means(target) as means:
                for found in others:
                    replay = elsewhere(found, target, means, desk.options.confirm)
                    desk.replays.append(replay)
                    desk.book.replay(replay, found.case.setup)


def mutable(target: Target, silence_s: float, log: Path) -> Pool:
    """A pool for mutants, in which every step is held against the reference: kernels are wrong in both paths alike."""
    return Pool(target, timeout_s=silence_s, log=log, variables={"EAGLEEYE_REFERENCE": "1"})


COMMANDS = {"run": command_run, "bench": command_bench, "hunt": command_hunt}


def main(arguments: Sequence[str] | None = None) -> int:
    return ended(partial(carry_out, arguments), BadIssues)


def carry_out(arguments: Sequence[str] | None) -> int:
    options = options_of(arguments)
    if options.command == "member":
        return member()
    if options.command == "check":
        return command_check(options, partial(Pool, standbys=room_for("emulated")), lacks, judge_all, overall)
    if getattr(options, "probes", False):
        os.environ[PROBES] = "1"  # for every worker, also those of member processes
    targets = tuple(dict.fromkeys(options.target))
    for target in targets:
        if lack := lacks(target):
            raise BadInput(f"{target}: {lack}")
    warn_of_other_cases()
    if options.command == "mutate":
        return mutate(options, Tools(sessions=mutable, judge=judge_all, sources=sglang_path))
    kind = "campaign" if options.command == "run" else options.command
    with new_run(asked_for(options.ledger), kind) as one, Display(Screen()) as display:
        return COMMANDS[options.command](Desk(options, display, one), targets)


if __name__ == "__main__":
    sys.exit(main())
