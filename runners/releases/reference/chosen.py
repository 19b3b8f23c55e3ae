"""Choices of the largest values, which a path may make otherwise than exact arithmetic as far as rounding explains it.

A path's own choice is followed where it is known and its values are no further from the right ones than the bound of
their difference; so what comes behind a tie is judged as well.
"""

from __future__ import annotations

import torch

from runners.releases.reference import bounds


def largest(values: torch.Tensor, count: int, claimed: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """values: [1 + samples, rows, n]. claimed: the path's choice [rows, count], -1 where it is not known.

    The indices of the `count` largest, best first, [rows, count]; and, of the same shape, whether the path can have
    chosen no other: it is its own choice, or its own is wrong, or the right one is apart from all others.
    """
    order = values[0].argsort(dim=-1, descending=True, stable=True)
    exact = order[:, :count]
    ranked = _at(values, exact)
    rejected = _at(values, order[:, count:])
    beyond = torch.cat(
        (_beyond(ranked[..., :-1] - ranked[..., 1:]), _beyond(ranked[..., -1:] - rejected).all(-1, True)), -1
    )
    sighted = _sighted(values)
    known = sighted & beyond & torch.cat((torch.ones_like(beyond[:, :1]), beyond[:, :-1]), dim=-1)
    if claimed is None:
        return exact, known
    inside = (claimed >= 0) & (claimed < values.shape[-1])
    once = (claimed[:, :, None] == claimed[:, None]).sum(-1) == 1
    worse = sighted & _beyond(ranked - _at(values, claimed.clamp(0, values.shape[-1] - 1)))
    fits = inside & once & ~worse
    # One rank that is wrong takes the others along: what it pushed aside stands in their places.
    fits &= (fits | (claimed == -1)).all(-1, keepdim=True)
    return torch.where(fits, claimed, exact), known | (claimed != -1)


def largest_set(
    values: torch.Tensor, count: int, claimed: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as largest(), where order does not matter: indices rising."""
    order = values[0].argsort(dim=-1, descending=True, stable=True)
    exact = order[:, :count].sort(dim=-1).values
    if claimed is None:
        gaps = _at(values, exact)[..., :, None] - _at(values, order[:, count:])[..., None, :]
        return exact, _beyond(gaps).flatten(1).all(-1)[:, None].expand_as(exact)
    indices = claimed.clamp(0, values.shape[-1] - 1)
    rises = (claimed == indices).all(-1) & (claimed[:, 1:] > claimed[:, :-1]).all(-1)
    same = exact[:, :, None] == claimed[:, None]
    replaced = ~same.any(2)[:, :, None] & ~same.any(1)[:, None]
    worse = _beyond(_at(values, exact)[..., :, None] - _at(values, indices)[..., None, :])
    fits = rises & ~((worse & replaced).flatten(1).any(-1, True) & _sighted(values))[:, 0]
    return torch.where(fits[:, None], claimed, exact), torch.ones_like(exact, dtype=torch.bool)


def _at(values: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return values.gather(-1, indices.expand(len(values), *indices.shape))


def _sighted(values: torch.Tensor) -> torch.Tensor:
    """In which rows all values are numbers, [rows, 1]: one that is none may have any rank."""
    return ~values[0].isnan().any(-1, keepdim=True)


def _beyond(differences: torch.Tensor) -> torch.Tensor:
    """True for each difference that rounding cannot make up for, without samples."""
    return differences[0] > bounds.each(differences)
