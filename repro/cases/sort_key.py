"""The order on cases, written once: what people find simpler comes first."""

from __future__ import annotations

import dataclasses

from repro.cases.case import Case
from repro.cases.options import OPTIONS

# What only makes the model larger or stranger goes back to its default, in these groups.
MODEL = tuple(option.reset for option in OPTIONS if option.reset)
DEFAULTS = {option.field: option.default for option in OPTIONS if option.default is not dataclasses.MISSING}


def sort_key(case: Case) -> tuple[int, ...]:
    """The order in which people find cases simple, most important first: the case with the lesser key is simpler."""
    setup, sizes = case.setup, [len(step.requests) for step in case.steps]
    requests = [request for step in case.steps for request in step.requests]
    return (
        len(case.steps),
        sum(not step.requests for step in case.steps),
        len(requests),
        sum(request.further for request in requests),
        setup.topk,
        setup.num_steps,
        setup.num_draft_tokens,
        len(setup.capture_bs),
        *setup.capture_bs,
        setup.page_size,
        setup.overhang,
        setup.adaptive,
        setup.context_len,
        setup.slots,
        setup.kv_splits,
        sum(not step.mirrored for step in case.steps),
        *(step.layout for step in case.steps),
        sum(len(step.hidden) for step in case.steps),
        *(step.elsewhere for step in case.steps),
        sum(step.wait for step in case.steps),
        sum(len(step.happens) for step in case.steps),
        sum(getattr(setup, name) != DEFAULTS[name] for group in MODEL for name in group),
        *sizes,
        sum(request.seq_len for request in requests),
        *(request.seq_len for request in requests),
        sum(request.greedy for request in requests),
        sum(request.accepted for request in requests),
        *(request.accepted for request in requests),
        sum(request.data for request in requests),
        *(request.data for request in requests),
        *(request.slot for request in requests),
    )
