"""Lengths of a batch's tensors and widths of its integers, as they are recorded of any batch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from runners.sessions.extents import Extents, widths
from runners.sessions.extents import extents as lengths

pytestmark = pytest.mark.emulated


def test_what_a_batch_has_is_found_without_its_names() -> None:
    spec = SimpleNamespace(topk_index=torch.zeros(3, 2, dtype=torch.int64), scores=torch.zeros(3), count=1)
    fields = {
        "mrope_positions": torch.zeros(3, 7, dtype=torch.int64),
        "lens": [1, 2],
        "names": ["a"],
        "spec_info": spec,
    }
    assert lengths(fields) == {"mrope_positions": 7, "lens": 2, "spec_info.topk_index": 3, "spec_info.scores": 3}
    assert widths(fields) == {"mrope_positions": 8, "spec_info.topk_index": 8}


def test_of_each_size_the_first_batch_is_noted() -> None:
    noted = Extents()
    for size, entries in ((2, 2), (2, 5), (4, 4)):
        batch = SimpleNamespace(batch_size=size, seq_lens=torch.zeros(entries), extend_num_tokens=entries)
        noted.note(batch, tokens=size, counts=(size, 2 * size))
    assert (noted.tokens, noted.gathered) == ({(2, 2), (4, 4)}, {(2, 4), (4, 8)})
    assert noted.met["seq_lens"].tolist() == [[2, 2], [4, 4]]
    assert noted.counts == {"extend_num_tokens": {(2, 2), (4, 4)}}
