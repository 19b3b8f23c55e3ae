"""sglang's FlashAttention 3 backend: its module on a machine without the kernels, and which calls its graphs hold."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from runners.engines.active import engine
from runners.engines.standins import fa3, native_imports
from runners.recording.observer import HarnessError
from runners.releases import attention_calls

# With what is installed, the largest part; bundles leave it out unless they are to have it.
KERNELS = "sgl_kernel.flash_ops"
BACKEND = "sglang.srt.layers.attention.flashattention_backend"
# Where what sglang calls asks whether this GPU has the kernels; since 0.5.11, elsewhere since 0.5.17.
_DISPATCHERS = ("sglang.kernels.ops.attention.flash_attention_v3", "sglang.jit_kernel.flash_attention_v3")
# A function that is compiled as a whole where there is a GPU.
_COMPILED = "draft_decode_set_expand_metadata"


def load_backend() -> None:
    """Import the module over the stand-in, have it chosen by its name whatever this machine can do, and leave
    uncompiled what is compiled on a GPU, where it computes the same."""
    with fa3.importable():
        backend: Any = importlib.import_module(BACKEND)
    backend.merge_state_v2 = fa3.merge_state_v2
    compiled = getattr(backend, _COMPILED)
    setattr(backend, _COMPILED, inspect.unwrap(compiled))
    for name in _DISPATCHERS:
        dispatcher: Any = sys.modules.get(name)  # the backend's module imports it
        if dispatcher:
            dispatcher._is_fa3_supported = lambda device=None: True
    registry: Any = importlib.import_module("sglang.srt.layers.attention.attention_registry")
    registry.ATTENTION_BACKENDS["fa3"] = backend.FlashAttentionBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One captured call of the kernel. The tensors are those that the graph reads: page_table [sequences, pages],
    lengths [sequences], query_starts [sequences + 1]. pages: of the cache. window: keys before and behind a query's
    own, -1 for all. is_part: its result is merged with that of another call."""

    page_table: torch.Tensor
    lengths: torch.Tensor
    query_starts: torch.Tensor
    page_size: int
    causal: bool
    window: tuple[int, int]
    is_part: bool


class Calls:
    """The calls of a session's graphs, by how many queries a graph has, and by graph. Mutable: graphs are captured one
    after the other."""

    def __init__(self) -> None:
        self._graphs: dict[int, list[list[Call]]] = {}
        self._by_graph: WeakKeyDictionary[Any, list[Call]] = WeakKeyDictionary()
        self._open: tuple[int, list[Call]] | None = None
        self._launched: Any = None

    @contextmanager
    def launched(self, graph: Any) -> Iterator[None]:
        """While entered, this graph's calls are asked for: runners whose graphs have as many queries are launched."""
        self._launched = graph
        try:
            yield
        finally:
            self._launched = None

    def of(self, queries: int, sequences: int) -> list[Call]:
        """The calls of the launched graph. Where that is not said, those of the graph with so many queries; of several,
        the first with so many sequences, if one has: layers that go over other numbers of tokens have as many queries
        in other buckets. IndexError if none was captured."""
        if self._launched in self._by_graph:
            return self._by_graph[self._launched]
        if queries not in self._graphs:
            raise IndexError(f"no graph of {queries} queries: {sorted(self._graphs)}")
        graphs = self._graphs[queries]
        return next((calls for calls in graphs if calls[0].lengths.numel() == sequences), graphs[0])

    def forget(self) -> None:
        """Let go of the graphs, whose setup is closed."""
        self._graphs.clear()
        self._by_graph.clear()
        self._open = None

    def listened(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel, whose captured calls are noted. Before each capture sglang runs what is to be captured."""
        signature = inspect.signature(kernel)

        def flash_attn_with_kvcache(*args: Any, **named: Any) -> Any:
            # A release names what its own library has since; where nothing is asked of it, an older one serves.
            kwargs = {name: value for name, value in named.items() if name in signature.parameters or value}
            if engine.capturing() and attention_calls.are_own():
                self._note(signature.bind(*args, **kwargs))
            else:
                self._open = None
            return kernel(*args, **kwargs)

        return flash_attn_with_kvcache

    def _note(self, bound: inspect.BoundArguments) -> None:
        bound.apply_defaults()
        arguments = bound.arguments
        queries = len(arguments["q"])
        if self._open is None or self._open[0] != queries:
            self._open = (queries, [])
            self._graphs.setdefault(queries, []).append(self._open[1])
        call = Call(
            page_table=arguments["page_table"],
            lengths=arguments["cache_seqlens"],
            query_starts=arguments["cu_seqlens_q"],
            page_size=arguments["k_cache"].shape[1],
            causal=arguments["causal"],
            window=tuple(arguments["window_size"]),
            is_part=arguments["return_softmax_lse"],
        )
        self._open[1].append(call)
        self._by_graph.setdefault(engine.capturing(), []).append(call)


calls = Calls()


@functools.cache
def listen() -> None:
    """Note what this session's graphs will hold: to be called before any attention backend is made. A process that
    serves several setups listens once. HarnessError where a GPU is to run kernels that are not installed."""
    if engine.device == "cuda" and native_imports.stands_in(KERNELS):
        raise HarnessError(
            f"FlashAttention 3's kernels ({KERNELS}) are not installed here; bundles have them with --fa3"
        )
    module: Any = importlib.import_module(fa3.MODULE) if fa3.MODULE not in sys.modules else sys.modules[fa3.MODULE]
    module.flash_attn_with_kvcache = calls.listened(module.flash_attn_with_kvcache)
