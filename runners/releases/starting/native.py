"""The kernels of native code that every session over a backend needs and that take longest to build."""

from __future__ import annotations

import torch

from repro.cases.backend_facts import BACKEND_FACTS
from runners.engines.building import Build

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def early(backend: str) -> list[Build]:
    """The builds to begin early: of flashinfer its norms, which take half a minute, and decode attention as it is drawn
    most."""
    if backend != "flashinfer":
        return []
    facts = BACKEND_FACTS[backend]
    dtype, head_dim = _DTYPES[facts.drawn_dtypes[0]], facts.drawn_head_dims[0]
    decode = (dtype, dtype, dtype, torch.int32, head_dim, head_dim, 0, False, False)
    return [
        ("flashinfer.jit.norm", "gen_norm_module", ()),
        ("flashinfer.jit.attention", "gen_batch_decode_module", decode),
    ]
