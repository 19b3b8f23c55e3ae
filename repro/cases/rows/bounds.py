"""The values that the options of a setup may have.

A case replays in about a second and travels as a short text; sglang itself allows more.
"""

from __future__ import annotations

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.runner_facts import RUNNER_FACTS

RUNNERS = tuple(RUNNER_FACTS)
BACKENDS = tuple(BACKEND_FACTS)
DTYPES = ("float32", "float16", "bfloat16")
# Types of a KV cache with fewer bits than the model's, as sglang names them.
KV_DTYPES = ("fp8_e4m3", "fp8_e5m2")
# Triton multiplies blocks of them by no less than twice as many.
KV_DTYPE_ABOVE = 16
PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BATCH_MAX = 256
SLOTS_MAX = 256
CONTEXT_MAX = 8192
