"""The types of recurrent states."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from repro.cases.families import GDN, fitted
from runners.releases.options.recurrent import prepare
from tests.builders.cases import setup_of

pytestmark = pytest.mark.emulated


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_states_of_convolutions_have_the_models_type_on_a_gpu(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel for trees does not compile with float16 and bfloat16 at once."""
    monkeypatch.setenv("SGLANG_MAMBA_CONV_DTYPE", "")
    monkeypatch.setenv("SGLANG_MAMBA_SSM_DTYPE", "")
    prepare(replace(fitted(setup_of("verify", family=GDN)), dtype=dtype), "cuda")
    assert os.environ["SGLANG_MAMBA_CONV_DTYPE"] == dtype
