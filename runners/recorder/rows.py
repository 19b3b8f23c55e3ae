"""The classes of sglang that are recorded, from the first release to the newest, and the settings that are kept."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Hook:
    """A class of sglang's whose calls are recorded. methods: names that its call had, newest first; a method counts if
    its first argument is the batch. runner: its name here."""

    module: str
    kind: str
    methods: tuple[str, ...]
    runner: str


_SPECULATIVE = "sglang.srt.speculative."
_CALLED = ("execute", "replay")
HOOKS = (
    Hook("sglang.srt.model_executor.cuda_graph_runner", "CudaGraphRunner", _CALLED, "decode"),
    Hook("sglang.srt.model_executor.runner.decode_cuda_graph_runner", "DecodeCudaGraphRunner", _CALLED, "decode"),
    Hook(f"{_SPECULATIVE}eagle_draft_cuda_graph_runner", "EAGLEDraftCudaGraphRunner", _CALLED, "draft"),
    Hook(
        f"{_SPECULATIVE}eagle_draft_extend_cuda_graph_runner",
        "EAGLEDraftExtendCudaGraphRunner",
        _CALLED,
        "draft_extend",
    ),
    Hook(f"{_SPECULATIVE}frozen_kv_mtp_cuda_graph_runner", "FrozenKVMTPCudaGraphRunner", _CALLED, "frozen_kv_mtp"),
    # From 0.5.15 on one call prepares the graphs of all layers; before, each layer had a call with the batch.
    Hook(
        f"{_SPECULATIVE}multi_layer_eagle_draft_extend_cuda_graph_runner",
        "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner",
        ("prepare",),
        "multi_layer",
    ),
    Hook(
        f"{_SPECULATIVE}multi_layer_eagle_draft_extend_cuda_graph_runner",
        "MultiLayerEagleDraftExtendCudaGraphRunner",
        _CALLED,
        "multi_layer",
    ),
)
SCHEDULER = Hook("sglang.srt.managers.scheduler", "Scheduler", ("run_batch",), "")
ASKED = ("can_run_graph", "can_run")
# Batches of which a graph is asked that there could be.
MODES = frozenset({"DECODE", "TARGET_VERIFY", "DRAFT_EXTEND", "DRAFT_EXTEND_V2"})
SINCE = "0.5.13"
# A server's arguments that say which runners it has, and what shape: numbers, names and switches, no path and no key.
SETTINGS = (
    "attention_backend",
    "chunked_prefill_size",
    "context_length",
    "cuda_graph_bs",
    "cuda_graph_bs_decode",
    "cuda_graph_max_bs",
    "cuda_graph_max_bs_decode",
    "cuda_graph_backend_prefill",
    "cuda_graph_max_bs_prefill",
    "disable_cuda_graph",
    "disable_cuda_graph_padding",
    "disable_overlap_schedule",
    "disable_radix_cache",
    "dtype",
    "enable_deterministic_inference",
    "enable_dp_attention",
    "enable_lora",
    "enable_multi_layer_eagle",
    "enable_return_hidden_states",
    "kv_cache_dtype",
    "lora_backend",
    "max_loras_per_batch",
    "max_running_requests",
    "page_size",
    "speculative_adaptive",
    "speculative_algorithm",
    "speculative_dflash_block_size",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_num_steps",
    "speculative_use_rejection_sampling",
    "tp_size",
    "triton_attention_num_kv_splits",
)


def release() -> str:
    """The version of sglang that this process has; empty if unknown."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get("sglang"), "__version__", ""))


def adapted(version: str) -> bool:
    """True if this release has the classes above: not those before SINCE. An unknown version counts as the newest."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    return not any(numbers) or numbers >= tuple(int(number) for number in SINCE.split("."))


def settings(model_runner: Any) -> dict[str, Any]:
    """The server's arguments in SETTINGS, as they were resolved."""
    values: dict[str, Any] = {}
    context = sys.modules.get("sglang.srt.runtime_context")
    if context and hasattr(context, "get_context"):
        resolved = getattr(context.get_context(), "resolved_server_args_dict", None)
        values = resolved() if resolved else {}
    arguments = getattr(model_runner, "server_args", None)
    every = {name: values.get(name, getattr(arguments, name, None)) for name in SETTINGS}
    return {name: value for name, value in every.items() if isinstance(value, (bool, int, str, list))}
