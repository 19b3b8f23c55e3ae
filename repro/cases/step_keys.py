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
        meaning="the batch has its lengths and their sum on the host",
    ),
    Key(
        owner=Step,
        field="layout",
        name="layout",
        meaning="the assignment of KV slots to request slots; another number moves all of them",
        bounds=(0, LAYOUTS_MAX),
    ),
    Key(
        owner=Step,
        field="hidden",
        name="capture_hidden_mode",
        meaning="hidden states that the batch requests",
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
        meaning="iterations of the event loop since the previous step, for the round runner",
        bounds=(0, WAIT_MAX),
    ),
    Key(
        owner=Step,
        field="happens",
        name="happens",
        meaning="an event just before the step: retract running requests, abort the oldest one, flush the cache, or "
        "update weights as soon as no request runs",
        choices=HAPPENINGS,
    ),
)
REQUEST = (
    Key(
        owner=Request,
        field="slot",
        name="req_pool_idx",
        meaning="the request's row of req_to_token; at most once in a step",
        bounds=(1, SLOTS_MAX),
    ),
    Key(
        owner=Request,
        field="seq_len",
        name="seq_len",
        meaning="tokens in its KV cache; for the round runner the length of the prompt",
        bounds=(1, CONTEXT_MAX),
    ),
    Key(
        owner=Request,
        field="data",
        name="data",
        meaning="seed of the contents of its tensors",
        bounds=(0, DATA_MAX),
    ),
    Key(
        owner=Request,
        field="accepted",
        name="num_correct_drafts",
        meaning="drafts that the previous verify accepted, for runners that use it",
        bounds=(0, DATA_MAX),
    ),
    Key(
        owner=Request,
        field="greedy",
        name="greedy",
        meaning="always samples its best token, with speculative_use_rejection_sampling",
    ),
    Key(
        owner=Request,
        field="further",
        name="max_new_tokens",
        offset=1,
        meaning="tokens that an arriving request asks for, including the first",
        bounds=(0, CONTEXT_MAX),
    ),
)
