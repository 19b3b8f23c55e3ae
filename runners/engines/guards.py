"""Guard bands: known values before and behind every tensor that is created while the guards are up.

A kernel that runs past a buffer writes into a band instead of into a neighbour, and the band tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

BAND = 32  # elements on each side; a multiple of 16 bytes for every dtype, so kernels find the alignment they expect
_FILL = 0x5A  # every byte of a band: 0x5A5A... is a large integer and an ordinary float, and never a neutral value

_FACTORIES = {torch.zeros, torch.ones, torch.full, torch.empty}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """The bands around some buffers of one device: before, behind, before, behind, ... as bytes."""

    names: tuple[str, ...]
    slices: tuple[torch.Tensor, ...]
    filling: torch.Tensor

    @classmethod
    def around(cls, flats: dict[str, torch.Tensor]) -> Bands:
        """Of flat tensors that each begin and end with a band."""
        slices = [part.view(torch.uint8) for flat in flats.values() for part in (flat[:BAND], flat[-BAND:])]
        return cls(names=tuple(flats), slices=tuple(slices), filling=torch.full_like(torch.cat(slices), _FILL))

    def broken(self) -> torch.Tensor:
        """Whether any byte of a band has changed: a scalar on the device."""
        return (torch.cat(self.slices) != self.filling).any()

    def contents(self) -> dict[str, torch.Tensor]:
        """Both bands of each buffer, one behind the other, by the buffer's name."""
        pairs = zip(self.slices[::2], self.slices[1::2], strict=True)
        return {name: torch.cat(pair) for name, pair in zip(self.names, pairs, strict=True)}


class Guards(TorchFunctionMode):
    """While entered, factory calls return tensors with bands around them; `capturing` says when to keep out."""

    def __init__(self, capturing: Callable[[], bool]) -> None:
        super().__init__()
        self._capturing = capturing
        self._flats: dict[int, torch.Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func not in _FACTORIES or not made.numel() or not made.is_contiguous() or self._capturing():
            return made
        flat = made.new_empty(made.numel() + 2 * BAND)
        flat.view(torch.uint8).fill_(_FILL)
        inner = flat[BAND:-BAND].view(made.shape)
        inner.copy_(made)
        self._flats[flat.untyped_storage().data_ptr()] = flat
        return inner

    def bands(self, tensors: dict[str, torch.Tensor]) -> list[Bands]:
        """The bands around those of these tensors that are, or are views of, guarded ones; per device. All other
        guarded tensors are forgotten."""
        flats = {name: self._flats.get(tensor.untyped_storage().data_ptr()) for name, tensor in tensors.items()}
        found = {name: flat for name, flat in flats.items() if flat is not None}
        self._flats = {}
        devices = dict.fromkeys(flat.device for flat in found.values())
        return [
            Bands.around({name: flat for name, flat in found.items() if flat.device == device}) for device in devices
        ]


def untouched(count: int) -> bytes:
    """What bands hold as long as nobody runs past a buffer: `count` bytes."""
    return bytes([_FILL]) * count
