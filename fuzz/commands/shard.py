"""python -m fuzz shard: one of the processes that share a campaign. Its task and the answers to its questions come on
standard input; its reports go to standard output."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from fuzz import bench
from fuzz.campaign import campaign
from fuzz.commands.session_hooks import Place, session_hooks
from fuzz.draw.rounds import room
from fuzz.parallel.shard import Channel, LeasedRounds, Shard, plan_from_json
from fuzz.stats import CampaignStats
from repro.cases.case import Case
from repro.ledger.known import load
from repro.ledger.run import same_run
from repro.traces.exit_codes import ExitCode
from runners.processes.children import watching


def command() -> ExitCode:
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other prints of this process
    channel = Channel(sys.stdin, reports)
    try:
        # While a case runs nobody reads from the coordinator.
        with watching(0, partial(os.kill, os.getpid(), signal.SIGTERM)):
            run_shard(channel, channel.receive())
    except KeyboardInterrupt:
        return ExitCode.ERROR  # before the campaign began, so that there is nothing to report
    return ExitCode.PASS


def run_shard(channel: Channel, task: Mapping[str, Any]) -> None:
    plan = plan_from_json(task["plan"])
    shard = Shard(channel, CampaignStats(plan, time.monotonic), time.monotonic)
    place = Place(
        target=plan.target,
        out=Path(task["out"]),
        log=Path(task["log"]),
        timeout_s=task["timeout"],
        standbys=task["standbys"],
        setups_per_session=task["setups_per_session"],
        device=task["device"],
        issues=load(Path(task["known_issues"])) if task["known_issues"] else (),
        traces=task["keep_traces"],
    )
    path = Path(task["ledger"]) if task["ledger"] else None
    with (
        same_run(path, task["run"]) as ledger,
        session_hooks(place, ledger, shard.report, claim=shard.claim) as hooks,
    ):
        if task["warm"]:
            hooks.run(next(bench.small_cases(plan.runner, plan.backend, plan.seed, 1)))
        channel.ask(say="ready")
        # The clock starts when all shards are ready.
        shard.stats = CampaignStats(plan, time.monotonic)
        numbers, a_round, limit = range(*task["numbers"]), task["cases_per_setup"], task["limit"]

        def cases_of(lease: int) -> Iterator[Case]:
            drawn = bench.a_round(plan, task["mix"], numbers[lease], a_round)
            return islice(drawn, room(limit, a_round, numbers[lease]))

        rounds = LeasedRounds(channel, cases_of)
        shard.run(lambda: campaign(plan, rounds, hooks, shard.stats))
