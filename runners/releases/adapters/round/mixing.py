"""Random matrices that are the same for ever."""

from __future__ import annotations

import torch

from repro.cases.payload import floats

_DATA = 36  # any constant: weights are part of the meaning of a seed file


def mixing(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A matrix of weights that keeps the size of what it multiplies."""
    return evenly(name, shape) / shape[-1] ** 0.5


def evenly(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Values of mean 0 and variance 1."""
    return torch.from_numpy(floats(_DATA, name, shape)) * 3.0**0.5
