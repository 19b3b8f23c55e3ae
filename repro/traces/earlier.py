"""Reads names of earlier versions: one status for UNSUPPORTED and ERROR, and one `where` for several places."""

from __future__ import annotations

import re

from repro.traces.trace import Termination

UNFIT = "unfit"  # either kind of trouble
_OF_OURS = re.compile(
    r"the (session failed|worker|launch could not be recorded)\b|\w*(Error|Exception|Interrupt)\b|torch.compile was to "
    r"|.* (while building|cannot be imported: .*|on the import path|cannot be recorded|session that was opened for it)$"
)
# The oracles that named all wrong buffers of a case in one `where`, with these words in front.
_LABELS = {
    "slot0_padding": "padded rows of",
    "staged": "real rows of",
    "kv_writes": "slots not given,",
    "callers_batch": "the caller's",
}


def told_apart(how: str, why: str) -> Termination:
    """How a run ended, in this word and for this reason. ValueError if it is no such word of any version."""
    if how != UNFIT:
        return Termination(how)
    return Termination.ERROR if _OF_OURS.match(why) else Termination.UNSUPPORTED


def places(oracle: str, where: str) -> tuple[str, ...]:
    """Each place that a failure's `where` names, as a `where` of its own; only earlier versions name several."""
    label = _LABELS.get(oracle, "")
    if not label or not where.startswith(f"{label} "):
        return (where,)
    return tuple(f"{label} {name}" for name in where.removeprefix(f"{label} ").split(", "))
