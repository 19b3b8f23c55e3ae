"""Random matrices that are the same for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from repro.cases.payload import floats

_DATA = 36  # any constant: weights are part of the meaning of a seed file

_updated = False


@contextmanager
def updated() -> Iterator[None]:
    """While entered, matrices are others: those of an update of weights."""
    global _updated
    _updated = True
    try:
        yield
    finally:
        _updated = False


def mixing(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A matrix of weights that keeps the size of what it multiplies."""
    return evenly(name, shape) / shape[-1] ** 0.5


def evenly(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Values of mean 0 and variance 1."""
    return torch.from_numpy(floats(_DATA, f"{name} of an update" if _updated else name, shape)) * 3.0**0.5
