"""One release, runner by runner: a worker imports it once and forks a session for each job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from repro.cases.case import Case, Target
from repro.cases.release_list import NEWEST
from repro.cases.releases import release_order
from repro.ledger.known import Issue
from repro.traces.finding import Verdict
from runners.conformance.jobs import family_jobs, jobs
from runners.conformance.report import Release
from runners.conformance.rows import Judge, Overall, Row, rows
from runners.conformance.unnamed import unnamed
from runners.processes.pool import Pool
from runners.processes.warm import room_for
from runners.targets.environments import sglang_path
from runners.targets.packages import checkout_release, moved


def release(
    target: Target,
    judge: Judge,
    overall: Overall,
    *,
    log: Path,
    tell: Callable[[Row], None],
    issues: Sequence[Issue] = (),
    families: bool = False,
) -> Release:
    """Try every job on this target, or those of families of models. tell: called with each row as it comes. issues:
    what is known of releases. NotUsable if it is not there."""
    start = time.monotonic()
    path = sglang_path(target)
    version = checkout_release(path)
    work = family_jobs() if families else jobs()

    def known(case: Case, verdict: Verdict) -> bool:
        holding = (issue for issue in issues if issue.holds_on(version, target.engine))
        return any(issue.names(case.setup, verdict) for issue in holding)

    done = []
    with Pool(target, fresh=True, log=log, standbys=room_for(target.engine)) as pool:
        setups = [job.case.setup for job in work]
        pool.expect(setups)
        for number, row in enumerate(rows(work, pool.run, judge, overall, time.monotonic, known), start=1):
            pool.expect(setups[number:])
            tell(row)
            done.append(row)
    is_newer = _is_newer(version)
    return Release(
        name=target.sglang,
        sglang=version,
        adapted=not is_newer,
        rows=tuple(done),
        moved=tuple(moved(path)) if is_newer else (),
        unnamed={} if families else unnamed(path),
        seconds=round(time.monotonic() - start, 1),
    )


def _is_newer(version: str) -> bool:
    """True if this version is newer than every release with adapters; a text that is not a release number is a
    development tree."""
    try:
        return release_order(version) > release_order(NEWEST)
    except ValueError:
        return True
