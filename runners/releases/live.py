"""The values that an adapter gives and takes: the parts of a live sglang, a batch as named tensors, and the two halves
of an adapter: a Family, which is the same for every release, and the functions of one generation of releases."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from repro.cases.case import Request, Setup
from repro.cases.layout import Ints
from repro.traces.trace import Array
from runners.engines.sending import sent
from runners.releases.reference.question import Reference

# What CUDA's allocator aligns a tensor of its own to, in bytes.
_ALIGNMENT = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A built sglang: its workers are sglang's own objects and therefore untyped. draft: None without speculation."""

    setup: Setup
    device: str
    args: Any
    target: Any
    draft: Any


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a tensor among packed ones. offset, strides: in its own elements. start, size, gap: in bytes; the
    gap is what lies between it and the next one."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    start: int
    size: int
    gap: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A batch as the caller would hand it over: `count` requests, and tensors whose first dimension is count or a
    multiple of it.

    packed: one tensor of bytes that holds all of them, at these places. on_host: the same bytes on the CPU. Only where
    all tensors are as they were made.
    """

    count: int
    tensors: Mapping[str, torch.Tensor]
    packed: torch.Tensor | None = None
    places: Mapping[str, _Place] = field(default_factory=dict)
    on_host: bytes = b""

    @classmethod
    def put(cls, count: int, values: Mapping[str, torch.Tensor | Array], device: torch.device) -> Rows:
        """Bring tensors and arrays to a device, with one copy for all."""
        places = _places(tuple((name, _dtype(value), value.shape) for name, value in values.items()))
        on_host = b"".join([part for name, value in values.items() for part in (_raw(value), places[name].gap)])
        packed = sent(_read(on_host, torch.uint8), device)
        return cls(count=count, tensors=_unpacked(packed, places), packed=packed, places=places, on_host=on_host)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def host(self, name: str) -> torch.Tensor:
        """A copy on the CPU; where its contents are known there, without waiting for the device."""
        place = self.places.get(name)
        if place is None:
            return self.tensors[name].cpu()
        return _read(self.on_host[place.start : place.start + place.size], place.dtype).view(place.shape)

    def copied(self) -> Rows:
        """The same contents in tensors of their own: a runner may change what it is given."""
        if self.packed is None:
            return replace(self, tensors={name: tensor.clone() for name, tensor in self.tensors.items()})
        packed = self.packed.clone()
        tensors = _unpacked(packed, self.places)
        return Rows(count=self.count, tensors=tensors, packed=packed, places=self.places, on_host=self.on_host)

    def joined(self, more: Mapping[str, torch.Tensor]) -> Rows:
        """With further tensors, or others in their place."""
        return Rows(count=self.count, tensors={**self.tensors, **more})

    def padded(self, bs: int, neutral: Mapping[str, int]) -> Rows:
        """Padded to bs requests as a graph pads them: each tensor with its neutral value, 0 where none is named."""

        def extended(name: str, tensor: torch.Tensor) -> torch.Tensor:
            each = tensor.shape[0] // self.count
            more = tensor.new_full(((bs - self.count) * each, *tensor.shape[1:]), neutral.get(name, 0))
            return torch.cat((tensor, more))

        return Rows(count=bs, tensors={name: extended(name, tensor) for name, tensor in self.tensors.items()})

    def nudged(self, names: Sequence[str], factor: float) -> Rows:
        """With these tensors moved by a factor close to one: every second value by twice as much, the others not. MTP
        layers begin with a norm, which takes out what all values of a row have in common."""
        moved = {}
        for name in names:
            tensor = self.tensors[name].float()
            factors = torch.ones_like(tensor[:1])
            factors[..., ::2] = 2 * factor - 1
            moved[name] = (tensor * factors).to(self.tensors[name].dtype)
        return self.joined(moved)


@functools.lru_cache(maxsize=1024)
def _places(kinds: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]) -> dict[str, _Place]:
    """The places of tensors of these names, dtypes and shapes."""
    places, start = {}, 0
    for name, dtype, shape in kinds:
        strides = tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))
        size = math.prod(shape) * dtype.itemsize
        gap = bytes(-size % _ALIGNMENT)
        places[name] = _Place(name, dtype, tuple(shape), strides, start // dtype.itemsize, start, size, gap)
        start += size + len(gap)
    return places


def _unpacked(packed: torch.Tensor, places: Mapping[str, _Place]) -> dict[str, torch.Tensor]:
    """Views of the packed bytes."""
    bases: dict[torch.dtype, torch.Tensor] = {}
    unpacked = {}
    for name, place in places.items():
        base = bases.get(place.dtype)
        if base is None:
            base = bases[place.dtype] = packed.view(place.dtype)
        unpacked[name] = base.as_strided(place.shape, place.strides, place.offset)
    return unpacked


def _read(data: bytes, dtype: torch.dtype) -> torch.Tensor:
    """The bytes as a tensor of its own; torch has no empty buffers."""
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def _dtype(value: torch.Tensor | Array) -> torch.dtype:
    return value.dtype if isinstance(value, torch.Tensor) else _DTYPES[value.dtype]


def _raw(value: torch.Tensor | Array) -> bytes:
    return (value.contiguous().view(torch.uint8).numpy() if isinstance(value, torch.Tensor) else value).tobytes()


_DTYPES = {np.dtype(name): getattr(torch, name) for name in ("bool", "int32", "int64", "float32")}


# What a path returns: named tensors, as views that the next replay may overwrite; count rows or a multiple of it.
Outputs = Mapping[str, torch.Tensor]
Given = Mapping[str, Array]
# Hidden states that come besides a target's logits; absent unless a batch asks for them.
RETURNED = "returned_hidden_states"


def buffers_of(runner: Any) -> Any:
    """The input buffers of a graph runner."""
    return runner.buffers


def sizes_of(runner: Any) -> tuple[int, int]:
    """The bucket and the number of requests of the replay under way."""
    return runner.bs, runner.raw_bs


def mha_cache(model_runner: Any) -> list[torch.Tensor]:
    """The KV cache of a model with multi-head attention: keys and values of each layer, [kv slots, heads, head_dim]."""
    return keys_and_values(model_runner.token_to_kv_pool)


def keys_and_values(pool: Any) -> list[torch.Tensor]:
    """Keys and values in their dtype: pools keep those of eight bits as bytes."""
    return [tensor.view(pool.dtype) for tensor in (*pool.k_buffer, *pool.v_buffer)]


def no_others(live: Live) -> Sequence[Any]:
    """No other model runs before the call."""
    return ()


def no_reference(live: Live) -> Reference | None:
    """No float64 reference exists for this runner."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The batches of one runner, as data that is the same in every release.

    given: the batch as host arrays under their names in the trace, one row per request: of the setup, req_to_token
    and the requests. flat: those of them that sglang takes as one row of all. noisy: those in the model's dtype, by
    moving which rounding noise is measured; without any, the KV cache and the token embeddings are moved. buffers:
    the runner's input buffers that are watched. caller: what of a ForwardBatch its caller may look at afterwards.
    model_runner: the one whose weights and KV cache are used. kv: that cache. prefix: how many tokens of a request
    are in it before the call. configs: Hugging Face configurations of target and draft model. static: the tensors
    besides input buffers and KV cache that outlive a call, by name. metadata: what attention reads at launch, of the
    live sglang, the runner, the bucket and the batch. input_buffers, sizes: where the runner keeps its buffers,
    bucket and batch size. launching: calls its second argument at each launch while it is entered; None: where the
    engine's graphs say so. others: further model runners that run before the call, whose KV caches hold the requests'
    prefixes as well. launched: what the launch under way is given, by the buffers' names, with the bucket's rows,
    where that is not always the buffers. eager_pads: whether eager can run a batch that is padded as a graph pads it.
    metadata_after: whether a graph may make itself what its attention reads, so that metadata is recorded when it has
    run. drafts: whether branches are drafted in the call or just before it, each of which may read a copy of the
    prefix's last page. reference: the same call in float64, of the live sglang whose weights it reads; None where there
    is no such thing.
    """

    given: Callable[[Setup, Ints, Sequence[Request]], Given]
    flat: frozenset[str]
    noisy: tuple[str, ...]
    buffers: tuple[str, ...]
    caller: Callable[[Any], Mapping[str, Any]]
    model_runner: Callable[[Live], Any]
    configs: Callable[[Setup], tuple[Mapping[str, Any], Mapping[str, Any]]]
    static: Callable[[Live, Any], Mapping[str, torch.Tensor]]
    metadata: Callable[[Live, Any, int, Given], Mapping[str, torch.Tensor]]
    prefix: Callable[[Setup, Request], int]
    kv: Callable[[Any], list[torch.Tensor]] = mha_cache
    input_buffers: Callable[[Any], Any] = buffers_of
    sizes: Callable[[Any], tuple[int, int]] = sizes_of
    launching: Callable[[Any, Callable[[], None]], AbstractContextManager[None]] | None = None
    eager_pads: Callable[[Setup], bool] = lambda setup: True
    metadata_after: Callable[[Setup], bool] = lambda setup: False
    drafts: bool = False
    others: Callable[[Live], Sequence[Any]] = no_others
    launched: Callable[[Any], Mapping[str, torch.Tensor]] | None = None
    reference: Callable[[Live], Reference | None] = no_reference
    kept: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """The parts of an adapter that decode a token of each request, eagerly."""

    inputs: Callable[[Setup, Ints, Sequence[Request]], Given]
    batch: Callable[[Live, Rows], Any]
    eager: Callable[[Live, Any], Outputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The functions that drive one generation of sglang, each of a module of this package.

    build: construct workers for a setup. capture: build the graph runner, which captures.
    batch: make a ForwardBatch of rows. graph, eager: run one. neutral: what padded rows hold where it is not zero.
    prepare: what other models make of the rows before the call, as further tensors of them. accepted, commit: of
    recurrent layers, which tokens of a batch's trees are accepted, and what follows the call then; it keeps states in
    the slots that it is handed. decode: the parts of the adapter that decodes the same model's tokens one by one.
    """

    name: str
    family: Family
    build: Callable[[Setup, str, Any], Live]
    capture: Callable[[Live], Any]
    batch: Callable[[Live, Rows], Any]
    graph: Callable[[Any, Any], Outputs]
    eager: Callable[[Live, Any], Outputs]
    neutral: Callable[[Live], Mapping[str, int]]
    prepare: Callable[[Live, Rows], Mapping[str, torch.Tensor]] | None = None
    accepted: Callable[[Any, Sequence[Request]], list[list[tuple[int, int]]]] | None = None
    commit: Callable[[Live, Any, Sequence[Sequence[tuple[int, int]]], torch.Tensor], None] | None = None
    decode: Decode | None = None
