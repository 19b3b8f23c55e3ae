"""Ordinary sessions that also say in facts what their process spent on the opening and on each case, and its memory."""

from __future__ import annotations

import resource
import time

from repro.cases.case import Case, Setup, Target
from runners.recording.observer import RunCase, Watch
from runners.sessions import open as plain

changed, close_session = plain.changed, plain.close_session
# Names of facts: processor seconds of all threads, and the most MiB that were resident.
OPENING, CASE, RESIDENT = "seconds of the opening", "seconds of the case", "MiB resident"


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """Open a session as runners/sessions/open.py does."""
    start = time.process_time()
    run = plain.open_session(setup, target, watch)
    opening = time.process_time() - start

    def run_case(case: Case, watch: Watch) -> None:
        start = time.process_time()
        run(case, watch)
        watch.fact(CASE, str(time.process_time() - start))
        watch.fact(OPENING, str(opening))
        watch.fact(RESIDENT, str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))

    return run_case
