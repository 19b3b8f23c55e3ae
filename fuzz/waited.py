"""A run that its process did not survive, once more where every launch is waited for: an error of the device otherwise
comes out at whatever waits next, under another name each time, and the failure has no name of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fuzz.triage import Hooks
from repro.cases.case import Case
from repro.shrinking.confirm import Attempt, attempts
from repro.traces.device_errors import device_fault
from repro.traces.finding import ENDED, Status, Verdict
from repro.traces.trace import End, Termination

# A failure that does not come out there is asked about this often.
TRIES_MAX = 3


class Waited:
    """The failures of this kind so far. Mutable. hooks: a campaign's; nothing is asked where it has none that wait."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._exact: dict[str, Verdict] = {}  # by the fingerprint under which it came out
        self._tries: Counter[str] = Counter()

    def exact(self, candidates: Sequence[Case | None], ended: End, verdict: Verdict) -> Verdict:
        """The end of the first of these cases that fails there; the verdict itself if none does, or if this is no
        failure that came out late."""
        name = verdict.fingerprint
        if self._hooks.waiting is None or verdict.oracle != ENDED or not _came_out_late(ended):
            return verdict
        if name not in self._exact and self._tries[name] < TRIES_MAX:
            self._tries[name] += 1
            hooks = self._hooks.waiting()
            runs = (
                attempt for case in candidates if case for attempt in attempts(hooks.run_fresh, hooks.judge, case, 1)
            )
            if shown := next(filter(None, map(_unended, runs)), None):
                self._exact[name] = shown
        return self._exact.get(name, verdict)

    def hooks(self, verdict: Verdict) -> Hooks | None:
        """The hooks with which this failure is triaged; None for the campaign's own."""
        exact = any(verdict.fingerprint == other.fingerprint for other in self._exact.values())
        return self._hooks.waiting() if exact and self._hooks.waiting else None


def _came_out_late(ended: End) -> bool:
    return ended.how is Termination.CRASHED or (ended.how is Termination.RAISED and bool(device_fault(ended.what)))


def _unended(attempt: Attempt) -> Verdict | None:
    """The verdict on a run that its process did not survive."""
    failures = (verdict for verdict in attempt.verdicts if verdict.status is Status.FAIL)
    ended = next((verdict for verdict in failures if verdict.oracle == ENDED), None)
    return ended if _came_out_late(attempt.trace.ended) else None
