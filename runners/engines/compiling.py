"""Where sglang compiles functions of its own: what is traced is sglang's alone, whatever the harness has around it, and
the compilers' own start is over before a worker forks its first session."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from runners.engines.guards import lowered

# What a session would import when it compiles first.
_LATE = (
    "torch._dynamo.backends.common",
    "torch._inductor.async_compile",
    "torch._inductor.codecache",
    "torch._inductor.codegen.triton",
    "torch._inductor.compile_fx",
    "torch._inductor.fx_passes.joint_graph",
    "torch._inductor.fx_passes.post_grad",
    "torch._inductor.graph",
    "torch._inductor.runtime.triton_heuristics",
    "torch._inductor.scheduler",
    "triton.compiler.compiler",
)
# Hashes of all that a compiler consists of: a part of the name of whatever it keeps, and remembered.
_KEYS = (
    ("torch._inductor.codecache", "torch_key"),
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


def start() -> None:
    """Have the compilers import, make and remember what they need for a first function and keep. No device is touched:
    the function is traced on the CPU, and nothing is compiled."""
    torch.compile(_chosen, dynamic=True, backend="aot_eager")(*_inputs(3, 2), 2)
    for name in _LATE:
        importlib.import_module(name)
    decompositions: Any = importlib.import_module("torch._inductor.decomposition")
    decompositions.select_decomp_table()
    for name, key in _KEYS:
        function = getattr(importlib.import_module(name), key, None)
        if function is not None:
            function()


def _inputs(rows: int, width: int) -> tuple[torch.Tensor, ...]:
    scores = torch.ones(rows, width)
    return scores, torch.ones(rows * width, width), torch.ones(rows * width, width, dtype=torch.int64)


def _chosen(scores: torch.Tensor, chances: torch.Tensor, tokens: torch.Tensor, width: int) -> tuple[torch.Tensor, ...]:
    """The kind of function that sglang compiles: shapes that depend on one another, a choice, indices computed."""
    all_scores = (scores.unsqueeze(2) * chances.view(-1, width, width)).flatten(start_dim=1)
    best = torch.topk(all_scores, width, dim=-1)
    kept = torch.gather(tokens.reshape(-1, width * width), 1, best.indices).flatten()
    rows = best.indices.flatten() // width + torch.arange(0, tokens.shape[0], step=width).repeat_interleave(width)
    return best.values, kept, chances[rows]
