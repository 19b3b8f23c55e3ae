"""sglang 0.5.20: the graph's inputs name the token of each request from which it draws, and its outputs are that
token's alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from repro.cases.case import Request, Setup
from repro.cases.layout import Ints
from runners.releases.adapters.draft_extend import adapter, family
from runners.releases.adapters.draft_extend.adapter import accepted
from runners.releases.forward_pass import replayed
from runners.releases.live import Given, Live, Outputs
from runners.releases.reference import extending


def given(setup: Setup, table: Ints, requests: Sequence[Request]) -> Given:
    """And select_index: [n], which token of all is drawn from."""
    rows = np.arange(len(requests), dtype=np.int64) * setup.num_draft_tokens
    accepted = np.array([r.accepted for r in requests], dtype=np.int64)
    return {**family.given(setup, table, requests), "select_index": rows + accepted}


def input_buffers(runner: Any) -> Any:
    buffers = family.input_buffers(runner)
    buffers.select_index = runner.buffers.select_index
    return buffers


FAMILY = replace(
    family.FAMILY,
    given=given,
    buffers=(*family.BUFFERS, "select_index"),
    input_buffers=input_buffers,
    reference=extending.drawing(extending.draft_extend, "hidden_states"),
    # Into the next draft's input as the runner gave them; before, select_index made copies
    # (EagleDraftWorker._draft_extend_for_decode: ret_hidden_states = draft_logits_output.hidden_states).
    kept=frozenset({"next_hidden_states"}),
)


def graph(runner: Any, forward_batch: Any) -> Outputs:
    counts = accepted(forward_batch)
    width = forward_batch.input_ids.shape[0] // max(1, len(counts))
    returned = replayed(runner, forward_batch, family.last_accepted(counts, width))
    drawn = family.drawn(returned.next_token_logits, returned.hidden_states, adapter.topk(runner))
    return {"next_token_logits": returned.next_token_logits, **drawn}


def eager(live: Live, forward_batch: Any) -> Outputs:
    """The whole of every request, of which those rows are taken that the graph gives."""
    last = family.last_accepted(accepted(forward_batch), live.setup.num_draft_tokens)
    outputs = dict(adapter.eager(live, forward_batch))
    del outputs["hidden_states"]
    return outputs | {"next_token_logits": outputs["next_token_logits"][last]}
