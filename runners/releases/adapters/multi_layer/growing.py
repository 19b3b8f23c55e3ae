"""Up to 0.5.14 every layer goes over one token more than the one before it: a token further back, whose KV it writes
again, with the hidden state that a pool has kept of it, and what the layer before it has drawn at the other end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from repro.cases.case import Request, Setup
from repro.cases.layout import Ints
from repro.cases.payload import floats_each
from runners.releases.adapters.draft_extend import family as one_layer
from runners.releases.adapters.multi_layer import family
from runners.releases.adapters.multi_layer.drawn import Drawn
from runners.releases.live import Given, Live, Outputs, Rows
from runners.releases.reference import layered


def given(setup: Setup, table: Ints, requests: Sequence[Request]) -> Given:
    """The batch of one layer, and rewritten: [n, layers - 1], the KV slots of the tokens before the new ones, which
    later layers write again; 0 where there is no such token; hidden_pool: [n, layers - 1, hidden], their hidden
    states."""
    more = setup.num_steps - 1
    before = np.array([r.seq_len for r in requests])[:, None] - np.arange(1, more + 1)
    slots = np.array([[r.slot] for r in requests])
    return {
        **one_layer.given(setup, table, requests),
        "rewritten": np.where(before >= 0, table[slots, np.maximum(before, 0)], 0),
        "hidden_pool": floats_each([r.data for r in requests], "hidden_pool", (more, setup.hidden_size)),
    }


def static(live: Live, runner: Any) -> Mapping[str, torch.Tensor]:
    """Also the buffers that one layer fills for the next, and the pool."""
    tensors = {**family.static(live, runner), "hidden_pool": live.draft.req_to_hidden_states_pool}
    for layer, layer_runner in enumerate(runner.runners):
        for name in ("hidden_states", "extend_seq_lens", "extend_start_loc", "next_token_logits_buffer"):
            tensors[f"{name}.{layer}"] = getattr(layer_runner.buffers, name)
    for name in ("input_ids", "out_cache_loc", "positions"):
        tensors[f"{name}.all"] = runner.cuda_graph_buffers[name]
    return tensors


def caller(forward_batch: Any) -> Mapping[str, Any]:
    """Not the hidden states on spec_info: the graphs leave the last layer's there, and the worker drops it."""
    return {name: getattr(forward_batch, name) for name in one_layer.CALLER}


FAMILY = replace(
    family.FAMILY,
    given=given,
    static=static,
    caller=caller,
    noisy=("hidden_states", "hidden_pool"),
    input_buffers=lambda runner: one_layer.input_buffers(runner.runners[0]),
    sizes=lambda runner: (runner.runners[0].bs, runner.runners[0].raw_bs),
    reference=layered.growing,
)


def put_pool(live: Live, rows: Rows) -> None:
    """Put into the pool what the call before this one left of each request."""
    pool, indices = live.draft.req_to_hidden_states_pool, rows["req_pool_indices"]
    inside = indices < len(pool)
    pool[indices[inside]] = rows["hidden_pool"][inside]


def pool_rows(pool: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The pool's rows of each request. Zeros where the pool has no such row: in 0.5.11 it lacks the one of the last
    request slot."""
    inside = (indices < len(pool))[:, None, None]
    return torch.where(inside, pool[indices.clamp(max=len(pool) - 1)], 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The tokens that one layer goes over: per request as many, in rows. counts: accepted tokens of each request."""

    layer: int
    seq_lens: torch.Tensor
    req_pool_indices: torch.Tensor
    counts: torch.Tensor
    input_ids: torch.Tensor
    positions: torch.Tensor
    out_cache_loc: torch.Tensor
    hidden_states: torch.Tensor

    @property
    def width(self) -> int:
        return self.input_ids.shape[1]

    @property
    def last(self) -> torch.Tensor:
        """The token from which each request draws, in one row of all."""
        rows = torch.arange(len(self.counts), device=self.counts.device)
        return rows * self.width + self.counts - 1 + self.layer

    def rows(self) -> Rows:
        """The window as a batch of one layer."""
        width = torch.full_like(self.counts, self.width).to(torch.int32)
        return Rows(
            count=len(self.counts),
            tensors={
                "req_pool_indices": self.req_pool_indices,
                "seq_lens": self.seq_lens,
                "extend_prefix_lens": (self.seq_lens - self.width).clamp(min=0).to(torch.int32),
                "extend_seq_lens": width,
                "num_accept_tokens": self.counts.to(torch.int32),
                "num_correct_drafts": (self.counts - 1).to(torch.int32),
                "input_ids": self.input_ids.flatten(),
                "positions": self.positions.flatten(),
                "out_cache_loc": self.out_cache_loc.flatten(),
                "hidden_states": self.hidden_states,
            },
        )

    def grown(self, drawn: torch.Tensor, pool: torch.Tensor, table: torch.Tensor) -> Window:
        """For the next layer. drawn: [n, 1]. The tokens keep their places and one is added behind them, so that each
        stands one further back against its position; the drawn one comes behind the last accepted."""
        ids = torch.cat((self.input_ids, torch.zeros_like(drawn)), dim=1)
        ids.scatter_(1, (self.counts + self.layer)[:, None], drawn)
        column = self.seq_lens - self.width - 1
        located = table[self.req_pool_indices, column.clamp(min=0)].to(torch.int64)
        located = torch.where(column >= 0, located, 0)
        earlier = pool_rows(pool, self.req_pool_indices)[:, -1 - self.layer]
        return replace(
            self,
            layer=self.layer + 1,
            input_ids=ids,
            positions=torch.cat(((self.positions[:, :1] - 1).clamp(min=0), self.positions), dim=1),
            out_cache_loc=torch.cat((located[:, None], self.out_cache_loc), dim=1),
            hidden_states=torch.cat((earlier[:, None], self.hidden_states), dim=1),
        )


def first_window(forward_batch: Any, counts: torch.Tensor) -> Window:
    shape = (forward_batch.batch_size, -1)
    hidden: torch.Tensor = forward_batch.spec_info.hidden_states
    return Window(
        layer=0,
        seq_lens=forward_batch.seq_lens.to(torch.int64),
        req_pool_indices=forward_batch.req_pool_indices,
        counts=counts.to(torch.int64),
        input_ids=forward_batch.input_ids.view(shape),
        positions=forward_batch.positions.view(shape),
        out_cache_loc=forward_batch.out_cache_loc.view(shape),
        hidden_states=hidden.view(*shape, hidden.shape[-1]),
    )


def eager(live: Live, window: Window, run: Callable[[Any, Rows], torch.Tensor]) -> Outputs:
    """Layer after layer, each as its graph would. run: one layer over such a batch, giving the logits of all tokens.

    Not the worker's own path without a graph: that one goes over the same tokens with every layer, makes attention
    metadata for the first layer only, and says itself that its results may be wrong.
    """
    pool = live.draft.req_to_hidden_states_pool
    table = family.all_layers(live).req_to_token_pool.req_to_token
    drawn = Drawn()
    for layer_runner, is_last in _marking_last(family.runners(live)):
        best = drawn.add_best(run(layer_runner, window.rows()), window.last)
        if not is_last:
            window = window.grown(best, pool, table)
    width = pool.shape[1]
    return {**drawn.outputs(), "hidden_pool": window.hidden_states[:, window.width - width :].flatten(1)}


def _marking_last(runners: Sequence[Any]) -> Iterator[tuple[Any, bool]]:
    for number, runner in enumerate(runners, start=1):
        yield runner, number == len(runners)
