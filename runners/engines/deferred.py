"""Graphs that are traced before a process forks and compiled behind it: tracing is most of what compiling costs, and
needs no device; code for a device cannot be loaded before it is started, and no fork survives that."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import TracingContext, tracing

# What makes of a graph and of inputs like those that it will be called with a function to call instead.
Compile = Callable[[Any, Sequence[Any]], Callable[..., Any]]


class TracedAhead(Exception):
    """A graph was traced, and is not to run."""


class Outgrown(Exception):
    """A trace made ahead does not serve: what the compiler took for granted of the sizes that it was shown does not
    hold for these, say."""


class Deferring:
    """A backend for torch.compile. While `ahead` is set, its graphs are compiled when they are first called after that,
    else as they come. Mutable."""

    def __init__(self, compile: Compile) -> None:
        self.ahead = False
        self._compile = compile

    def __call__(self, graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        return _Deferred(self, self._compile, graph, inputs) if self.ahead else self._compile(graph, inputs)


class _Deferred:
    """A graph that was traced ahead, and is compiled when it is first called.

    What Dynamo asks before it calls it was written down when it was traced. What the compiler takes for granted on top
    of that is asked here.
    """

    def __init__(self, backend: Deferring, compile: Compile, graph: Any, inputs: Sequence[Any]) -> None:
        self._backend, self._compile, self._graph, self._inputs = backend, compile, graph, inputs
        self._context = TracingContext.get()

    def __call__(self, *arguments: Any) -> Any:
        """TracedAhead as long as the backend only has things traced; Outgrown if the graph's code does not fit these
        arguments."""
        if self._backend.ahead:
            raise TracedAhead
        if self._run is None:
            raise Outgrown
        return self._run(*arguments)

    @functools.cached_property
    def _run(self) -> Callable[..., Any] | None:
        """The compiled graph; None where it cannot be had, or takes more than sizes for granted."""
        fake_mode = self._context.fake_mode
        assert fake_mode is not None and fake_mode.shape_env is not None  # of whatever Dynamo has traced
        environment, guards = fake_mode.shape_env, self._context.guards_context.aotautograd_guards
        known, known_asked = len(environment.guards), len(guards)
        try:
            with tracing(self._context):
                compiled = self._compile(self._graph, self._inputs)
        except Exception:  # whether it is the compiler's own shows where nothing was traced ahead
            return None
        if len(guards) > known_asked:
            return None
        places = [n for n, value in enumerate(self._inputs) if isinstance(value, torch.SymInt)]
        sizes = [self._inputs[n] for n in places]
        code = environment.produce_guards_expression(sizes, guards=environment.guards[known:])

        @functools.lru_cache(maxsize=1024)
        def holds(lengths: tuple[int, ...]) -> bool:
            return code is None or bool(environment.evaluate_guards_expression(code, lengths))

        def run(*arguments: Any) -> Any:
            if not holds(tuple(arguments[n] for n in places)):
                raise Outgrown
            return compiled(*arguments)

        return run
