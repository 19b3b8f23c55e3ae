"""The sizes that cases draw for models with latent attention: those that sglang's kernel in front of the draft's layer
takes on a GPU (fused_eh_norm, since 0.5.15.post1), half precision and multiples of 256 in (256, 8192].

The same on every engine and release, so that a case means one thing. A case with others is valid: older seeds have
them, and sglang refuses them there (runners/releases/refusals.py).
"""

from __future__ import annotations

from dataclasses import replace

from repro.cases.case import Setup
from repro.cases.runner_facts import LATENT

# The smaller, and one that three heads divide.
LATENT_HIDDEN_SIZES = (512, 768)
LATENT_DTYPES = ("float16", "bfloat16")


def fitted(setup: Setup) -> Setup:
    """A setup that was drawn for another algorithm, with a hidden size and a dtype for its own."""
    if setup.algorithm not in LATENT:
        return setup
    hidden_size = next(size for size in LATENT_HIDDEN_SIZES if size % setup.num_heads == 0)
    dtype = setup.dtype if setup.dtype in LATENT_DTYPES else LATENT_DTYPES[0]
    return replace(setup, hidden_size=hidden_size, dtype=dtype)
