"""A kernel of the emulated engine fails: whoever copies a tensor from then on is told so."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from tests.builders.misbehaving import ILLEGAL


def fail() -> None:
    torch.Tensor.clone = _told


def _told(*_: Any, **__: Any) -> NoReturn:
    raise torch.AcceleratorError(ILLEGAL)
