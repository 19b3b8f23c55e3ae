"""The function of sglang whose tracing takes the most of opening a session on a GPU, and what it is called with, on the
CPU: a worker traces it once, and what the tracer then remembers serves every session that it forks."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch

_MODULE = "sglang.srt.speculative.spec_utils"
# Chooses a draft's tokens; up to 0.5.10 under the second name.
_NAMES = ("_select_top_k_tokens_later", "select_top_k_tokens")
# Sizes, steps and branches of one are traced by themselves, all others together.
_ROWS, _BRANCHES, _STEPS = (1, 3), (1, 2), (1, 2)
_HIDDEN = 16


def ahead() -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The function as sglang wrote it, and the arguments of one call of each kind; nothing where it is not there."""
    module: Any = importlib.import_module(_MODULE)
    function = next((getattr(module, name) for name in _NAMES if hasattr(module, name)), None)
    if function is None:
        return []
    kinds = itertools.product(_BRANCHES, _ROWS, _STEPS)
    return [(inspect.unwrap(function), _arguments(rows, topk, step)) for topk, rows, step in kinds]


def _arguments(rows: int, topk: int, step: int) -> tuple[Any, ...]:
    branches = rows * topk
    tokens = torch.ones(branches, topk, dtype=torch.int64)
    return step, torch.ones(branches, topk), tokens, torch.ones(branches, _HIDDEN), torch.ones(rows, topk), topk
