"""Each draft starts from exactly the values that its request's previous stage produced: a round, or a prefill, which is
repeated after a retraction."""

from __future__ import annotations

from oracles.trace_index import Record, Wrong, conclude_each, first_difference
from repro.cases.case import Case
from repro.traces.finding import Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Trace

ORACLE = "handed_on"
STAGES = ("a round", "a prefill", "a retraction")
GIVEN, HANDED = "given_", "handed_"


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """A verdict for each input and stage."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    numbers = sorted({seen.step for seen in trace.seen if seen.path == Recorded.RELAY})
    for number in numbers:
        relay = record.path(number, Recorded.RELAY)
        for name, values in relay.items():
            if not name.startswith(GIVEN):
                continue
            value = name.removeprefix(GIVEN)
            compared += values.size
            cell = first_difference(number, value, values, relay[HANDED + value])
            if cell is not None:
                stage = STAGES[int(relay["stages"][cell.row])] if cell.row >= 0 else STAGES[0]
                detail = (
                    f"In round {number} the draft of row {cell.row} begins with {value} {cell.got}; {stage} handed on "
                    f"{cell.want}."
                )
                wrongs.append(Wrong(where=f"{value} behind {stage}", detail=detail, cell=cell))
    return conclude_each(ORACLE, wrongs, compared, nothing="nothing was handed on")
