"""Weights of target and draft with which texts depend on the whole prefix, and drafts agree as often as is wanted."""

from __future__ import annotations

from typing import Any

import torch

from repro.cases.payload import floats

_DATA = 36  # any constant: weights are part of the meaning of a seed file
# How much scores and attention's output weigh: enough that a wrong row of a prefix changes logits, and the text soon.
_SCORES, _OUTPUT = 1.4, 2.0


def fill(target: torch.nn.Module, draft: torch.nn.Module, disagreement: float) -> None:
    """The draft is the target's own layer. It is given the token and, times `disagreement`, a random image of the
    hidden states: at 0 it mostly drafts what the target says, and a wrong hidden state never changes the text."""
    for name, parameter in target.named_parameters():
        parameter.data.copy_(_of_target(name, parameter, target.config))
    sources = dict(target.named_parameters())
    for name, parameter in draft.named_parameters():
        if name.endswith("fc.weight"):
            width = parameter.shape[0]
            mixed = disagreement * _evenly(name, (width, width)) / width**0.5
            parameter.data.copy_(torch.cat((torch.eye(width), mixed), dim=1))
        elif name.endswith("fc.bias"):
            parameter.data.zero_()
        elif parameter.dim() < 2 and not _same(name, sources):
            parameter.data.fill_(1.0)
        else:
            parameter.data.copy_(sources[_same(name, sources)].data)


def _same(name: str, sources: dict[str, torch.nn.Parameter]) -> str:
    """The parameter of the target with the longest end in common; empty if not even the last two parts are."""
    parts = name.split(".")
    ends = [".".join(parts[start:]) for start in range(len(parts) - 1)]
    return next((each for end in ends for each in sources if each == end or each.endswith(f".{end}")), "")


def _of_target(name: str, parameter: torch.Tensor, config: Any) -> torch.Tensor:
    if parameter.dim() < 2:
        return torch.ones_like(parameter, device="cpu")
    values = _evenly(name, tuple(parameter.shape))
    if "embed" in name:
        return values / values.square().mean(dim=1, keepdim=True).sqrt()
    if "lm_head" in name:
        return values / values.norm(dim=1, keepdim=True)
    values = values / parameter.shape[1] ** 0.5
    if "qkv_proj" in name:
        size = config.head_dim
        scored = size * (config.num_attention_heads + config.num_key_value_heads)
        values[:scored] *= _SCORES
    return values * _OUTPUT if "o_proj" in name else values


def _evenly(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Values of mean 0 and variance 1."""
    return torch.from_numpy(floats(_DATA, name, shape)) * 3.0**0.5
