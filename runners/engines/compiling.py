"""The functions that sglang compiles: a trace has sglang's code alone, whatever the harness has around it, and
the compilers' own start is over before a worker forks its first session."""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch._dynamo import utils as dynamo_utils
from torch._subclasses import fake_tensor

from runners.engines import forked
from runners.engines.deferred import Compile, Deferring, Outgrown, TracedAhead
from runners.engines.guards import lowered

# A function that sglang compiles, and what it is called with.
Call = tuple[Callable[..., Any], tuple[Any, ...]]
# How often a function may be traced in one process, ahead or as it serves many setups: past a limit of its own, Dynamo
# would give up and run it as it is.
_TRACED_MAX = 1024
# What a session would import when it compiles first, as far as this version of PyTorch has it.
_LATE = (
    "torch._dynamo.backends.common",
    "torch._inductor.async_compile",
    "torch._inductor.codecache",
    "torch._inductor.codegen.triton",
    "torch._inductor.compile_fx",
    "torch._inductor.decomposition",
    "torch._inductor.fx_passes.joint_graph",
    "torch._inductor.fx_passes.post_grad",
    "torch._inductor.graph",
    "torch._inductor.runtime.triton_heuristics",
    "torch._inductor.scheduler",
    "triton.compiler.compiler",
    "triton.runtime.cache",
)
# What each process works out once and remembers: the table of decompositions, and hashes of all that a compiler is made
# of, which are a part of the name of whatever it keeps. Not every version has each.
_REMEMBERED = (
    ("torch._inductor.codecache", "torch_key"),
    ("torch._inductor.decomposition", "select_decomp_table"),
    ("triton.compiler.compiler", "triton_key"),
    ("triton.runtime.cache", "triton_key"),
)


def _inductor(graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """The compiler that torch.compile uses for a graph by default."""
    backends: Any = importlib.import_module("torch._dynamo.backends.registry")
    compiled: Callable[..., Any] = backends.lookup_backend("inductor")(graph, inputs)
    return compiled


class Compiling:
    """torch.compile, of which functions are called with guard bands lowered, and can be traced ahead. Dynamo would
    trace the bands as well, and trace each function again once they are gone. Mutable: see start().

    compile: torch's own. by: what it does with graphs where a function does not say.
    """

    def __init__(self, compile: Callable[..., Any], by: Compile = _inductor) -> None:
        functools.update_wrapper(self, compile)
        self._compile, self._by, self._backend = compile, by, Deferring(by)

    def __call__(self, model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(self, **options)
        if isinstance(model, torch.nn.Module):
            return self._compile(model, **options)
        if options.keys() & {"backend", "mode", "options"}:
            return _lowering(self._compile(model, **options))
        return _lowering(self._first(model, options))

    def _first(self, function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
        """The function, compiled so that it can be traced ahead, and once more for what that does not fit."""
        first = self._compile(function, backend=self._backend, **options)

        @functools.cache
        def otherwise() -> Callable[..., Any]:
            compiled: Callable[..., Any] = self._compile(_another(function), backend=self._by, **options)
            return compiled

        @functools.wraps(first)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                return first(*args, **kwargs)
            except Outgrown:
                return otherwise()(*args, **kwargs)

        return called

    def start(self, calls: Callable[[], Sequence[Call]], untouched: Callable[[], bool]) -> None:
        """Have the compilers import, make and remember what they need, and trace these calls, so that all who are
        forked later can do without. No device is touched, and no kernel is compiled. calls: of functions compiled by
        this, with arguments of the device that has not been started. untouched: whether it has not."""
        dynamo: Any = importlib.import_module("torch._dynamo.config")
        dynamo.recompile_limit = dynamo.accumulated_recompile_limit = _TRACED_MAX
        self._backend.ahead = True
        try:
            with _no_device():
                traced = calls()

                def tried() -> str:
                    _trace(traced[:1])
                    return "done" if untouched() else ""

                # A version of PyTorch that starts the device all the same is found out where that does no harm.
                if traced and not forked.answer(tried):
                    raise RuntimeError("that cannot be done, or not without the device")
                _trace(traced)
                # What is traced is not compiled. This has what compiles it imported.
                self._compile(_doubled, backend="aot_eager")(torch.ones(2))
        except Exception as error:  # each session then traces what it needs
            print(f"nothing was traced ahead: {type(error).__name__}: {error}")
        finally:
            self._backend.ahead = False
        for name in _LATE:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        for name, function_name in _REMEMBERED:
            remembered = getattr(sys.modules.get(name), function_name, None)
            if remembered is not None:
                remembered()


def _trace(calls: Sequence[Call]) -> None:
    for function, arguments in calls:
        with contextlib.suppress(TracedAhead):
            function(*arguments)


def _lowering(compiled: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compiled)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # within another one
            return compiled(*args, **kwargs)
        with lowered():
            return compiled(*args, **kwargs)

    return called


def _doubled(values: torch.Tensor) -> torch.Tensor:
    return values * 2


def _another(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with code of its own: what was traced of the first one is not looked at when it is called."""
    code = function.__code__.replace()
    return types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


@contextlib.contextmanager
def _no_device() -> Iterator[None]:
    """While entered, Dynamo sees no device whose random numbers and streams it would have to put back, and tensors of
    its kind do not start it. Starting it all the same raises an error: no fork survives that."""
    cuda = patch.multiple(
        torch.cuda, _lazy_init=_refused, get_rng_state=torch.get_rng_state, set_rng_state=lambda state: None
    )
    # Each process knows whether it has started the device for those, and sessions have to.
    started = patch.object(fake_tensor, "init_gpu_context", lambda device: None)
    indexed = patch.object(dynamo_utils, "run_node", _indexing(dynamo_utils.run_node))
    with cuda, started, indexed, patch.object(torch.accelerator, "is_available", lambda: False):
        yield


def _refused() -> None:
    raise RuntimeError("the device is not to be started")


def _indexing(run_node: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a node of Dynamo's graph on tensors without data, as it does. But what x[indices] means is asked of the
    operator: Python's brackets would make the tensor's device the current one, and start it."""

    def run(tracer: Any, node: Any, *rest: Any) -> Any:
        match rest[0] if node.target is operator.getitem else ():
            case [torch.Tensor() as values, torch.Tensor() as rows] | [
                torch.Tensor() as values,
                [torch.Tensor() as rows, slice(start=None, stop=None, step=None)],
            ]:
                return torch.ops.aten.index.Tensor(values, [rows])
        return run_node(tracer, node, *rest)

    return run
