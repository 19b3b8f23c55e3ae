"""Weights of DeepSeek-V4 and its next-token layer. Residuals are several streams, which small random weights mix."""

from __future__ import annotations

from typing import Any

import torch

from repro.cases.case import Setup
from runners.releases.adapters.round.mixing import evenly, mixing

# How large scores are, how much attention's output weighs, what layers add that no draft has, and how far streams
# differ.
_SCORES, _OUTPUT, _OF_OTHERS, _MIXED = 1.4, 2.0, 0.5, 0.3
_ADDS = ("wo_b.weight", "down_proj.weight")
_ONES = ("norm.weight", "hc_attn_scale", "hc_ffn_scale", "hc_head_scale")


def fill_target(target: torch.nn.Module) -> None:
    for name, parameter in target.named_parameters():
        parameter.data.copy_(_of_target(name, parameter))


def _of_target(name: str, parameter: torch.Tensor) -> torch.Tensor:
    if parameter.dim() < 2:
        size = _SCORES if "kv_norm" in name else float(name.endswith(_ONES))
        return torch.full_like(parameter, size, device="cpu")
    if name.endswith("w2_weight"):  # which experts are chosen decides nothing
        return torch.zeros_like(parameter, device="cpu")
    values = evenly(name, tuple(parameter.shape))
    if "embed" in name:
        return values / values.square().mean(dim=1, keepdim=True).sqrt()
    if "lm_head" in name:
        return values / values.norm(dim=1, keepdim=True)
    if name.endswith("ape"):
        return values
    values = values / parameter.shape[-1] ** 0.5
    if name.endswith(("hc_attn_fn", "hc_ffn_fn", "hc_head_fn")):
        return values * _MIXED
    if name.endswith("wo_b.weight"):
        values = values * _OUTPUT
    return values * _OF_OTHERS if name.endswith(_ADDS) and "layers.0." not in name else values


def fill_draft(target: torch.nn.Module, draft: Any, setup: Setup) -> None:
    """The draft is the target's first layer. It is given the token and, times the disagreement, a random image of the
    streams."""
    sources = dict(target.named_parameters())
    for name, parameter in draft.named_parameters():
        its = name.replace("model.decoder.", "model.layers.0.").replace("shared_head.norm", "norm")
        if name.endswith("e_proj.weight"):
            values = torch.eye(setup.hidden_size)
        elif name.endswith("h_proj.weight"):
            values = setup.disagreement / 100 * mixing(name, tuple(parameter.shape))
        else:
            values = sources[its].data if its in sources else torch.ones_like(parameter)
        parameter.data.copy_(values)
