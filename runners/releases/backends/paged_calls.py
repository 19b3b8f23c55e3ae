"""The calls of kernels that read page tables, as the graphs of a session hold them: of whichever backend."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Setup
from repro.cases.families import family_facts
from runners.engines.active import engine
from runners.releases import attention_calls


def are_made(setup: Setup) -> bool:
    """True if the setup's attention backend makes such calls."""
    return BACKEND_FACTS[setup.backend].reads_pages


def planned_within(setup: Setup) -> bool:
    """True if the runner's graphs make themselves what these calls read, in some release."""
    return setup.runner in BACKEND_FACTS[setup.backend].plans_in_graphs or family_facts(setup).plans_in_graphs


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

    def listened(
        self, kernel: Callable[..., Any], read: Callable[[Mapping[str, Any]], tuple[int, Call]]
    ) -> Callable[..., Any]:
        """The kernel, whose captured calls are noted. Before each capture sglang runs what is to be captured. read:
        makes of a call's arguments by name the number of its queries and the call."""
        signature = inspect.signature(kernel)
        takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())

        @functools.wraps(kernel)
        def listening(*args: Any, **named: Any) -> Any:
            # A release names what its own library has since; where nothing is asked of it, an older one serves.
            known = {name for name in named if takes_any or name in signature.parameters}
            kwargs = {name: value for name, value in named.items() if name in known or value}
            if engine.capturing() and attention_calls.are_own():
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                self._note(*read(bound.arguments))
            else:
                self._open = None
            return kernel(*args, **kwargs)

        return listening

    def _note(self, queries: int, call: Call) -> None:
        if self._open is None or self._open[0] != queries:
            self._open = (queries, [])
            self._graphs.setdefault(queries, []).append(self._open[1])
        self._open[1].append(call)
        self._by_graph.setdefault(engine.capturing(), []).append(call)


calls = Calls()
