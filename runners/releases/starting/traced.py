"""The function of sglang whose tracing takes the most of opening a session on a GPU, and what it is called with: a
worker traces it before it forks, and what the tracer then remembers serves every session."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import torch

from runners.engines.unbacked import Unbacked

_MODULE = "sglang.srt.speculative.spec_utils"
# Chooses a draft's tokens. Up to 0.5.11 the second alone is compiled, and its first step by itself.
_LATER, _ANY = "_select_top_k_tokens_later", "select_top_k_tokens"
# Sizes and branches of one are traced by themselves, all others together; so are all steps but the first.
_ROWS, _BRANCHES, _STEPS = (1, 3), (1, 2), (0, 1)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_HIDDEN = 16


def ahead(make: Unbacked) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The function as sglang compiles it, and the arguments of one call of each kind; nothing where it is not there.
    make: tensors of a shape and dtype."""
    module: Any = importlib.import_module(_MODULE)
    later, first_too = getattr(module, _LATER, None), getattr(module, _ANY, None)
    kinds = itertools.product(_DTYPES, _BRANCHES, _ROWS, _STEPS)
    if later:
        return [(later, _arguments(make, *kind)) for kind in kinds if kind[-1]]
    return [(first_too, _arguments(make, *kind)) for kind in kinds] if first_too else []


def _arguments(make: Unbacked, dtype: torch.dtype, topk: int, rows: int, step: int) -> tuple[Any, ...]:
    branches = rows * topk if step else rows
    scores = make((rows, topk), torch.float32) if step else None
    tokens = make((branches, topk), torch.int64)
    return step, make((branches, topk), torch.float32), tokens, make((branches, _HIDDEN), dtype), scores, topk
