"""Stands in for DeepSeek-V4's compiled kernels that compress keys, and for the plans by which they do, on CPU tensors.

Each 4 or 128 tokens become one row of a cache. What they are made of is kept in a ring until then: of 128 that of the
request, of 4 that of a page of the sliding window. Of 4 tokens, the four before count as well. A plan has a row for
each query, of int32 numbers: length, where to write, and the pages of the ring to read; or, of a prefill, a row for
each place that is complete, and one for each token that the ring keeps, both filled up with rows that say nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from runners.engines import launch_memory, touched
from runners.engines.standins import dsv4_norms, dsv4_rows

NOTHING = -1
_KERNEL = "compress_plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    """The state in which tokens wait. table: the KV slots of each request; mapping: of each KV slot the window's;
    window_page: how many of these a page has; slots: of a request, or of such a page, where by_request is false."""

    table: torch.Tensor
    mapping: torch.Tensor
    ratio: int
    window_page: int
    slots: int
    by_request: bool

    def places(self, requests: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Tokens' places at these positions."""
        if self.ratio == 128 or self.by_request:
            return requests * self.slots + torch.fmod(positions, self.slots)  # as in C++
        count, width = self.table.shape
        outside = (positions < 0) | (positions >= width) | (requests < 0) | (requests >= count)
        if outside.any():
            launch_memory.report(f"load outside req_to_token in {_KERNEL}", int(positions[outside][0]), width)
        slots = self.table[requests.clamp(0, count - 1), positions.clamp(0, width - 1)].long()
        outside = (slots < 0) | (slots >= len(self.mapping))
        if outside.any():
            launch_memory.report(f"load outside full_to_swa in {_KERNEL}", int(slots[outside][0]), len(self.mapping))
        windows = self.mapping[slots.clamp(0, len(self.mapping) - 1)]
        return torch.div(windows, self.window_page, rounding_mode="trunc") * self.slots + windows % self.slots


def _plan_decode(
    requests: torch.Tensor,
    table: torch.Tensor,
    mapping: torch.Tensor,
    lengths: torch.Tensor,
    ratio: int,
    window_page: int,
    slots: int,
    by_request: bool,
) -> torch.Tensor:
    launch_memory.watched()
    touched.reads(requests, lengths)
    ring = _Ring(table=table, mapping=mapping, ratio=ratio, window_page=window_page, slots=slots, by_request=by_request)
    write, other = ring.places(requests, lengths - 1), ring.places(requests, (lengths - 1 - ratio).clamp(min=0))
    return _bytes(torch.stack((lengths, write, other // ratio, write // ratio), -1))


def _plan_prefill(
    requests: torch.Tensor,
    table: torch.Tensor,
    mapping: torch.Tensor,
    lengths: torch.Tensor,
    extends: torch.Tensor,
    queries: int,
    ratio: int,
    window_page: int,
    slots: int,
    by_request: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    launch_memory.watched()
    touched.reads(requests, lengths, extends)
    ring = _Ring(table=table, mapping=mapping, ratio=ratio, window_page=window_page, slots=slots, by_request=by_request)
    window = ratio * (2 if ratio == 4 else 1)
    rows = torch.arange(len(extends)).repeat_interleave(extends)
    number = torch.arange(len(rows))
    place = number - (extends.cumsum(0) - extends)[rows]
    position = (lengths - extends)[rows] + place
    # Behind a verify so many of its tokens may be taken back.
    kept = slots - window + 2 if slots > window else 0
    writes = position >= torch.minimum(lengths // ratio * ratio - (window - ratio), lengths - kept)[rows]
    if ratio == 4 and not by_request:
        writes |= position % window_page >= window_page - ratio
    if len(rows) > queries:
        launch_memory.report(f"store outside the plan in {_KERNEL}", len(rows), queries)
    written = torch.stack((number[writes], ring.places(requests[rows[writes]], position[writes])), -1)
    ends = (position + 1) % ratio == 0
    rows, number, place, position = rows[ends], number[ends], place[ends], position[ends]
    buffered = window - (place + 1).clamp(max=window)
    pages = [ring.places(requests[rows], at) // ratio for at in ((position - ratio).clamp(min=0), position)]
    others = (torch.full_like(rows, NOTHING), rows)
    read = [torch.where(buffered > 0, page, other) for page, other in zip(pages, others, strict=True)]
    complete = torch.stack((position + 1, number + (buffered << 16), *read), -1)
    return _filled(complete, queries, (NOTHING, 0, NOTHING, NOTHING)), _filled(written, queries, (NOTHING, NOTHING))


def _filled(rows: torch.Tensor, count: int, nothing: tuple[int, ...]) -> torch.Tensor:
    rest = torch.tensor(nothing).expand(max(0, count - len(rows)), -1)
    return _bytes(torch.cat((rows[:count], rest)))


def _bytes(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.to(torch.int32).contiguous().view(torch.uint8)


def _numbers(plan: torch.Tensor) -> torch.Tensor:
    touched.reads(plan)
    return plan.view(torch.int32).long()


def _decode(ring: torch.Tensor, tokens: torch.Tensor, out: torch.Tensor, ape: torch.Tensor, plan: torch.Tensor) -> None:
    """ring: [pages, ratio, width]; tokens: [n, width]; out: [n, size]; ape: [window, size]."""
    launch_memory.watched()
    numbers, ratio = _numbers(plan), ring.shape[1]
    lengths, writes, others, pages = numbers.unbind(-1)
    kept = _within(writes, len(ring) * ratio, "store")
    ring.view(-1, ring.shape[-1])[writes[kept]] = tokens[kept].to(ring.dtype)
    complete = (lengths % ratio == 0) & _within(pages, len(ring), "load") & _within(others, len(ring), "load")
    rows = complete.nonzero()[:, 0]
    out[rows] = _made(ring, tokens, ape, rows, numbers[rows, 0], numbers[rows, 2:], len(ape)).to(out.dtype)


def _prefill(
    ring: torch.Tensor,
    tokens: torch.Tensor,
    out: torch.Tensor,
    ape: torch.Tensor,
    plan: torch.Tensor,
    writes: torch.Tensor,
) -> None:
    """A batch's own rows are made of the ring as it was."""
    launch_memory.watched()
    numbers = _numbers(plan)
    queries, buffered = numbers[:, 1] & 0xFFFF, numbers[:, 1] >> 16
    complete = numbers[:, 0] != NOTHING
    read = complete & (buffered > 0)
    for pages in numbers[:, 2:].unbind(-1):
        complete &= _within(torch.where(read, pages, 0), len(ring), "load")
    rows = complete.nonzero()[:, 0]
    made = _made(ring, tokens, ape, queries[rows], numbers[rows, 0], numbers[rows, 2:], buffered[rows, None])
    out[rows] = made.to(out.dtype)
    numbers = _numbers(writes)
    numbers = numbers[numbers[:, 0] != NOTHING]
    kept = _within(numbers[:, 1], ring.shape[0] * ring.shape[1], "store")
    ring.view(-1, ring.shape[-1])[numbers[kept, 1]] = tokens[numbers[kept, 0]].to(ring.dtype)


def _made(
    ring: torch.Tensor,
    tokens: torch.Tensor,
    ape: torch.Tensor,
    queries: torch.Tensor,
    lengths: torch.Tensor,
    pages: torch.Tensor,
    buffered: torch.Tensor | int,
) -> torch.Tensor:
    """The rows of the tokens that end with these queries, float32. pages: of the ring, [n, 2]. buffered: how many of
    the first are in the ring, [n, 1]."""
    ratio, (window, size) = ring.shape[1], ape.shape
    place = torch.arange(window)
    page = pages[:, torch.where(place >= window - ratio, 1, 0)].clamp(0, len(ring) - 1)
    unbuffered = (queries[:, None] - (window - 1 - place)).clamp(0, max(0, len(tokens) - 1))
    rows = torch.where((place < buffered)[..., None], ring[page, place % ratio].to(tokens.dtype), tokens[unbuffered])
    if window == ratio:
        keys, scores = rows.float().split(size, -1)
    else:  # of the tokens before, other halves count, and none of what is before the first
        early, late = rows[:, :ratio].float(), rows[:, ratio:].float()
        keys = torch.cat((early[..., :size], late[..., size : 2 * size]), 1)
        scores = torch.cat((early[..., 2 * size : 3 * size], late[..., 3 * size :]), 1)
        first = (lengths <= ratio)[:, None, None] & (place < ratio)[:, None]
        keys, scores = keys.masked_fill(first, 0.0), scores.masked_fill(first, -math.inf)
    return (keys * torch.softmax(scores + ape.float(), 1)).sum(1)


def _within(places: torch.Tensor, count: int, kind: str) -> torch.Tensor:
    inside = (places >= 0) & (places < count)
    if not inside.all():
        launch_memory.report(f"{kind} outside the state in compress", int(places[~inside][0]), count)
    return inside


def _store(
    kv: torch.Tensor,
    plan: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    freqs: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    decodes: bool,
    ratio: int,
    page_size: int,
) -> None:
    launch_memory.watched()
    numbers = _numbers(plan)
    lengths = numbers[:, 0]
    if decodes:
        rows = (lengths % ratio == 0).nonzero()[:, 0]
        places = rows
    else:
        rows = (lengths != NOTHING).nonzero()[:, 0]
        places = numbers[rows, 1] & 0xFFFF
    kernel = "fused_norm_rope_v2"
    lengths, turned = lengths[rows], dsv4_norms.normed(kv[rows], weight, eps)
    turned = dsv4_norms.rotated(turned, dsv4_norms.at(freqs, lengths - ratio, kernel))
    if kv.shape[-1] == dsv4_rows.INDEXED:
        turned = dsv4_norms.hadamard(turned)
    inside = places < len(slots)
    if not inside.all():
        launch_memory.report(f"load outside out_loc in {kernel}", int(places[~inside][0]), len(slots))
    dsv4_rows.put(cache, page_size, slots[places[inside]], turned[inside], kernel)


_WHERE = "Tensor requests, Tensor table, Tensor mapping, Tensor lengths"
_PLANNED = "int ratio, int window_page, int ring, bool by_request"
_library = torch.library.Library("eagleeye", "FRAGMENT")
for _name, _schema, _body in (
    ("dsv4_plan_decode", f"({_WHERE}, {_PLANNED}) -> Tensor", _plan_decode),
    ("dsv4_plan_prefill", f"({_WHERE}, Tensor extends, int queries, {_PLANNED}) -> (Tensor, Tensor)", _plan_prefill),
    (
        "dsv4_compress_decode",
        "(Tensor(a!) ring, Tensor tokens, Tensor(b!) out, Tensor ape, Tensor plan) -> ()",
        _decode,
    ),
    (
        "dsv4_compress_prefill",
        "(Tensor(a!) ring, Tensor tokens, Tensor(b!) out, Tensor ape, Tensor plan, Tensor writes) -> ()",
        _prefill,
    ),
    (
        "dsv4_store",
        "(Tensor kv, Tensor plan, Tensor weight, float eps, Tensor freqs, Tensor slots, Tensor(a!) cache, "
        "bool decodes, int ratio, int page_size) -> ()",
        _store,
    ),
):
    _library.define(_name + _schema)
    _library.impl(_name, _body, "CPU")

plan_decode = torch.ops.eagleeye.dsv4_plan_decode.default
plan_prefill = torch.ops.eagleeye.dsv4_plan_prefill.default
decode = torch.ops.eagleeye.dsv4_compress_decode.default
prefill = torch.ops.eagleeye.dsv4_compress_prefill.default
store = torch.ops.eagleeye.dsv4_store.default
