"""The parts that the campaign commands share: options, the folder and record that they write, and how they run a
campaign."""

from __future__ import annotations

import argparse
import dataclasses
import re
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any

from fuzz.aiming import aim_of
from fuzz.campaign import campaign
from fuzz.case_source import CaseStream
from fuzz.cluster.chunk import Cutter
from fuzz.cluster.drive import Drive
from fuzz.commands import cluster
from fuzz.commands.options import examples
from fuzz.commands.session_hooks import Place, session_hooks
from fuzz.draw.corpus import SharedCorpus
from fuzz.draw.rounds import EVERY, part, rounds
from fuzz.lines import of_functions
from fuzz.stats import Plan
from fuzz.triage import Hooks
from reports.campaign import brief, summary
from reports.progress import Display
from repro.cases.atomic_file import write_text
from repro.cases.case import Target
from repro.cases.own_place import own_folder
from repro.cases.runner_facts import RUNNER_FACTS
from repro.commands.cli import BadInput
from repro.commands.interrupts import held
from repro.ledger.known import Issue, load
from repro.ledger.run import LedgerRun
from repro.traces.campaign import Campaign, Replay, dumps
from runners.processes.served import setups_per_session
from runners.processes.warm import room_for
from runners.targets.devices import gpus, spread, visible
from runners.targets.environments import sglang_path


class CommandContext:
    """One command's campaigns. Mutable: campaigns and replays gather here."""

    def __init__(self, options: argparse.Namespace, display: Display, ledger: LedgerRun) -> None:
        self.options = options
        self.ledger = ledger
        self.corpus = SharedCorpus(examples(options), display.line)
        self.display = display
        self.out: Path = options.out or own_folder(Path("out"), options.command)
        self.out.mkdir(parents=True, exist_ok=True)
        known: Path | None = getattr(options, "known_issues", None)
        self.issues: tuple[Issue, ...] = load(known) if known else ()
        self.campaigns: list[Campaign] = []
        self.replays: list[Replay] = []
        self.write()

    def write(self) -> None:
        """Put the record beside the findings and at --json: as it grows, and once before anything is run, so that a
        bad path shows at once."""
        for path in (self.out / "record.json", self.options.json):
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, dumps(self.campaigns, self.replays))

    def say(self, *lines: str) -> None:
        for line in lines:
            self.display.line(line)

    def hooks(self, target: Target) -> AbstractContextManager[Hooks]:
        """A target's pool and everything else that a campaign is given."""
        options = self.options
        place = Place(
            target=target,
            out=self.out,
            log=self.log(target),
            timeout_s=options.timeout,
            standbys=room_for(target.engine) if options.standbys is None else options.standbys,
            setups_per_session=options.setups_per_session or setups_per_session(target.engine),
            issues=self.issues,
            traces=options.keep_traces,
            lines=getattr(options, "lines", False),
        )
        return session_hooks(place, self.ledger, self.display.tell, remember=self.corpus.remember)

    def log(self, target: Target) -> Path:
        """The file of a worker's prints."""
        name = re.sub(r"[^A-Za-z0-9.]+", "-", str(target)).strip("-")
        return self.out / f"worker-{name}.log"

    def plan(self, target: Target, **limits: Any) -> Plan:
        options = self.options
        runner = limits.get("runner") or options.runner or ("toy" if target.engine == "toy" else "draft")
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
        a_round, (index, count) = self.options.cases_per_setup, getattr(self.options, "shard", None) or (1, 1)
        limit = plan.cases if count > 1 else None
        numbers = part(limit, a_round, index, count)
        if not numbers:
            raise BadInput(f"--shard {index}/{count}: {limit} cases are too few rounds of {a_round} for so many parts")
        if getattr(self.options, "cluster", None):
            return self._shown(self.shared_campaign(plan))
        if self.options.workers > 1:
            return self._shown(self.shared_campaign(plan, numbers=numbers, limit=limit))
        aim = aim_of(plan.aim)
        cases = rounds(plan.seed, plan.runner, plan.backend, a_round, numbers, limit, aim)
        with self.hooks(plan.target) as hooks:
            stored = [case for case in self.corpus.cases(plan.runner, plan.backend) if aim.fits(case.setup)]
            known = stored[index - 1 :: count]
            stream = CaseStream(chain(known, cases), cases.coming, cases.leave)
            # Recorded and shown before the workers are ended, which takes a moment: a person may press Ctrl-C again.
            with held():
                ended = campaign(plan, stream, hooks)
                return self._shown(self.put(of_functions(ended, sglang_path(plan.target)) if ended.lines else ended))

    def _shown(self, done: Campaign) -> Campaign:
        self.say(*(summary(done) if getattr(self.options, "verbose", True) else brief(done)))
        return done

    def put(self, done: Campaign) -> Campaign:
        self.campaigns.append(done)
        self.write()
        self.ledger.campaign(done)
        return done

    def shared_campaign(
        self,
        plan: Plan,
        *,
        mix: str = "rounds",
        numbers: range = EVERY,
        limit: int | None = None,
        warm: bool = False,
    ) -> Campaign:
        """One campaign of several processes. mix, numbers, limit: as of a Cutter. warm: the clock starts once each of
        them has run a case."""
        options, run = self.options, self.ledger.run
        seconds, cases = cluster.CHUNK_S, plan.cases if limit is None else None
        if getattr(options, "cluster", None):
            seconds, nodes = options.chunk_seconds, cluster.on_nodes(options, plan, run)
        else:
            devices = spread(options.workers, visible(len(gpus())) if plan.target.engine == "cuda" else ())
            nodes = cluster.here(options, plan, run, self.out, self.log(plan.target), devices, warm=warm)
        cutter = Cutter(plan, options.cases_per_setup, cases, seconds, numbers=numbers, limit=limit, mix=mix)
        office = cluster.office(self.out, self.ledger, self.display)
        with nodes as opened, held():
            return self.put(Drive(dataclasses.replace(plan, cases=None), cutter, opened, office).work())
