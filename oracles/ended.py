"""The run ends without an exception, a crash or a hang."""

from __future__ import annotations

from repro.cases.case import Case
from repro.traces.device_errors import device_fault
from repro.traces.finding import ENDED, Status, Verdict
from repro.traces.stacks import reason
from repro.traces.trace import Termination, Trace

ORACLE = ENDED


def judge(case: Case, trace: Trace) -> Verdict:
    """FAIL where sglang raised, crashed or hung; UNKNOWN where the harness failed or nothing was run at all."""
    ended = trace.ended
    if ended.how is Termination.DONE:
        if not trace.seen:
            nothing = "nothing recorded"
            detail = "The run ended well and recorded nothing, so it shows nothing."
            return Verdict(oracle=ORACLE, status=Status.UNKNOWN, where=nothing, detail=detail)
        return Verdict(oracle=ORACLE, status=Status.PASS)
    message = ended.detail.strip()
    if not ended.how.took_place:
        return Verdict(oracle=ORACLE, status=Status.UNKNOWN, where=ended.how.value, detail=message or ended.what)
    path = ended.path or "the session"
    # A process may be ended by a kernel that failed before it can say so: that is the same failure.
    how = Termination.RAISED if device_fault(ended.what) else ended.how
    where = " ".join(part for part in (how.value, ended.what, f"in {path}") if part)
    stage = "before the first step" if ended.step < 0 else f"in step {ended.step} of {len(case.steps)}"
    why = f": {reason(message)}" if message else ""
    return Verdict(oracle=ORACLE, status=Status.FAIL, where=where, detail=f"The run {where}, {stage}{why}.")
