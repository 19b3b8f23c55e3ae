"""Where sglang compiles functions of its own: what is traced is sglang's alone, whatever the harness has around it, and
the compilers' own start is over before a worker forks its first session."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch

from runners.engines.guards import lowered

# A function, and what it is called with.
Call = tuple[Callable[..., Any], tuple[Any, ...]]
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


def without_guards(compile: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile, of which functions are called with guard bands lowered. Dynamo would trace these as well, and
    trace each function again once they are gone."""

    @functools.wraps(compile)
    def compiling(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compiling, **options)
        compiled = compile(model, **options)
        return compiled if isinstance(model, torch.nn.Module) else _lowering(compiled)

    return compiling


def _lowering(compiled: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compiled)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # within another one
            return compiled(*args, **kwargs)
        with lowered():
            return compiled(*args, **kwargs)

    return called


def start(calls: Sequence[Call]) -> None:
    """Have the compilers import, make and remember what they need: of these calls, traced on the CPU, and for whatever
    is compiled first. No device is touched, and no kernel is compiled."""
    try:
        with _no_device():
            for function, arguments in calls:
                torch.compile(_another(function), dynamic=True, backend="aot_eager")(*arguments)
    except Exception as error:  # of a Dynamo that asks for more: the first function of each session then takes longer
        print(f"Dynamo was not started ahead: {type(error).__name__}: {error}")
    for name in _LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name, function_name in _REMEMBERED:
        remembered = getattr(sys.modules.get(name), function_name, None)
        if remembered is not None:
            remembered()


def _another(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with code of its own: what was traced of it is not looked at when the first one is called."""
    code = function.__code__.replace()
    return types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


@contextlib.contextmanager
def _no_device() -> Iterator[None]:
    """While entered, Dynamo sees no device whose random numbers and streams it would have to put back, and whoever asks
    for one all the same gets an error: no fork survives a device that was started."""
    cuda = patch.multiple(
        torch.cuda, _lazy_init=_refused, get_rng_state=torch.get_rng_state, set_rng_state=lambda state: None
    )
    with cuda, patch.object(torch.accelerator, "is_available", lambda: False):
        yield


def _refused() -> None:
    raise RuntimeError("the device is not to be started")
