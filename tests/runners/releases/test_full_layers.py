"""The metadata of a backend of two: that of its full layers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from repro.cases.families import GDN, fitted
from runners.releases.backends.eager_metadata import eager_metadata
from tests.builders.cases import setup_of

pytestmark = pytest.mark.emulated


def test_metadata_of_an_eager_pass_is_read_below_a_hybrid_backend() -> None:
    """HybridLinearAttnBackend has none of its own in any release."""
    setup = fitted(setup_of("verify", family=GDN))
    indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([7, 8, 9, 4])
    full = SimpleNamespace(forward_metadata=SimpleNamespace(kv_indptr=indptr, kv_indices=indices))
    for backend in (full, SimpleNamespace(full_attn_backend=full)):
        metadata = eager_metadata(setup, backend)
        assert metadata["kv_indptr"].tolist() == [[0, 2, 3]]
        assert metadata["kv_indices"].tolist() == [[7, 8, 9, -1]]
