"""Guard bands: known values before and behind every tensor that is created while the guards are up.

A kernel that runs past a buffer writes into a band instead of into a neighbour, and the band tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

BAND = 32  # elements on each side; a multiple of 16 bytes for every dtype, so kernels find the alignment they expect
_FILL = 0x5A  # every byte of a band: 0x5A5A... is a large integer and an ordinary float, and never a neutral value

_FACTORIES = {torch.zeros, torch.ones, torch.full, torch.empty}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A tensor together with the bands around it. flat: band, contents, band."""

    flat: torch.Tensor

    def bands(self) -> torch.Tensor:
        """Both bands one after the other, as bytes: [2 * BAND * itemsize]."""
        return torch.cat((self.flat[:BAND], self.flat[-BAND:])).view(torch.uint8)


class Guards(TorchFunctionMode):
    """While entered, factory calls return tensors with bands around them; `capturing` says when to keep out."""

    def __init__(self, capturing: Callable[[], bool]) -> None:
        super().__init__()
        self._capturing = capturing
        self._guarded: dict[int, Guarded] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func not in _FACTORIES or not made.numel() or not made.is_contiguous() or self._capturing():
            return made
        flat = made.new_empty(made.numel() + 2 * BAND)
        flat.view(torch.uint8).fill_(_FILL)
        inner = flat[BAND:-BAND].view(made.shape)
        inner.copy_(made)
        self._guarded[flat.untyped_storage().data_ptr()] = Guarded(flat=flat)
        return inner

    def around(self, tensor: torch.Tensor) -> Guarded | None:
        """The bands around the buffer that this tensor is, or is a view of."""
        return self._guarded.get(tensor.untyped_storage().data_ptr())

    def keep(self, tensors: dict[str, torch.Tensor]) -> dict[str, Guarded]:
        """The guarded ones of these tensors, by name; all others are forgotten."""
        found = {name: self.around(tensor) for name, tensor in tensors.items()}
        kept = {name: guarded for name, guarded in found.items() if guarded is not None}
        self._guarded = {g.flat.untyped_storage().data_ptr(): g for g in kept.values()}
        return kept


def untouched(count: int) -> bytes:
    """What the bands of a buffer hold as long as nobody runs past it: `count` bytes."""
    return bytes([_FILL]) * count


assert math.gcd(BAND, 16) == 16
