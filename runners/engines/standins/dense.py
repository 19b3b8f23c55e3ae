"""Attention of one sequence by its definition, in float32, and memory as a kernel sees it: what stand-ins for attention
kernels have in common."""

from __future__ import annotations

import math

import torch

from repro.cases.layout import Ints

Pair = tuple[torch.Tensor, torch.Tensor]


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: torch.Tensor | None,
    *,
    scale: float,
    soft_cap: float,
    sinks: torch.Tensor | None = None,
) -> Pair:
    """query: [n, heads, dim]; key, value: [m, key heads, dim]; seen: which key each query sees, bool [n, m], None for
    all; soft_cap: 0 for none; sinks: [heads], the score of a key without a value. Gives [n, heads, dim] and the natural
    logarithm of the sum of weights, [n, heads], in float32: zeros and -inf for a query that sees no key."""
    count, heads, dim = query.shape
    keys, groups, _ = key.shape
    if not keys:
        out = query.new_zeros((count, heads, value.shape[-1]), dtype=torch.float32)
        return out, out.new_full((count, heads), -math.inf)
    # A head of keys with all queries that share it: [key heads, n * sharing, dim]
    shared = query.float().view(count, groups, -1, dim).transpose(0, 1).reshape(groups, -1, dim)
    # In place where it can be: of a sequence each operation takes longer to call than to run.
    scores = torch.bmm(shared, key.float().permute(1, 2, 0)).mul_(scale)
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    if seen is not None:
        scores.masked_fill_(~seen.repeat_interleave(heads // groups, 0), -math.inf)
    top = scores.amax(-1, keepdim=True)
    blind = top == -math.inf
    weights = scores.sub_(top.masked_fill(blind, 0.0)).exp_()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        each = sinks.float().view(groups, 1, -1).expand(-1, count, -1).reshape(top.shape)
        total = total + torch.exp(each - top.masked_fill(blind, 0.0))
    logs = top + torch.log(total)
    out = torch.bmm(weights, value.float().transpose(0, 1)).div_(total.masked_fill_(blind, 1.0))
    if count == 1:
        return out.view(1, heads, -1), logs.view(1, heads)
    return _by_query(out, count), _by_query(logs, count).squeeze(-1)


def _by_query(shared: torch.Tensor, count: int) -> torch.Tensor:
    groups, _, width = shared.shape
    return shared.view(groups, count, -1, width).transpose(0, 1).reshape(count, -1, width)


def seen_keys(queries: int, keys: int, *, causal: bool, left: int = -1, right: int = -1) -> torch.Tensor | None:
    """The keys that each query sees, bool [queries, keys]; None: all. The last query stands at the last key. causal: no
    key behind its own place; left, right: at most so many before and behind it, -1: any."""
    if not causal and left < 0 and right < 0:
        return None
    behind = torch.arange(queries)[:, None] + (keys - queries) - torch.arange(keys)
    seen = behind >= (0 if causal else -right if right >= 0 else -keys - queries)
    return seen & (behind <= left) if left >= 0 else seen


def memory_from(view: torch.Tensor) -> torch.Tensor:
    """The elements from the beginning of a view up to the end of its storage."""
    count = view.untyped_storage().nbytes() // view.element_size() - view.storage_offset()
    return view.as_strided((count,), (1,))


def whole(tensor: torch.Tensor) -> Ints:
    """The tensor as host integers."""
    return tensor.numpy().astype("int64")
