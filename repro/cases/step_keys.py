"""The keys of a step and of its requests in a case's file."""

from __future__ import annotations

from repro.cases.case import DATA_MAX, HAPPENINGS, HIDDEN, LAYOUTS_MAX, WAIT_MAX, Request, Step
from repro.cases.key import Key
from repro.cases.rows.bounds import CONTEXT_MAX, SLOTS_MAX

STEP = (
    Key(
        owner=Step,
        field="mirrored",
        name="seq_lens_cpu",
        meaning="lengths and their sum come along on the host",
    ),
    Key(
        owner=Step,
        field="layout",
        name="layout",
        meaning="the layout by which request slots own KV slots; another one: all have moved",
        bounds=(0, LAYOUTS_MAX),
    ),
    Key(
        owner=Step,
        field="hidden",
        name="capture_hidden_mode",
        meaning="hidden states that the batch asks for",
        choices=HIDDEN,
        forms=(("", "NULL"), ("last", "LAST"), ("full", "FULL")),
    ),
    Key(
        owner=Step,
        field="elsewhere",
        name="other_rank_num_reqs",
        meaning="requests of the other rank, with enable_dp_attention",
        bounds=(0, SLOTS_MAX),
    ),
    Key(
        owner=Step,
        field="wait",
        name="wait",
        meaning="iterations of the event loop since the step before, where steps arrive",
        bounds=(0, WAIT_MAX),
    ),
    Key(
        owner=Step,
        field="happens",
        name="happens",
        meaning="just before: running requests are retracted, the oldest one is aborted, the cache is flushed",
        choices=HAPPENINGS,
    ),
)
REQUEST = (
    Key(
        owner=Request,
        field="slot",
        name="req_pool_idx",
        meaning="the request's row of req_to_token; each at most once a step",
        bounds=(1, SLOTS_MAX),
    ),
    Key(
        owner=Request,
        field="seq_len",
        name="seq_len",
        meaning="tokens that it has in its KV cache; where requests arrive, the length of the prompt",
        bounds=(1, CONTEXT_MAX),
    ),
    Key(
        owner=Request,
        field="data",
        name="data",
        meaning="any integer; the contents of its tensors are made from it",
        bounds=(0, DATA_MAX),
    ),
    Key(
        owner=Request,
        field="accepted",
        name="num_correct_drafts",
        meaning="drafts that the previous verify accepted, where the runner takes their number",
        bounds=(0, DATA_MAX),
    ),
    Key(
        owner=Request,
        field="greedy",
        name="greedy",
        meaning="samples its best token, where drafts are drawn at random",
    ),
    Key(
        owner=Request,
        field="further",
        name="max_new_tokens",
        offset=1,
        meaning="tokens that a request which arrives asks for, the first one included",
        bounds=(0, CONTEXT_MAX),
    ),
)
