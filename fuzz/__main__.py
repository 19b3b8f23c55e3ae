"""python -m fuzz: run a campaign, bench its speed, or hunt: campaigns on two releases and what tells them apart.

Exit codes: 0 nothing found, 1 found, 2 nothing could be judged, 3 our own error or bad input.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from fuzz import bench
from fuzz.campaign import campaign
from fuzz.draw import rounds
from fuzz.hunt import elsewhere, story
from fuzz.options import BadInput, options_of
from fuzz.settle import Means
from fuzz.tally import Plan
from oracles.catalogue import judge_all, overall
from reports.html import render
from reports.progress import Display, Screen
from reports.wording import counted, duration
from repro.case import Target
from repro.durable import write_text
from repro.keep import keep
from repro.record import Campaign, Replay, dumps
from runners.environments import lacks
from runners.pool import Pool

FOUND, UNJUDGED, ERROR = 1, 2, 3
REASONS_SHOWN = 5  # the JSON has all


class Desk:
    """What the commands share: where things are written and shown. Mutable: campaigns and replays gather here."""

    def __init__(self, options: argparse.Namespace, display: Display) -> None:
        self.options = options
        self.display = display
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        self.out: Path = options.out or Path("out") / f"{options.command}-{stamp}"
        self.out.mkdir(parents=True, exist_ok=True)
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
        log = self.out / f"worker-{re.sub(r'[^A-Za-z0-9.]+', '-', str(target)).strip('-')}.log"
        with Pool(target, timeout_s=self.options.timeout, log=log) as pool:
            yield Means(
                run=pool.run,
                # In the same worker: another one would have to import everything again.
                run_fresh=pool.run_fresh,
                judge=judge_all,
                overall=overall,
                keep=lambda finding: str(keep(self.out, finding)),
                tell=self.display.tell,
                clock=time.monotonic,
            )

    def plan(self, target: Target, **limits: object) -> Plan:
        options = self.options
        plan = Plan(
            target=target,
            runner=options.runner or ("toy" if target.engine == "toy" else "draft"),
            backend=options.backend,
            seed=options.seed,
            confirm_tries=options.confirm,
            shrink_runs=options.shrink_runs,
            shrink_seconds=options.shrink_seconds,
        )
        return dataclasses.replace(plan, **limits)  # type: ignore[arg-type]

    def campaign(self, plan: Plan) -> Campaign:
        """One campaign, shown and written."""
        cases = rounds(plan.seed, plan.runner, plan.backend, self.options.cases_per_setup)
        with self.means(plan.target) as means:
            done = campaign(plan, cases, means)
            # Before the workers are ended, which takes a moment in which one may lose patience.
            self.campaigns.append(done)
            self.write()
        for line in summary(done):
            self.display.line(line)
        return done


def summary(done: Campaign) -> list[str]:
    """A campaign in a few lines; doubts and troubles are never left out, only cut."""
    lines = [
        f"{done.target}: {counted(done.cases, 'case')} ({done.judged:,} judged) on {counted(done.setups, 'setup')}, "
        f"{counted(done.replays, 'replay')} in {duration(done.seconds)}, transitions {len(done.transitions)} of "
        f"{done.transitions_possible}, {counted(len(done.findings), 'finding')}; stopped: {done.stopped}"
    ]
    if done.skipped:
        lines.append(f"  {done.skipped:,} more cases were not run, as their setup could not be built")
    for name, reasons in (("could not run", done.unfit), ("unknown", done.unknown)):
        shown = list(reasons.items())[:REASONS_SHOWN]
        lines += [f"  {name}: {count} x {reason}" for reason, count in shown]
        if len(reasons) > len(shown):
            lines.append(f"  {name}: {len(reasons) - len(shown)} more reasons, in the JSON")
    return lines


def exit_code(campaigns: Sequence[Campaign]) -> int:
    """A finding outweighs everything; after that, a clean answer needs every campaign to have judged something."""
    for done in campaigns:
        if done.error:
            complain(f"{done.target}: {done.error}")
    if any(done.findings for done in campaigns):
        return FOUND
    if any(done.error for done in campaigns):
        return ERROR
    return 0 if campaigns and all(done.judged for done in campaigns) else UNJUDGED


def command_run(desk: Desk, targets: Sequence[Target]) -> int:
    options = desk.options
    seconds = None if options.cases else 60 * (options.minutes or 1.0)
    for target in targets:
        plan = desk.plan(target, cases=options.cases, seconds=seconds, stop_at_first=options.stop_at_first)
        if desk.campaign(plan).stopped in ("interrupted", "error"):
            break
    return exit_code(desk.campaigns)


def command_bench(desk: Desk, targets: Sequence[Target]) -> int:
    options = desk.options
    for target in targets:
        plan = desk.plan(target, cases=options.cases, settle=False)
        small = bench.small_cases(plan.runner, plan.backend, options.seed, options.cases + 1)
        random = rounds(options.seed, plan.runner, plan.backend, options.cases_per_setup)
        with desk.means(target) as means:
            start = time.monotonic()
            means.run(next(small))
            desk.display.line(f"{target}: first case, worker and session started: {time.monotonic() - start:.1f} s")
            for name, cases in (("small setup", small), ("random mix", random)):
                done = campaign(plan, cases, means)
                desk.campaigns.append(done)
                for line in bench.figures(f"{target} {name}", done):
                    desk.display.line(line)
        desk.write()
    return exit_code(desk.campaigns)


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
    write_text(report, render(desk.campaigns, desk.replays))
    for line in story(desk.campaigns, desk.replays):
        desk.display.line(line)
    desk.display.line(f"report: {report.absolute()}")
    return exit_code(desk.campaigns)


def compare(desk: Desk, targets: Sequence[Target]) -> None:
    """Run every finding on the targets whose own campaign did not show it."""
    findings = [found for done in desk.campaigns for found in done.findings]
    for target in targets:
        own = {found.fingerprint for found in findings if found.target == str(target)}
        others = [found for found in findings if found.fingerprint not in own]
        if others:
            with desk.means(target) as means:
                for found in others:
                    desk.replays.append(elsewhere(found, target, means, desk.options.confirm))


COMMANDS = {"run": command_run, "bench": command_bench, "hunt": command_hunt}


def complain(text: str) -> None:
    print(f"fuzz: {text}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    # A stopped job keeps what it found, as Ctrl-C does.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        options = options_of(arguments)
        targets = tuple(dict.fromkeys(options.target))
        for target in targets:
            if lack := lacks(target):
                raise BadInput(f"{target}: {lack}")
        with Display(Screen()) as display:
            return COMMANDS[options.command](Desk(options, display), targets)
    except BadInput as error:
        complain(str(error))
    except BrokenPipeError:
        # Whoever read our output has gone; what Python still has to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        complain(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "))
    except KeyboardInterrupt:
        complain("interrupted")
    finally:
        signal.signal(signal.SIGTERM, before)
    return ERROR


if __name__ == "__main__":
    sys.exit(main())
