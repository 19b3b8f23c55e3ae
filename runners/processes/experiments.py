"""Known issues put to the test: a failing case is run again on its release with what mends them, in a worker that stays
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
from runners.targets.environments import release_under
from runners.targets.mended import mended


class Worker:
    """The pool of the target that was asked for last: importing a release takes seconds, and memory. Mutable."""

    def __init__(self, make: Callable[[Target], Pool]) -> None:
        self._make = make
        self._stack = ExitStack()
        self._target: Target | None = None
        self._pool: Pool | None = None

    def on(self, target: Target) -> Pool:
        if self._pool is None or self._target != target:
            self.close()
            self._target, self._pool = target, self._stack.enter_context(self._make(target))
        return self._pool

    def close(self) -> None:
        self._pool = None
        self._stack.close()


@contextmanager
def experiments(
    issues: Sequence[Issue],
    judge: Judge,
    overall: Overall,
    *,
    timeout_s: float,
    log: Path | None = None,
    device: str = "",
) -> Iterator[tuple[Explainer, Worker]]:
    """Explains failing cases by these issues. The worker is ended with the block."""
    worker = Worker(lambda target: Pool(target, timeout_s=timeout_s, log=log, device=device))

    def run(target: Target, case: Case, tries: int) -> tuple[list[Sequence[Verdict]], str]:
        finished = list(attempts(worker.on(target).run, judge, case, tries))
        reasons = [trouble(attempt.trace.ended) for attempt in finished if not attempt.took_place]
        return [attempt.verdicts for attempt in finished if attempt.took_place], reasons[-1] if reasons else ""

    try:
        yield (
            Explainer(issues=issues, mend=mended, run=run, overall=overall, release_of=release_under),
            worker,
        )
    finally:
        worker.close()
