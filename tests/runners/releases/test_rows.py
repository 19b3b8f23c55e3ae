"""The rows of a batch as tensors."""

from __future__ import annotations

import pytest
import torch

from runners.releases.live import Rows

pytestmark = pytest.mark.emulated


def test_inputs_are_moved_so_that_a_norm_does_not_take_it_out() -> None:
    """MTP layers begin with a norm of the hidden states: a factor of a whole row changes nothing behind it."""
    hidden = torch.arange(1, 9, dtype=torch.float64).view(2, 4)
    factor = 1 + 2.0**-10
    moved = Rows(count=2, tensors={"hidden_states": hidden}).nudged(["hidden_states"], factor)["hidden_states"]
    assert torch.allclose(moved / hidden, torch.tensor([2 * factor - 1, 1.0, 2 * factor - 1, 1.0], dtype=torch.float64))
    before, behind = (rows / rows.square().mean(-1, keepdim=True).sqrt() for rows in (hidden, moved))
    assert (before - behind).abs().min() > 2.0**-13
