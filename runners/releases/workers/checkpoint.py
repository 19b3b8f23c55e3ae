"""The effects of loading a checkpoint besides filling weights."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod

from runners.engines.standins.experts import experts
from runners.releases.live import Live
from runners.releases.options.algorithms import hot_tokens


def loaded(live: Live, network: Any) -> Any:
    """The draft worker, whose model has its weights, as it is after loading: to be captured. network: that model."""
    if live.setup.algorithm == "EAGLE3":
        # A checkpoint has this map among its weights.
        live.draft.hot_token_id = torch.from_numpy(hot_tokens(live.setup)).to(live.device)
    if live.setup.algorithm == "NEXTN":
        network.post_load_weights(is_nextn=True)  # latent attention multiplies by what this makes of its weights
        if live.device == "cpu":
            _stand_in_for_experts(network)
    return live.draft


def _stand_in_for_experts(network: torch.nn.Module) -> None:
    """Have experts computed as on a GPU: what sglang does on a CPU without AMX asks the host how many tokens go to
    each, which no graph can hold."""
    for module in network.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, UnquantizedFusedMoEMethod):
            method._forward_method = _experts


def _experts(layer: Any, dispatch_output: Any) -> Any:
    """In the form of sglang's own methods."""
    tokens, chosen = dispatch_output.hidden_states, dispatch_output.topk_output
    output = experts(tokens, layer.w13_weight, layer.w2_weight, chosen.topk_weights, chosen.topk_ids)
    return StandardCombineInput(hidden_states=output)
