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
from fuzz.mutation.scope import PREFIXES
from fuzz.reference_schedule import ReferenceSchedule
from fuzz.triage import Hooks, unexplained
from oracles.catalogue import judge_all, overall, oversteps
from repro.cases.case import Case, Target
from repro.cases.runner_facts import RUNNER_FACTS
from repro.ledger.explain import Explained, Explainer
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
from runners.processes.sanitizer import is_there, observed_pool

# The folder, in that of findings, of cases that fail so only with known issues mended.
ONLY_MENDED = "only-mended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place where a campaign's cases are run, and its files. out: folder of findings. log: what workers print.
    timeout_s: seconds of silence that are a hang. standbys: sessions that may be open ahead. setups_per_session: how
    many setups a session process may serve. device: the GPU; empty: any. issues: known ones, with which failures are
    explained. traces: whether those of findings are kept. lines: whether those of sglang that run are noted."""

    target: Target
    out: Path
    log: Path
    timeout_s: float
    standbys: int = 0
    setups_per_session: int = 1
    device: str = ""
    issues: Sequence[Issue] = ()
    traces: bool = False
    lines: bool = False


@contextmanager
def session_hooks(
    place: Place,
    ledger: LedgerRun,
    tell: Callable[[Progress], None],
    remember: Callable[[Finding], None] = lambda finding: None,
) -> Iterator[Hooks]:
    """The hooks of a campaign at this place, and the pool that they need, which ends with this."""
    log, timeout_s, device = place.log, place.timeout_s, place.device
    schedule = ReferenceSchedule(place.target.engine)
    in_flight = InFlight(place.out, f"{log.stem}-{os.getpid()}")
    with (
        Pool(
            place.target,
            timeout_s=timeout_s,
            log=log,
            device=device,
            standbys=place.standbys,
            setups_per_session=place.setups_per_session,
            asks=schedule.steps,
        ) as pool,
        experiments(place.issues, judge_all, overall, timeout_s=timeout_s, log=log, device=device) as explainer,
        closing(Pools(lambda _: pool.waiting())) as waiter,
    ):
        if place.lines:
            pool.change({"lines": list(PREFIXES)})
        binding = _Binding(place, ledger, pool, schedule, in_flight, waiter, explainer, remember)
        yield binding.hooks(tell)
    in_flight.clear()


@dataclass(frozen=True, slots=True)
class _Binding:
    """The hooks' functions, over what they share."""

    place: Place
    ledger: LedgerRun
    pool: Pool
    schedule: ReferenceSchedule
    in_flight: InFlight
    waiter: Pools
    explainer: Explainer
    remember: Callable[[Finding], None]

    def hooks(self, tell: Callable[[Progress], None]) -> Hooks:
        pool, before = self.pool, self.in_flight.before
        hooks = Hooks(
            run=before(pool.run),
            run_drawn=self._run_drawn,
            # In the same worker: another one would have to import everything again.
            run_fresh=before(pool.run_fresh),
            send=self._send,
            expect=pool.expect,
            foresee=self._foresee if self.place.standbys else None,
            past=lambda: pool.past,
            history=lambda: pool.history,
            late=self._late,
            locate=partial(locate_first, pool, judge=judge_all),
            judge=judge_all,
            overall=overall,
            keep=self._store,
            tell=tell,
            clock=time.monotonic,
            note=self._note,
        )
        if self.place.target.engine == "cuda":  # elsewhere nothing is asynchronous
            check_memory = self._accesses if is_there() else None
            hooks = dataclasses.replace(hooks, waiting=lambda: self._waiting(hooks), check_memory=check_memory)
        if self.place.traces:
            hooks = dataclasses.replace(hooks, keep_trace=partial(keep_trace, self.place.target))
        if self.place.issues:
            located = partial(locate_first, pool, judge=unexplained(judge_all, self._explain))
            hooks = dataclasses.replace(hooks, explain=self._explain, keep_mended=self._keep_mended, locate=located)
        return hooks

    def _store(self, finding: Finding) -> str:
        self.remember(finding)
        self.ledger.finding(finding)
        return str(keep(self.place.out, finding))

    def _keep_mended(self, case: Case, failure: Verdict) -> str:
        verdict = dataclasses.replace(failure, detail=f"With known issues mended: {failure.detail}")
        finding = Finding(case=case, target=self.place.target, verdict=verdict, failed=0, tried=0)
        return str(keep(self.place.out / ONLY_MENDED, finding))

    def _note(self, case: Case, trace: Trace, verdicts: Sequence[Verdict], status: Status) -> None:
        if any(map(oversteps, verdicts)):
            self.pool.renew()
        self.ledger.case(self.place.target, case, trace, verdicts, status, exercised(case, trace.replayed))

    def _run_drawn(self, case: Case) -> Trace:
        self.schedule.draw([case])
        trace = self.in_flight.before(self.pool.run)(case)
        self.schedule.end(case)
        return trace

    def _send(self, upcoming: Sequence[Case]) -> None:
        self.in_flight.put(upcoming)
        self.schedule.draw(upcoming)
        self.pool.send(upcoming)

    def _foresee(self, rounds: Sequence[Sequence[Case]]) -> None:
        self.in_flight.put(chain.from_iterable(rounds))
        self.schedule.draw(chain.from_iterable(rounds))
        self.pool.foresee(rounds)

    def _late(self) -> list[RunWithPast]:
        late, self.pool.late = self.pool.late, []
        return late

    def _waiting(self, hooks: Hooks) -> Hooks:
        """The hooks over a pool that waits for the device behind each call."""
        waited, before = self.waiter.on(self.place.target), self.in_flight.before
        return dataclasses.replace(
            hooks,
            run=before(waited.run),
            run_fresh=before(waited.run_fresh),
            send=lambda cases: None,
            expect=waited.expect,
            locate=partial(locate, run=waited.run_fresh, judge=judge_all, run_waiting=waited.run_fresh),
        )

    def _accesses(self, case: Case) -> list[str]:
        place, captures = self.place, RUNNER_FACTS[case.setup.runner].graph
        with observed_pool(
            place.target, "memcheck", timeout_s=place.timeout_s, fresh=False, log=place.log, captures=captures
        ) as (pool, reports):
            pool.run_fresh(case)
            return [str(access) for access in reports.fresh()]

    def _explain(self, case: Case, failures: Sequence[Verdict]) -> Explained:
        return self.explainer.explain(case, self.place.target, failures)
