"""The functions that a campaign is given, bound to a target's worker pool, the folder of findings and the ledger."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from fuzz.draw.transitions import exercised
from fuzz.in_flight import InFlight
from fuzz.reference_schedule import ReferenceSchedule
from fuzz.triage import Hooks, unexplained
from oracles.catalogue import judge_all, overall, oversteps
from repro.cases.case import Case, Target
from repro.ledger.explain import Explained
from repro.ledger.known import Issue
from repro.ledger.run import LedgerRun
from repro.shrinking.first_divergence import locate
from repro.shrinking.store import keep, keep_trace
from repro.traces.campaign import Progress
from repro.traces.finding import Finding, Status, Verdict
from repro.traces.run_with_past import RunWithPast
from repro.traces.trace import Trace
from runners.processes.diagnose import locate_first
from runners.processes.experiments import Pools, experiments
from runners.processes.pool import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place where a campaign's cases are run, and its files. out: folder of findings. log: what workers print.
    timeout_s: seconds of silence that are a hang. standbys: sessions that may be open ahead. setups_per_session: how
    many setups a session process may serve. device: the GPU; empty: any. issues: known ones, with which failures are
    explained. traces: whether those of findings are kept."""

    target: Target
    out: Path
    log: Path
    timeout_s: float
    standbys: int = 0
    setups_per_session: int = 1
    device: str = ""
    issues: Sequence[Issue] = ()
    traces: bool = False


@contextmanager
def session_hooks(
    place: Place,
    ledger: LedgerRun,
    tell: Callable[[Progress], None],
    claim: Callable[[str], bool] = lambda fingerprint: True,
    remember: Callable[[Finding], None] = lambda finding: None,
) -> Iterator[Hooks]:
    """The hooks of a campaign at this place, and the pool that they need, which ends with this."""
    target, log = place.target, place.log

    def store(finding: Finding) -> str:
        remember(finding)
        ledger.finding(finding)
        return str(keep(place.out, finding))

    def note(case: Case, trace: Trace, verdicts: Sequence[Verdict], status: Status) -> None:
        if any(map(oversteps, verdicts)):
            pool.renew()
        ledger.case(target, case, trace, verdicts, status, exercised(case, trace.replayed))

    def run_drawn(case: Case) -> Trace:
        schedule.draw([case])
        trace = in_flight.before(pool.run)(case)
        schedule.end(case)
        return trace

    def send(upcoming: Sequence[Case]) -> None:
        in_flight.put(upcoming)
        schedule.draw(upcoming)
        pool.send(upcoming)

    def foresee(rounds: Sequence[Sequence[Case]]) -> None:
        in_flight.put(chain.from_iterable(rounds))
        schedule.draw(chain.from_iterable(rounds))
        pool.foresee(rounds)

    def late() -> list[RunWithPast]:
        late, pool.late = pool.late, []
        return late

    def waiting() -> Hooks:
        waited = waiter.on(target)
        return dataclasses.replace(
            hooks,
            run=in_flight.before(waited.run),
            run_fresh=in_flight.before(waited.run_fresh),
            send=lambda cases: None,
            expect=waited.expect,
            locate=partial(locate, run=waited.run_fresh, judge=judge_all, run_waiting=waited.run_fresh),
        )

    schedule = ReferenceSchedule(target.engine)
    in_flight = InFlight(place.out, f"{log.stem}-{os.getpid()}")
    with (
        Pool(
            target,
            timeout_s=place.timeout_s,
            log=log,
            device=place.device,
            standbys=place.standbys,
            setups_per_session=place.setups_per_session,
            asks=schedule.steps,
        ) as pool,
        experiments(
            place.issues, judge_all, overall, timeout_s=place.timeout_s, log=log, device=place.device
        ) as explainer,
        closing(Pools(lambda _: pool.waiting())) as waiter,
    ):
        hooks = Hooks(
            run=in_flight.before(pool.run),
            run_drawn=run_drawn,
            # In the same worker: another one would have to import everything again.
            run_fresh=in_flight.before(pool.run_fresh),
            send=send,
            expect=pool.expect,
            foresee=foresee if place.standbys else None,
            past=lambda: pool.past,
            history=lambda: pool.history,
            late=late,
            locate=partial(locate_first, pool, judge=judge_all),
            judge=judge_all,
            overall=overall,
            keep=store,
            tell=tell,
            clock=time.monotonic,
            claim=claim,
            note=note,
        )
        if target.engine == "cuda":  # elsewhere nothing is asynchronous
            hooks = dataclasses.replace(hooks, waiting=waiting)
        if place.traces:
            hooks = dataclasses.replace(hooks, keep_trace=partial(keep_trace, target))
        if place.issues:

            def explain(case: Case, failures: Sequence[Verdict]) -> Explained:
                return explainer.explain(case, target, failures)

            located = partial(locate_first, pool, judge=unexplained(judge_all, explain))
            hooks = dataclasses.replace(hooks, explain=explain, locate=located)
        yield hooks
    in_flight.clear()
