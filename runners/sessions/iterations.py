"""The iterations of an event loop in which the requests of a case must end."""

from __future__ import annotations

from collections.abc import Iterable

from repro.cases.case import Case

# Iterations that a request may take for each of its new tokens, and besides: far more than it needs in a full pool.
EACH, BESIDES = 4, 64


def iterations_max(case: Case) -> int:
    """Iterations of the event loop in which all requests have ended. Each chunk of a prefill takes one. A prefill gives
    its request a token, so that no request is prefilled more often than it has tokens, and where the pool is large
    enough for all not more often than the case retracts it."""
    requests = [request for step in case.steps for request in step.requests]
    retractions = sum(step.happens == "retract" for step in case.steps)
    limit = sum(step.wait for step in case.steps) + BESIDES
    for request in requests:
        tokens = 1 + request.further
        prefills = tokens if case.setup.pool else min(tokens, 1 + retractions)
        chunks = -(-(request.seq_len + request.further) // case.setup.chunk) if case.setup.chunk else 1
        limit += EACH * (tokens + 1) + prefills * chunks
    return limit


def prefills_max(lengths: Iterable[int], chunk: int) -> int:
    """Iterations of the event loop in which prompts of these lengths have been prefilled, one behind the other and each
    for one token. chunk: tokens of a chunk; 0: prompts are not cut."""
    return BESIDES + sum(BESIDES + (-(-length // chunk) if chunk else 1) for length in lengths)
