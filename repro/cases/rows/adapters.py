"""The options of a server with adapters of weights (LoRA): rows of OPTIONS (repro/cases/options.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repro.cases.option import HARNESS, Need, Option
from repro.cases.rows.requests import SERVES
from repro.cases.setup import Setup

# Adapters that are loaded; a request has one of them, or none.
ADAPTERS = 2
# sglang takes no adapters with others (lora_hook.py, 0.5.23:252).
ALGORITHMS = ("EAGLE", "EAGLE3", "NGRAM", "DFLASH", "DSPARK")
TRITON, CHUNKED = "triton", "csgmv"
# The families whose adapters are driven: Llama, and one that runs as one of several ranks.
FAMILIES = ("", "glm4_moe")
# The fields of a setup without adapters.
NO_ADAPTERS: Mapping[str, Any] = {
    "enable_lora": False,
    "max_loras_per_batch": 8,
    "lora_backend": CHUNKED,
    "lora_head": False,
}
_ADAPTED = Need(lambda s, r, b: s.enable_lora, "there are no adapters without enable_lora")


def adapter_of(setup: Setup, step: int, row: int, data: int) -> int:
    """The adapter of a request, by its data and its place in the case, counted from 1; 0: none. So a prompt comes with
    several."""
    return (data + step + row) % (ADAPTERS + 1) if setup.enable_lora else 0


ROWS: tuple[Option, ...] = (
    Option(
        field="enable_lora",
        name="enable_lora",
        meaning="adapters of weights: of three requests one has the first, one the second, and one none",
        if_set=(
            SERVES,
            Need(lambda s, r, b: s.family in FAMILIES, "adapters of {s.family} models are not driven"),
            Need(lambda s, r, b: s.algorithm in ALGORITHMS, "sglang takes no adapters with {s.algorithm}"),
            Need(lambda s, r, b: not s.adaptive, "sglang takes no adapters with speculative_adaptive"),
            Need(lambda s, r, b: not s.plan_stream, "sglang takes no adapters with a stream for plans"),
            Need(lambda s, r, b: s.tp_size == 1, "adapters of ranks that share heads are not driven"),
        ),
        drawn=(True,),
        later=True,
        words="adapters of weights",
        resets=tuple(NO_ADAPTERS),
    ),
    Option(
        field="max_loras_per_batch",
        name="max_loras_per_batch",
        meaning="adapters that share a batch at most, where none counts as one",
        bounds=(1, 1 << 6),
        if_set=(
            _ADAPTED,
            # validate_lora_batch (lora_manager.py, 0.5.21:446), where all adapters are pinned.
            Need(
                lambda s, r, b: not s.dp_attention or s.max_loras_per_batch > ADAPTERS,
                "beside other ranks sglang keeps all adapters at once",
            ),
        ),
        drawn=(ADAPTERS + 1, ADAPTERS),
        later=True,
        example={"enable_lora": True, "max_loras_per_batch": ADAPTERS},
        words="{0} adapters in a batch at most",
    ),
    Option(
        field="lora_backend",
        name="lora_backend",
        meaning="the kernels of adapters",
        choices=(CHUNKED, TRITON),
        needs=(
            # LoRAManager.__init__ (lora_manager.py, 0.5.21:141).
            Need(
                lambda s, r, b: not (s.enable_lora and s.dp_attention) or s.lora_backend == TRITON,
                "sglang adapts batches beside other ranks by triton kernels alone",
            ),
        ),
        if_set=(_ADAPTED,),
        drawn=(TRITON,),
        later=True,
        example={"enable_lora": True, "lora_backend": TRITON},
        words="adapters by {0} kernels",
    ),
    Option(
        field="lora_head",
        name="lora_head",
        part=HARNESS,
        meaning="the first adapter changes the output layer (lm_head), too",
        if_set=(
            _ADAPTED,
            Need(lambda s, r, b: not s.family, "an adapter of the output layer is driven with Llama alone"),
        ),
        drawn=(True,),
        later=True,
        example={"enable_lora": True, "lora_head": True},
        words="an adapter of the output layer",
    ),
)
