"""Bounds of a right result's distance from the exact one, from the samples of rounding.py.

A result's error is a sum of many roundings, each moved along by the operations behind it: about normal, with the
spread of the samples around the exact value, which is itself only estimated. Three bounds follow, each exceeded by a
right result with probability MISSED at most:

- of each value alone: Student's t quantile times its spread;
- of the values of one token together, as their root of squares: the tail inequality for quadratic forms of subgaussian
  vectors (Hsu, Kakade, Zhang 2012), |error|^2 <= tr C + 2 sqrt(tr C^2 t) + 2 |C| t with t = -log MISSED and C the
  covariance. Errors of many values cannot all be large, so this one sees what is wrong everywhere by a little;
- of the values of all tokens together, each token's over its spread: what is wrong in every token by still less.
"""

from __future__ import annotations

import math
import statistics

import torch

# A night judges some 10^8 values: one false alarm in ten thousand nights.
MISSED = 2.0**-40

_Z = statistics.NormalDist().inv_cdf(1 - MISSED / 2)


def quantile(samples: int) -> float:
    """Student's t with so many degrees of freedom: exceeded, to either side, with probability MISSED. By Wallace's
    approximation (1959), which is off by less than a hundredth for more than 20 degrees."""
    stretched = _Z * (8 * samples + 3) / (8 * samples + 1)
    return math.sqrt(samples * math.expm1(stretched**2 / samples))


def each(values: torch.Tensor) -> torch.Tensor:
    """values [1 + samples, ...]: of each element by itself, [...]."""
    spread = (values[1:] - values[:1]).square().mean(dim=0).sqrt()
    return quantile(len(values) - 1) * spread


def together(values: torch.Tensor) -> torch.Tensor:
    """values [1 + samples, ..., n]: of the root of the sum of squares over the last dimension, [...]."""
    errors = (values[1:] - values[:1]).movedim(0, -2)  # [..., samples, n]
    samples = errors.shape[-2]
    gram = errors @ errors.transpose(-1, -2) / samples  # its eigenvalues are the estimated covariance's
    trace = gram.diagonal(dim1=-1, dim2=-2).sum(-1)
    squares = gram.square().sum((-1, -2))
    largest = torch.linalg.eigvalsh(gram)[..., -1]
    t = -math.log(MISSED)
    bound = trace + 2 * (squares * t).sqrt() + 2 * largest * t
    # The trace is estimated from so many independent values: it is that much larger where they came out small.
    freedom = samples * (trace.square() / squares.clamp(min=torch.finfo(torch.float64).tiny)).clamp(min=1.0)
    part = 2 / (9 * freedom)
    smallest = (1 - part - _Z * part.sqrt()) ** 3  # of a chi-square over its mean (Wilson and Hilferty 1931)
    return (bound / smallest).sqrt()


def spread(values: torch.Tensor) -> torch.Tensor:
    """values [1 + samples, ..., n]: the expected root of the sum of squares of the errors over the last dimension,
    [...]; infinite where there are none."""
    squares = (values[1:] - values[:1]).square().sum(-1).mean(0)
    return torch.where(squares > 0, squares.sqrt(), torch.inf)


def everything(values: torch.Tensor, spreads: torch.Tensor) -> torch.Tensor:
    """The bound of the root of the sum of squares of all errors, each token's divided by its spread: one number."""
    errors = (values - values[:1]) / spreads[..., None]
    return together(errors.flatten(1))
