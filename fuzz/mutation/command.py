"""python -m fuzz mutate: draws mutants of a release, tries each in sessions of its own, says which survive and why."""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fuzz.aiming import asked
from fuzz.cluster.fan import Fan, fan_out
from fuzz.mutation import equivalents, summary
from fuzz.mutation.directed import plan
from fuzz.mutation.mutant import Mutant, sampled
from fuzz.mutation.scope import Lines, Places, Ran, mutants_of, traced_cases
from fuzz.mutation.spread import traced_there, tried_there
from fuzz.mutation.traced import Drawn, Traced, joined, of_part, to_text, traced
from fuzz.mutation.trial import EQUIVALENT, KILLED, Clean, Judge, Outcome, Run, Trial
from repro.cases.atomic_file import write_text
from repro.cases.case import BACKENDS, RUNNERS, Case, Setup, Target
from repro.cases.codec import read
from repro.cases.runner_facts import RUNNER_FACTS, TOY
from repro.cases.server_args import BadOption
from repro.commands import cli
from repro.commands.cli import BadInput, Commands, count, positive, say
from repro.traces.exit_codes import ExitCode, severest
from repro.traces.trace import Trace
from repro.upstream.fixes import SEEDS

T = TypeVar("T")
# Seconds that threads have to end after an interrupt.
STOP_S = 3.0


class Sessions(Protocol):
    """Runs cases in sessions of a sglang that may be changed (a Pool)."""

    def run(self, case: Case) -> Trace: ...
    def change(self, change: Mapping[str, object]) -> None: ...
    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Functions that are passed in. sessions: opens a worker for a target, a limit on its silence in seconds and its
    log. sources: where the target's sglang lies. processor_seconds: what this process and those that it started have
    spent."""

    sessions: Callable[[Target, float, Path], AbstractContextManager[Sessions]]
    judge: Judge
    sources: Callable[[Target], Path]
    processor_seconds: Callable[[], float]


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("mutate", help="change sglang in one small place at a time: which oracle notices?")
    cli.add_targets(parser, "RELEASE/ENGINE", required=False)
    parser.add_argument(
        "--runner", choices=RUNNERS, help="mutate what this runner runs, and judge by it alone (default: all runners)"
    )
    parser.add_argument("--backend", choices=BACKENDS, help="only with this attention backend (default: all)")
    having = "only setups with this option, on or away from its default; may be repeated"
    parser.add_argument("--with", action="append", default=[], dest="having", metavar="OPTION", help=having)
    parser.add_argument("--sample", type=count, metavar="N", help="the number of mutants (default: all)")
    cli.add_seed_number(parser, 0)
    parser.add_argument(
        "--only",
        action="append",
        metavar="ID|FILE[:LINE]",
        help="only these mutants; the end of a file's path is enough; may be repeated",
    )
    most = "most cases of a runner for a mutant (default: %(default)s)"
    parser.add_argument("--cases", type=count, default=40, metavar="N", help=most)
    limit = "seconds after which a mutant gets no further case (default: %(default)g)"
    parser.add_argument("--limit", type=positive, default=180.0, metavar="S", help=limit)
    cli.add_timeout(parser, 30.0)
    parser.add_argument(
        "--workers", type=count, default=2, metavar="N", help="processes that share the mutants (default: %(default)s)"
    )
    parser.add_argument(
        "--try-equivalent", action="store_true", help="also try mutants listed as equivalent: red if one is killed"
    )
    cli.add_json(parser, "the outcome of each mutant")
    cli.add_markdown(parser, "figures, tables and survivors")
    cli.add_out(parser, "logs", "mutate")
    cli.add_cluster(parser)
    # For a piece on a node: write what the runner runs to this file; try the mutants that this file has.
    for word in ("--trace", "--part"):
        parser.add_argument(word, type=Path, help=argparse.SUPPRESS)


def mutate(options: argparse.Namespace, tools: Tools) -> ExitCode:
    """One run for each target; the worst exit code."""
    options.out = options.out or Path("out") / f"mutate-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"
    options.out.mkdir(parents=True, exist_ok=True)
    codes = []
    cluster = fan_out(options.cluster, options.slots, options.target) if options.cluster else nullcontext()
    with cluster as fan:
        for target in options.target:
            run = _Run(options, tools, target, fan)
            if options.trace:
                write_text(options.trace, run.trace())
                continue
            report = run.report()
            for path, text in ((options.json, report.to_json()), (options.markdown, report.to_markdown())):
                if path:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_text(path, text)
            for line in report.to_markdown().splitlines() if not options.markdown else [summary.headline(report)]:
                say(line)
            codes.append(report.exit_code)
        codes += [ExitCode.ERROR] * bool(fan and fan.errors)
    return severest(codes)


class _Run:
    """One target's mutants. Mutable: outcomes gather. fan: the nodes that do all of it; None: this host does."""

    def __init__(self, options: argparse.Namespace, tools: Tools, target: Target, fan: Fan | None) -> None:
        self.options, self.tools, self.target, self.fan = options, tools, target, fan
        stored = [read(path).case for path in sorted(SEEDS.glob("*.json"))]
        try:
            fits = asked([], options.having, []).aim.fits
        except BadOption as error:
            raise BadInput(str(error)) from error
        self.plans = {
            f"{runner}/{backend}": plan(runner, backend, stored, options.cases, fits)
            for runner, domain in RUNNER_FACTS.items()
            for backend in domain.backends
            if options.backend in (None, backend) and runner in _runners(options.runner)
        }
        self.kept = equivalents.read()
        self.outcomes: list[Outcome] = []
        self.wrongly_claimed: list[Outcome] = []
        self.cpu_elsewhere = 0.0

    def report(self) -> summary.Report:
        start, cpu = time.monotonic(), self.tools.processor_seconds()
        if self.options.part:
            sites: dict[str, int] = {}
            drawn, ran = of_part(self.options.part.read_text(), self.plans, self._source)
        else:
            ran, places = self._ran()
            groups = self._groups(ran, places)
            sites = {runner: len(mutants) for runner, mutants in groups.items()}
            drawn = self._drawn(groups)
        try:
            self._try(drawn, ran)
        except KeyboardInterrupt:
            say(f"interrupted after {len(self.outcomes)} mutants")
        return summary.Report(
            target=str(self.target),
            seed=self.options.seed,
            sites=sites,
            outcomes=tuple(sorted(self.outcomes, key=lambda o: (o.mutant.file, o.mutant.start, o.mutant.id))),
            seconds=time.monotonic() - start,
            cpu_seconds=self.tools.processor_seconds() - cpu + self.cpu_elsewhere,
            workers=self.fan.slots if self.fan else self.options.workers,
            wrongly_claimed=tuple(self.wrongly_claimed),
        )

    def _groups(self, ran: Ran, places: Places) -> dict[str, list[Mutant]]:
        """The mutants of each runner and backend. BadInput if there are none."""
        groups = mutants_of(ran, self._source, places)
        if not any(groups.values()):
            raise BadInput(f"{self.target}: no code of its runners was run; {self.options.out} has the workers' logs")
        if self.options.only:
            groups = _chosen(groups, self.options.only)
        say(", ".join(f"{runner}: {len(mutants)}" for runner, mutants in groups.items()) + " sites")
        return groups

    def _drawn(self, groups: Mapping[str, Sequence[Mutant]]) -> list[Drawn]:
        homes: dict[str, list[str]] = {}
        for runner, mutants in groups.items():
            for mutant in mutants:
                homes.setdefault(mutant.id, []).append(runner)
        drawn = []
        for first, mutant in sampled(groups, self.options.sample, self.options.seed):
            others = [] if self.options.runner else [name for name in homes[mutant.id] if name != first]
            drawn.append(Drawn(mutant=mutant, runners=(first, *others)))
        return drawn

    def _try(self, drawn: Sequence[Drawn], ran: Ran) -> None:
        """Have outcomes for all of these, as they come."""
        if self.fan:
            tried = []
            for entry in drawn:
                if self._is_tried(entry):
                    tried.append(entry)
                else:
                    self._add(self._as_kept(entry))
            for outcome, cpu_seconds in tried_there(self.fan, self.options, self.target, self.plans, ran, tried):
                self.cpu_elsewhere += cpu_seconds
                self._add(outcome)
            return
        trial = Trial(
            plans=self.plans,
            ran=ran,
            clean=Clean(self.tools.judge),
            judge=self.tools.judge,
            clock=time.monotonic,
            limit_s=self.options.limit,
        )

        def attempt(entry: Drawn, run: Run) -> None:
            self._add(self._outcome(trial, entry, run) if self._is_tried(entry) else self._as_kept(entry))

        self._shared_out(drawn, attempt)

    def _is_tried(self, entry: Drawn) -> bool:
        return bool(self.options.try_equivalent) or not self.kept.reason(entry.mutant)

    def _as_kept(self, entry: Drawn, **more: Any) -> Outcome:
        reason = self.kept.reason(entry.mutant)
        return Outcome(mutant=entry.mutant, runner=entry.runners[0], state=EQUIVALENT, reason=reason, **more)

    def _outcome(self, trial: Trial, entry: Drawn, run: Run) -> Outcome:
        outcome = trial.of(entry.mutant, entry.runners, run)
        if outcome.state == KILLED or not self.kept.reason(entry.mutant):
            return outcome
        return self._as_kept(entry, cases=outcome.cases, seconds=outcome.seconds)

    def _add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        mutant = outcome.mutant
        if outcome.state == KILLED and self.kept.reason(mutant):
            self.wrongly_claimed.append(outcome)
        by = f" by {', '.join(outcome.oracles)}" if outcome.oracles else ""
        say(
            f"{len(self.outcomes)} {outcome.state}{by} {outcome.runner} {outcome.cases} cases {outcome.seconds:.1f} s: "
            f"{mutant.file}:{mutant.line} {mutant.function}: {mutant.operator}: {mutant.old} -> {mutant.new} "
            f"({mutant.id})"
        )

    def trace(self) -> str:
        """The lines that its runner runs, for the host that asks for them."""
        ((name, cases),) = self.plans.items()
        return to_text(self._traced_here()[name], cases)

    def _traced_here(self) -> dict[str, Traced]:
        """The lines of each runner and backend. Workers share the setups."""
        work = {name: traced_cases(plan) for name, plan in self.plans.items()}
        of_setups: dict[tuple[str, Setup], Traced] = {}

        def trace(place: tuple[str, Setup], run: Run) -> None:
            name, setup = place
            of_setups[place] = traced(setup, work[name][setup], run)

        places = [(name, setup) for name, setups in work.items() for setup in setups]
        say(f"noting lines of sglang; setups to trace: {len(places)}")
        self._shared_out(places, trace)
        return {name: joined([of_setups[name, setup] for setup in setups]) for name, setups in work.items()}

    def _ran(self) -> tuple[Ran, Places]:
        """The lines that each runner runs, and the parts of lines that any does. Runners that this release does not
        have are left out."""
        fan, options = self.fan, self.options
        every = traced_there(fan, options, self.target, self.plans) if fan else self._traced_here()
        places: defaultdict[str, frozenset[tuple[int, int, int, int]]] = defaultdict(frozenset)
        ran: dict[str, dict[Setup, Lines]] = {}
        for runner in (name for name in self.plans if name in every):
            lines = every[runner]
            for file, more in lines.places.items():
                places[file] |= more
            if lines.setups:
                ran[runner] = dict(lines.setups)
            else:
                say(f"{runner}: left out: {lines.ending}")
        return ran, places

    def _source(self, file: str) -> str:
        return (self.tools.sources(self.target) / file).read_text()

    def _shared_out(self, work: Iterable[T], do: Callable[[T, Run], None]) -> None:
        """Do all of the work in so many threads, each with a worker process of its own. The first exception of any
        ends all."""
        waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
        for part in work:
            waiting.put(part)
        errors: list[BaseException] = []
        at_work: list[Sessions] = []

        def worker(number: int) -> None:
            log = self.options.out / f"worker-{number}.log"
            try:
                with self.tools.sessions(self.target, self.options.timeout, log) as sessions:
                    at_work.append(sessions)
                    run = running(sessions, errors)
                    while not errors:
                        do(waiting.get_nowait(), run)
            except queue.Empty:
                return
            except BaseException as error:  # handed over to the thread that waits
                errors.append(error)

        threads = [threading.Thread(target=worker, args=(n,), daemon=True) for n in range(self.options.workers)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt as error:
            errors.append(error)
            for sessions in at_work:
                sessions.abort()
            # A thread that is not at a case yet, but waits for a worker's imports, is left to end with this process.
            until = time.monotonic() + STOP_S
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))
        if errors:
            raise errors[0]


def _runners(runner: str | None) -> list[str]:
    """The runners whose mutants are drawn: all but the toy, and, unless it is named, one that compiles its
    functions, which takes every session minutes."""
    return [runner] if runner else [name for name, facts in RUNNER_FACTS.items() if name != TOY and not facts.compiled]


def _chosen(groups: Mapping[str, Sequence[Mutant]], requests: Sequence[str]) -> dict[str, list[Mutant]]:
    """The mutants that were asked for. BadInput if a request names none."""
    chosen = {
        name: [m for m in mutants if any(m.meant(request) for request in requests)] for name, mutants in groups.items()
    }
    for request in requests:
        if not any(mutant.meant(request) for mutants in chosen.values() for mutant in mutants):
            raise BadInput(f"--only {request}: no mutant of what these runners run")
    return chosen


def running(sessions: Sessions, errors: Sequence[BaseException] = ()) -> Run:
    """Runs a case with a change, which sessions keep for as long as it stays the same. Raises the first of these errors
    once there is one: what an aborted run says is nothing about the case."""
    current: dict[str, object] = {}

    def run(case: Case, change: Mapping[str, object]) -> Trace:
        nonlocal current
        if change != current:
            current = dict(change)
            sessions.change(current)
        trace = sessions.run(case)
        if errors:
            raise errors[0]
        return trace

    return run
