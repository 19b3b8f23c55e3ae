"""The commit that follows a verify of recurrent layers: the worker keeps the states of accepted tokens."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from repro.cases.case import Request
from repro.cases.tree import descent
from runners.releases.adapters.verify_eager.family import StandIn
from runners.releases.forward_pass import verify_spelling
from runners.releases.live import Live

_SPECULATIVE = "sglang.srt.speculative."


def accepted(batch: Any, requests: Sequence[Request]) -> list[list[tuple[int, int]]]:
    """The tokens of each request's tree that are accepted, the root first: their numbers in it, and what they are."""
    spec_info, spelling = batch.spec_info, verify_spelling()
    firsts, siblings = (
        getattr(spec_info, f"{spelling}_{name}").cpu().numpy() for name in ("next_token", "next_sibling")
    )
    tokens = spec_info.draft_token.view(-1, spec_info.draft_token_num).tolist()
    return [
        [(node, tokens[row][node]) for node in descent(firsts[row], siblings[row], request.accepted, request.data)]
        for row, request in enumerate(requests)
    ]


def commit(live: Live, batch: Any, paths: Sequence[Sequence[tuple[int, int]]], tracked: torch.Tensor) -> None:
    """Call sglang's own commit: a method of the worker up to 0.5.13.post1, a function since then. tracked: the state
    slot in which each request's state is kept when it comes to a length at which one is, int64 [n]."""
    setup, device, count = live.setup, batch.seq_lens.device, len(paths)
    index = torch.full((count, setup.num_steps + 1), -1, dtype=torch.int32)
    for row, path in enumerate(paths):
        nodes = [row * setup.num_draft_tokens + node for node, _ in path]
        index[row, : len(nodes)] = torch.tensor(nodes, dtype=torch.int32)
    index = index.to(device)
    lengths = torch.tensor([len(path) for path in paths], dtype=torch.int32).to(device)
    scheduled = StandIn(
        what="ScheduleBatch",
        forward_mode=batch.forward_mode,
        # Without padded rows, which a batch that other ranks are busier than has behind a forward pass of 0.5.13.
        req_pool_indices=batch.req_pool_indices[:count],
        seq_lens=batch.seq_lens[:count],
        mamba_track_indices=tracked,
        tree_cache=SimpleNamespace(page_size=setup.page_size),
        spec_info=batch.spec_info,
    )
    utils: Any = importlib.import_module(f"{_SPECULATIVE}spec_utils")
    if hasattr(utils, "commit_mamba_states_after_verify"):
        utils.commit_mamba_states_after_verify(live.target, scheduled, lengths, index, setup.num_draft_tokens)
        return
    worker = SimpleNamespace(
        speculative_num_draft_tokens=setup.num_draft_tokens, target_worker=live.target, server_args=live.args
    )
    kind: Any = importlib.import_module(f"{_SPECULATIVE}eagle_worker_v2").EAGLEWorkerV2
    takes_input = "verify_input" in inspect.signature(kind._mamba_verify_update).parameters  # up to 0.5.12.post1
    if takes_input and setup.topk > 1:
        _commit_tree(worker, scheduled, lengths, index)
        return
    verify_input = (batch.spec_info,) if takes_input else ()
    kind._mamba_verify_update(worker, scheduled, *verify_input, lengths, index, count)


def _commit_tree(worker: Any, scheduled: StandIn, lengths: torch.Tensor, index: torch.Tensor) -> None:
    """Commit like EAGLEWorker, the worker of all trees up to 0.5.12.post1: its batch has the lengths behind the verify.
    lengths: the accepted tokens of each request, int32 [n]; index: their numbers, -1 where there is none."""
    before, flat, drafts = scheduled.seq_lens, index[index != -1], (lengths - 1).tolist()
    scheduled.seq_lens = before + lengths
    verified = StandIn(
        what="EagleVerifyOutput",
        **dict.fromkeys(("accepted_indices", "accept_indices"), flat),
        **dict.fromkeys(
            ("accept_length_per_req_cpu", "num_accepted_drafts_per_req_cpu", "num_correct_drafts_per_req_cpu"), drafts
        ),
    )
    # Their device is asked for.
    outputs = StandIn(what="LogitsProcessorOutput", hidden_states=flat, next_token_logits=flat)
    kind: Any = importlib.import_module(f"{_SPECULATIVE}eagle_worker").EAGLEWorker
    kind._mamba_verify_update(worker, scheduled, verified, outputs, scheduled.spec_info, before)
