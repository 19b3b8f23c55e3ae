"""None of sglang's own asynchronous checks fires: for NaN, Inf, indices out of bounds and misaligned pages. They are
off by default."""

from __future__ import annotations

import re

from repro.cases.case import Case
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Termination, Trace

ORACLE = "probes"
FACT = "probes"  # of a trace whose worker had them on
OFF = "probes are off"
# What a probe says, in all releases: by kind, and behind it the site. On a GPU a device assertion quotes it.
_SAID = {
    "NaN": r"NaN detected! ",
    "Inf": r"Inf detected! ",
    "out of bounds": r"(?:index (?:<|>=) -?\d+ \([^)]*\): |OOB indices not in \[[^)]*\): )",
    "page misaligned": r"page-misaligned indices \(page_size=\d+\): ",
}
_FIRED = {kind: re.compile(rf"(?:Error: |Assertion `){beginning}([^\n`]*)") for kind, beginning in _SAID.items()}


def judge(case: Case, trace: Trace) -> Verdict:
    """UNKNOWN if probes were off, and if the run ended badly without one of them: later probes are unknown."""
    if trace.facts.get(FACT) != "on":
        return Verdict(oracle=ORACLE, status=Status.UNKNOWN, where=OFF, detail=f"Nothing was probed: {OFF}.")
    ended = trace.ended
    for kind, pattern in _FIRED.items():
        fired = pattern.search(ended.detail)
        if fired:
            site = fired.group(1).strip()
            detail = f"The probe for {kind} at {site} fired in step {ended.step}."
            # The same site in another draft step is the same bug.
            where = f"{kind} at {re.sub(r'[0-9]+', 'N', site)}"
            return Verdict(oracle=ORACLE, status=Status.FAIL, where=where, detail=detail)
    if ended.how is not Termination.DONE:
        where = "the run ended before all was probed"
        return Verdict(oracle=ORACLE, status=Status.UNKNOWN, where=where, detail=f"Not known: {where}.")
    return Verdict(oracle=ORACLE, status=Status.PASS)
