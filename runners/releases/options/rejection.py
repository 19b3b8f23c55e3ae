"""Drafts that are drawn at random, for sglang to accept by rejection sampling: what requests sample by, and the random
numbers that they are drawn with.

On a device a graph and an eager pass draw other numbers. Here the n-th draw of row r is the same number in every call,
so that whatever they give otherwise is no luck.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from repro.cases.case import Request, Setup
from repro.cases.payload import floats, floats_each
from repro.traces.trace import Array
from runners.releases.live import Given, Live, Rows

# Where a draft runner keeps what it is given of them.
PROBABILITIES, TEMPERATURES, TOP_KS = NAMES = ("draft_probs", "temperatures", "top_ks")
EVERY_TOKEN = 1 << 30  # sglang's TOP_K_ALL
# The random numbers that each runner was captured with: its graphs read them where they lie.
_captured_with: WeakKeyDictionary[Any, torch.Tensor] = WeakKeyDictionary()


def given(setup: Setup, requests: Sequence[Request]) -> Given:
    """draft_probs: float32 [n, vocabulary], what the first draft of each was drawn from; temperatures: float32 [n, 1];
    top_ks: int32 [n], of a greedy request 1, as sglang rewrites temperature 0."""
    if not setup.rejection:
        return {}
    data = [request.data for request in requests]
    greedy = np.array([request.greedy for request in requests], dtype=np.bool_)
    heat = 1.25 + 0.75 * floats_each(data, TEMPERATURES, (1,))  # from 0.5 to 2
    weights = 1 + floats_each(data, PROBABILITIES, (setup.vocab_size,))
    return {
        PROBABILITIES: weights / weights.sum(axis=1, keepdims=True),
        TEMPERATURES: np.where(greedy[:, None], np.float32(1), heat).astype(np.float32),
        TOP_KS: np.where(greedy, 1, EVERY_TOKEN).astype(np.int32),
    }


def knows_greedy(live: Live) -> bool:
    """True if this release's drafts of greedy requests are their best tokens; up to 0.5.20 they are drawn as well."""
    proposal = getattr(sys.modules[type(live.draft).__module__], "sample_draft_proposal", None)
    return proposal is not None and TOP_KS in inspect.signature(proposal).parameters


def has_variants(live: Live) -> bool:
    """True if a draft for greedy requests alone draws nothing and so says nothing of what it was drawn from; since
    0.5.22, with graphs of its own."""
    return "is_all_greedy" in type(live.draft).draft_forward.__code__.co_names


def of_spec(rows: Rows) -> Mapping[str, torch.Tensor]:
    """The part of a draft input."""
    return {PROBABILITIES: rows[PROBABILITIES]} if PROBABILITIES in rows.tensors else {}


def fields(rows: Rows, vocab_size: int, kind: Any) -> Mapping[str, Any]:
    """The fields of a ForwardBatch. kind: sglang's SamplingBatchInfo."""
    if TOP_KS not in rows.tensors:
        return {}
    greedy = rows.host(TOP_KS) <= 1
    info = {
        TEMPERATURES: rows[TEMPERATURES],
        TOP_KS: rows[TOP_KS],
        "top_ps": torch.ones(rows.count, device=rows[TOP_KS].device),
        "min_ps": torch.zeros(rows.count, device=rows[TOP_KS].device),
        "is_all_greedy": bool(greedy.all()),
        "is_any_greedy": bool(greedy.any()),
        "need_top_p_sampling": False,
        "need_top_k_sampling": bool(greedy.any()),
        "need_min_p_sampling": False,
        "vocab_size": vocab_size,
    }
    known = inspect.signature(kind).parameters
    return {"sampling_info": kind(**{name: value for name, value in info.items() if name in known})}


def caller(forward_batch: Any) -> Mapping[str, Any]:
    """The values that the caller may still look at. A worker's batches say how to sample in any case, also in releases
    that draw no drafts at random."""
    info = forward_batch.sampling_info
    if info is None or not hasattr(forward_batch.spec_info, PROBABILITIES):
        return {}
    sampled_by = {name: getattr(info, name) for name in (TEMPERATURES, TOP_KS)}
    return {PROBABILITIES: forward_batch.spec_info.draft_probs, **sampled_by}


def input_buffers(runner: Any) -> Mapping[str, Any]:
    """The input buffers of a draft runner; nothing where its drafts are not drawn at random."""
    if getattr(runner.buffers, PROBABILITIES, None) is None:
        return {}
    buffers = {name: getattr(runner, name, None) for name in (TEMPERATURES, TOP_KS)}
    return {PROBABILITIES: runner.buffers.draft_probs, **buffers}


@functools.lru_cache(maxsize=8)
def numbers(setup: Setup) -> Array:
    """Exponentially distributed with mean 1, float32 [draws, rows, vocabulary]: of a draft every one is used once."""
    shape = (setup.num_steps - 1, setup.slots, setup.vocab_size)
    even = (floats(1, "draws", shape).astype(np.float64) + 1 + 2.0**-24) / 2  # within 0 and 1
    return (-np.log(even)).astype(np.float32)


def drawing(live: Live) -> AbstractContextManager[_Draws | None]:
    """While entered, what sglang draws at random in one draft after the other, it draws with numbers()."""
    if not live.setup.rejection:
        return nullcontext()
    return _Draws(torch.from_numpy(numbers(live.setup)).to(live.device))


def keep(runner: Any, draws: _Draws | None) -> None:
    """Keep the draws as long as there is this runner, whose graphs draw with them."""
    if draws is not None:
        _captured_with[runner] = draws.each


class _Draws(TorchFunctionMode):
    def __init__(self, each: torch.Tensor) -> None:
        super().__init__()
        self.each, self._drawn = each, 0

    def _next(self, rows: int) -> torch.Tensor:
        number, self._drawn = self._drawn % len(self.each), self._drawn + 1
        return self.each[number, :rows]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.exponential_:
            return args[0].copy_(self._next(args[0].shape[0]))
        if func is torch.multinomial:  # up to 0.5.15, of one token a row
            return (args[0].float() / self._next(args[0].shape[0])).argmax(dim=-1, keepdim=True)
        return func(*args, **(kwargs or {}))
