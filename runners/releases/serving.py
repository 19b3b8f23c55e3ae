"""State that a process of sglang must let go of before it builds workers for another setup: what sglang keeps beside
them, in its modules. What does not depend on a setup stays: imports, compiled kernels, traced functions, the CUDA
context."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from runners.releases.backends import paged_calls

# Modules, and what in them is None until the first setup that needs it; not every release has each.
_NONE_AT_FIRST = {
    # Its size depends on the model; a second setup would go on with the first one's.
    "sglang.srt.layers.attention.flashinfer_backend": ("global_workspace_buffer", "global_override_indptr_cpu"),
    "sglang.srt.layers.attention.flashinfer_mla_backend": ("global_workspace_buffer",),
    # Set for a model with experts; no other is made then.
    "sglang.srt.eplb.expert_location": ("_global_expert_location_metadata",),
    "sglang.srt.state_capturer.routed_experts": ("_global_expert_capturer",),
    "sglang.srt.state_capturer.indexer_topk": ("_global_indexer_capturer",),
    # Where process groups meet, which were destroyed.
    "sglang.srt.distributed.utils": ("_global_tcp_store",),
    # Graphs of one pool share memory: it would never be given back.
    "sglang.srt.model_executor.cuda_graph_runner": ("global_graph_memory_pool",),
    "sglang.srt.model_executor.cpu_graph_runner": ("global_graph_memory_pool",),
    "sglang.srt.model_executor.piecewise_cuda_graph_runner": ("global_graph_memory_pool",),
    "sglang.srt.model_executor.runner_utils.pool": ("_global_graph_memory_pool",),
}
# Modules, and what in them gathers tensors, by the sizes of models.
_GATHERING = {
    "sglang.srt.layers.rotary_embedding.factory": "_ROPE_DICT",
    # Graph runners share buffers by name, and one that is large enough is cut for the next runner.
    "sglang.srt.model_executor.input_buffers": "_forward_input_buffer_pool",
}


def let_go() -> None:
    """Have sglang forget the setup that it was built for, and us which graphs it had."""
    paged_calls.calls.forget()
    # Since 0.5.21 it refuses to make its groups twice, unless they were destroyed in between.
    groups: Any = importlib.import_module("sglang.srt.distributed.parallel_state")
    groups.destroy_model_parallel()
    groups.destroy_distributed_environment()
    # Since 0.5.15 flags, streams, buffers and the graphs' pool are here; since 0.5.17 the arguments as well.
    context: Any = sys.modules.get("sglang.srt.runtime_context")
    if context is not None:
        context.reset_context()
    outputs: Any = sys.modules.get("sglang.srt.model_executor.graph_shared_output")
    if outputs is not None and hasattr(outputs.GraphSharedOutput, "_process_shared"):
        outputs.GraphSharedOutput._process_shared = None  # since 0.5.15, and as large as the largest so far
    # Up to 0.5.12 the inputs of latent attention's last call stay, and with them the layer that makes them.
    communicator: Any = sys.modules.get("sglang.srt.layers.communicator")
    if communicator is not None and hasattr(communicator, "ATTN_TP_CONTEXT"):
        communicator.ATTN_TP_CONTEXT.attn_inputs_ = None
    for module, names in _NONE_AT_FIRST.items():
        contents = vars(sys.modules[module]) if module in sys.modules else {}
        for name in names:
            if name in contents:
                contents[name] = None
    for module, name in _GATHERING.items():
        if module in sys.modules:
            vars(sys.modules[module]).get(name, {}).clear()
