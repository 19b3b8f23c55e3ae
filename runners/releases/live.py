"""What an adapter gives and takes: the parts of a live sglang, and a batch as plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from repro.case import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A built sglang: its workers are sglang's own objects and therefore untyped."""

    setup: Setup
    device: str
    args: Any
    target: Any
    draft: Any

    @property
    def model_runner(self) -> Any:
        return self.draft.draft_runner

    @property
    def backend(self) -> Any:
        """The multi-step draft attention backend."""
        return self.draft.draft_attn_backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A batch as the caller would hand it over, n rows.

    req_pool_indices, seq_lens: int64 [n]; out_cache_loc: int64 [n * topk * num_steps]; positions: int64 [n * topk];
    topk_p: float32 [n, topk]; topk_index: int64 [n, topk]; hidden_states: [n, hidden] in the model's dtype.
    """

    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    out_cache_loc: torch.Tensor
    positions: torch.Tensor
    topk_p: torch.Tensor
    topk_index: torch.Tensor
    hidden_states: torch.Tensor

    @property
    def count(self) -> int:
        return int(self.seq_lens.shape[0])

    def copied(self) -> Rows:
        """The same contents in tensors of their own: a runner may change what it is given."""
        return Rows(**{name: getattr(self, name).clone() for name in self.__slots__})

    def padded(self, setup: Setup, neutral: Mapping[str, int]) -> Rows:
        """Padded to its bucket as a graph pads it: row 0 of req_to_token, KV slot 0, neutral lengths."""
        missing = setup.bucket(self.count) - self.count
        each = {"out_cache_loc": setup.topk * setup.num_steps, "positions": setup.topk}

        def extended(name: str) -> torch.Tensor:
            tensor: torch.Tensor = getattr(self, name)
            shape = (missing * each.get(name, 1), *tensor.shape[1:])
            return torch.cat((tensor, tensor.new_full(shape, neutral.get(name, 0))))

        return Rows(**{name: extended(name) for name in self.__slots__})

    def nudged(self, factor: float) -> Rows:
        """With the hidden states moved by a factor close to one."""
        hidden = (self.hidden_states.float() * factor).to(self.hidden_states.dtype)
        return replace(self, hidden_states=hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """What a draft returns, as views that the next replay may overwrite: parents, scores_index, tokens, n rows each."""

    parents: torch.Tensor
    scores_index: torch.Tensor
    tokens: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """How one generation of sglang is driven. The functions are those of a module of this package.

    build: construct workers for a setup. capture: build the graph runner, which captures.
    batch: make a ForwardBatch of rows. graph, eager: run one. neutral: what padded rows hold where it is not zero.
    """

    name: str
    build: Callable[[Setup, str, Any], Live]
    capture: Callable[[Live], Any]
    batch: Callable[[Live, Rows], Any]
    graph: Callable[[Any, Any], Drafts]
    eager: Callable[[Live, Any], Drafts]
    neutral: Callable[[Live], Mapping[str, int]]
