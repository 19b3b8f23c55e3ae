"""Reads names of earlier versions: one status for UNSUPPORTED and ERROR, one `where` for several places, what the
float64 reference alone says as a place of graph_equals_eager, and a failed kernel by how its process ended."""

from __future__ import annotations

import re
from collections.abc import Mapping

from repro.traces.device_errors import device_fault
from repro.traces.finding import ENDED
from repro.traces.trace import Termination

UNFIT = "unfit"  # either kind of trouble
_OF_OURS = re.compile(
    r"the (session failed|worker|launch could not be recorded)\b|\w*(Error|Exception|Interrupt)\b|torch.compile was to "
    r"|.* (while building|cannot be imported: .*|on the import path|cannot be recorded|session that was opened for it)$"
)
_BOTH_WRONG = "graph and eager agree and are both wrong"
# The oracles that named all wrong buffers of a case in one `where`, with these words in front.
_LABELS = {
    "slot0_padding": "padded rows of",
    "staged": "real rows of",
    "kv_writes": "slots not given,",
    "callers_batch": "the caller's",
}


def told_apart(how: str, why: str) -> Termination:
    """The termination that this word of an earlier version means, for this reason. ValueError if no version has the
    word."""
    if how != UNFIT:
        return Termination(how)
    return Termination.ERROR if _OF_OURS.match(why) else Termination.UNSUPPORTED


def reasons_told_apart(reasons: Mapping[str, int], endings: Mapping[str, int]) -> dict[str, Mapping[str, int]]:
    """The parts of a record from before UNSUPPORTED and ERROR were separate."""
    kinds: dict[Termination, dict[str, int]] = {Termination.UNSUPPORTED: {}, Termination.ERROR: {}}
    for why, count in reasons.items():
        kinds[told_apart(UNFIT, why)][why] = count
    counts = {how.value: sum(reasons.values()) for how, reasons in kinds.items() if reasons}
    ended = {how: count for how, count in endings.items() if how != UNFIT} | counts
    return {"unsupported": kinds[Termination.UNSUPPORTED], "errors": kinds[Termination.ERROR], "endings": ended}


def places(oracle: str, where: str) -> tuple[str, ...]:
    """Each place that a failure's `where` names, as a `where` of its own; only earlier versions name several."""
    label = _LABELS.get(oracle, "")
    if not label or not where.startswith(f"{label} "):
        return (where,)
    return tuple(f"{label} {name}" for name in where.removeprefix(f"{label} ").split(", "))


def renamed(oracle: str, where: str) -> tuple[str, str]:
    """The oracle and the place by which a failure is known now."""
    if oracle == "graph_equals_eager" and where.startswith(_BOTH_WRONG):
        return "reference", where.replace(_BOTH_WRONG, "wrong values")
    crashed, raised = Termination.CRASHED.value, Termination.RAISED.value
    if oracle == ENDED and where.startswith(crashed) and device_fault(where):
        return oracle, where.replace(crashed, raised, 1)
    return oracle, where
