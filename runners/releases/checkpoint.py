"""What loading a checkpoint would have done besides filling weights."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.moe.fused_moe_native import fused_moe_forward_native
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod

from runners.releases.algorithms import hot_tokens
from runners.releases.live import Live


def loaded(live: Live, network: Any) -> Any:
    """The draft worker, whose model has its weights, as it is after loading: to be captured. network: that model."""
    if live.setup.algorithm == "EAGLE3":
        # A checkpoint has this map among its weights.
        live.draft.hot_token_id = torch.from_numpy(hot_tokens(live.setup)).to(live.device)
    if live.setup.algorithm == "NEXTN":
        network.post_load_weights(is_nextn=True)  # latent attention multiplies by what this makes of its weights
        if live.device == "cpu":
            _plain_experts(network)
    return live.draft


def _plain_experts(network: torch.nn.Module) -> None:
    """Have experts computed as sglang does under torch.compile: what it does on a CPU without AMX asks the host how
    many tokens go to each, which no graph can hold."""
    for module in network.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, UnquantizedFusedMoEMethod):
            method._forward_method = fused_moe_forward_native
