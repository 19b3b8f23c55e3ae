"""Weights of Gemma 4 and its assistant. A norm stands behind each part of its layers, so that this, and no projection,
says how much attention and the network behind it add."""

from __future__ import annotations

from typing import Any

import torch

from repro.cases.case import Setup
from runners.releases.adapters.round.mixing import evenly, mixing

# How large scores are; how much attention adds to a token's embedding of size 1, and the network behind it. The
# assistant has both as the target has them, but for the keys of tokens that are not in the cache yet.
_SCORES, _ATTENDED, _FED = 2.0, 0.3, 2.0
_BEHIND = {"post_attention_layernorm": _ATTENDED, "post_feedforward_layernorm": _FED}


def fill_target(target: torch.nn.Module) -> None:
    for name, parameter in target.named_parameters():
        parameter.data.copy_(_of_target(name, parameter))


def _of_target(name: str, parameter: torch.Tensor) -> torch.Tensor:
    width = parameter.shape[-1]
    if parameter.dim() < 2:
        size = _SCORES / width**0.5 if "q_norm" in name else _BEHIND.get(name.split(".")[-2], 1.0)
        return torch.full_like(parameter, size, device="cpu")
    values = evenly(name, tuple(parameter.shape))
    if "embed" in name:  # the model multiplies it by the root of its width
        return values / values.norm(dim=1, keepdim=True)
    return values / values.norm(dim=1, keepdim=True) if "lm_head" in name else values / width**0.5


def fill_draft(target: torch.nn.Module, draft: Any, setup: Setup) -> None:
    """The assistant is the target, with zeros in what it is wider by. It is given the token and, times the
    disagreement, a random image of the hidden states."""
    sources = dict(target.named_parameters())
    for name, parameter in draft.named_parameters():
        if name.startswith("pre_projection"):
            half = (setup.hidden_size, setup.hidden_size)
            joined = (torch.eye(setup.hidden_size), setup.disagreement / 100 * mixing(name, half))
            values = torch.cat(joined, dim=1)
        elif name.startswith("post_projection"):
            values = torch.eye(setup.hidden_size)
        else:
            values = sources[name].data
        if parameter.dim() < 2 and len(parameter) != len(values):  # a norm, whose mean is over zeros as well
            parameter.data.fill_(float(values[0]) * (len(values) / len(parameter)) ** 0.5)
            continue
        # One head may have rows behind the vocabulary, to be a multiple of blocks, where the other has none.
        both = tuple(slice(min(sizes)) for sizes in zip(parameter.shape, values.shape, strict=True))
        parameter.data.zero_()
        parameter.data[both] = values[both].to(parameter)
