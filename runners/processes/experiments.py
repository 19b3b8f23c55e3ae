"""Known issues put to the test: a failing case is run again on its target with what mends them, in a worker that stays
open for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from repro.cases.case import Case, Target
from repro.ledger.explain import Explainer, Overall
from repro.ledger.known import Issue
from repro.shrinking.confirm import Judge, attempts
from repro.shrinking.replay import trouble
from repro.traces.finding import Verdict
from runners.processes.pool import Pool
from runners.processes.served import setups_per_session
from runners.targets.mended import counts_as, mended

# Pools that stay open: of a target with all known bugs mended, and of one with those of a single issue. Importing a
# release takes seconds, and memory.
POOLS_MAX = 2


class Pools:
    """The pool of the target that was asked for first, on which most cases are run, and that of the latest other.
    Mutable."""

    def __init__(self, make: Callable[[Target], Pool]) -> None:
        self._make = make
        self._open: dict[Target, tuple[Pool, ExitStack]] = {}

    def on(self, target: Target) -> Pool:
        if target not in self._open:
            while len(self._open) >= POOLS_MAX:
                self._close(next(reversed(self._open)))
            stack = ExitStack()
            self._open[target] = stack.enter_context(self._make(target)), stack
        return self._open[target][0]

    def close(self) -> None:
        while self._open:
            self._close(next(iter(self._open)))

    def _close(self, target: Target) -> None:
        self._open.pop(target)[1].close()


@contextmanager
def experiments(
    issues: Sequence[Issue],
    judge: Judge,
    overall: Overall,
    *,
    timeout_s: float,
    log: Path | None = None,
    device: str = "",
    standbys: int = 0,
) -> Iterator[Explainer]:
    """Explains failing cases by these issues. The workers are ended with the block. standbys: how many cases that are
    foreseen may be run ahead."""

    def opened(target: Target) -> Pool:
        served = setups_per_session(target.engine)
        return Pool(target, timeout_s=timeout_s, log=log, device=device, standbys=standbys, setups_per_session=served)

    pools = Pools(opened)

    def foresee(target: Target, cases: Sequence[Case]) -> None:
        pools.on(target).foresee([(case,) for case in cases])

    def run(target: Target, case: Case, tries: int) -> tuple[list[Sequence[Verdict]], str]:
        finished = list(attempts(pools.on(target).run, judge, case, tries))
        reasons = [trouble(attempt.trace.ended) for attempt in finished if not attempt.took_place]
        return [attempt.verdicts for attempt in finished if attempt.took_place], reasons[-1] if reasons else ""

    try:
        yield Explainer(issues=issues, mend=mended, run=run, overall=overall, release_of=counts_as, foresee=foresee)
    finally:
        pools.close()
