"""The effects of loading a checkpoint besides filling weights."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from repro.cases.case import Setup
from repro.cases.families import is_latent
from runners.engines.standins.experts import Biased, experts
from runners.recording.observer import Unsupported
from runners.releases.live import Live
from runners.releases.options import blocks
from runners.releases.options.algorithms import hot_tokens


def loaded(live: Live) -> Any:
    """The draft worker, whose model has its weights, as it is after loading: to be captured."""
    if live.setup.algorithm == "EAGLE3":
        # A checkpoint has this map among its weights.
        live.draft.hot_token_id = torch.from_numpy(hot_tokens(live.setup)).to(live.device)
    return live.draft


def complete(setup: Setup, device: str, network: Any) -> None:
    """Make of a model's filled weights what loading a checkpoint makes of them."""
    if is_latent(setup) and type(network).__name__ not in blocks.ARCHITECTURES.values():
        # Latent attention multiplies by what this makes of its weights.
        if not hasattr(network, "post_load_weights"):
            raise Unsupported(f"{type(network).__name__} completes its weights in load_weights alone in this release")
        is_nextn = {"is_nextn": True} if type(network).__name__.endswith("NextN") else {}
        network.post_load_weights(**is_nextn)
    if device == "cpu":
        _stand_in_for_experts(network)


def _stand_in_for_experts(network: torch.nn.Module) -> None:
    """Have experts computed as on a GPU: what sglang does on a CPU without AMX asks the host how many tokens go to
    each, which no graph can hold."""
    for module in network.modules():
        method: Any = getattr(module, "quant_method", None)
        if type(method).__name__ == "UnquantizedFusedMoEMethod":
            method._forward_method = _experts


def _experts(layer: Any, dispatch_output: Any) -> Any:
    """In the form of sglang's own methods."""
    tokens, chosen = dispatch_output.hidden_states, dispatch_output.topk_output
    output = experts(tokens, layer.w13_weight, layer.w2_weight, chosen.topk_weights, chosen.topk_ids, _biased(layer))
    combined: Any = importlib.import_module("sglang.srt.layers.moe.token_dispatcher")
    return combined.StandardCombineInput(hidden_states=output)


def _biased(layer: Any) -> Biased | None:
    """None of experts without biases."""
    up = getattr(layer, "w13_weight_bias", None)
    if up is None:
        return None
    config = layer.moe_runner_config
    return Biased(up=up, down=layer.w2_weight_bias, alpha=config.gemm1_alpha, limit=config.gemm1_clamp_limit)
