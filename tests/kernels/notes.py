"""The results of running kernels, by name, and the values that they are given: for interpreted.py."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl

Results = dict[str, list[str]]
RESULTS: Results = {}
N = 8


def note(name: str, value: Any) -> None:
    """Keep a tensor of a running kernel, or of memory, under a name of its own."""
    assert name not in RESULTS, name
    if isinstance(value, torch.Tensor):
        kind, data = "memory", value.detach().clone().view(torch.uint8).numpy()
    else:
        kind, data = str(value.type), value.handle.data
    RESULTS[name] = [kind, str(data.dtype), str(data.shape), np.ascontiguousarray(data).tobytes().hex()]


def attempt(name: str, work: Callable[[], Any]) -> None:
    """Keep what this gives, or that it cannot be done."""
    try:
        value = work()
    except Exception as error:
        RESULTS[name] = ["raised", type(error).__name__, "", str(error).splitlines()[0] if str(error) else ""]
    else:
        note(name, value)


def function(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(operator, name, None) or getattr(tl, name)
    return function


# No zero among what is divided by; at both ends what overflows, and floats that are rounded.
VALUES: dict[str, list[float]] = {
    "int8": [-128, 127, -1, 1, 5, -7, 64, 99],
    "uint8": [255, 1, 2, 128, 200, 7, 31, 3],
    "int16": [-(2**15), 2**15 - 1, -1, 1, 300, -300, 77, 2],
    "int32": [-(2**31), 2**31 - 1, -1, 1, 65536, -65537, 12345, 7],
    "int64": [-(2**63), 2**63 - 1, -1, 1, 2**31, -(2**33), 2**53 + 1, 3],
    "float16": [0.1, -2.5, 65504.0, 6e-8, -1.0, 1.0, 3.14159, 2048.0],
    "float32": [0.1, -2.5, 3.4e38, 1e-45, -1.0, 16777217.0, 3.14159, -0.0078125],
    "float64": [0.1, -2.5, 1e308, 5e-324, -1.0, 9007199254740993.0, 3.14159, 1e-3],
}


def given(kind: str, turn: int = 0) -> torch.Tensor:
    values = VALUES[kind]
    return torch.tensor(values[turn:] + values[:turn], dtype=getattr(torch, kind))
