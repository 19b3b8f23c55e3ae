"""Experts of a model on a machine without a GPU, computed so that a graph can hold it."""

from __future__ import annotations

import torch
from sglang.srt.layers.moe.fused_moe_native import fused_moe_forward_native
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod


def plain_experts(network: torch.nn.Module) -> None:
    """Have the experts computed as sglang does under torch.compile: what it does on a CPU without AMX asks the host how
    many tokens go to each."""
    for module in network.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, UnquantizedFusedMoEMethod):
            method._forward_method = fused_moe_forward_native
