"""The stand-in for CUDA's libdevice against numpy, and on a GPU the original against numpy, too."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice as original

from runners.engines.standins import libdevice

NEAR_ZERO = -np.logspace(-12, -1e-3, 400)
# Of float32, in units of the last place.
UNITS = 4


def test_log1p_is_exact_near_zero_and_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libdevice, "tl", types.SimpleNamespace(where=np.where, log=np.log))
    values = np.append(NEAR_ZERO, 0.0).astype(np.float32)
    got = libdevice.log1p(values)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, np.log1p(values.astype(np.float64)), rtol=UNITS * 2.0**-23, atol=0.0)
    with np.errstate(divide="ignore"):
        assert libdevice.log1p(np.array([-1.0], dtype=np.float32)).tolist() == [-np.inf]


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def _logarithms(values, results, count: tl.constexpr) -> None:  # type: ignore[no-untyped-def]  # Triton compiles annotations
    places = tl.arange(0, count)
    tl.store(results + places, original.log1p(tl.load(values + places)))


@pytest.mark.cuda
def test_so_is_the_original() -> None:
    values = torch.from_numpy(NEAR_ZERO[:256].astype(np.float32)).cuda()
    results = torch.empty_like(values)
    _logarithms[(1,)](values, results, 256)
    np.testing.assert_allclose(results.cpu(), np.log1p(values.cpu().double()), rtol=UNITS * 2.0**-23, atol=0.0)
