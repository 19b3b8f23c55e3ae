"""Positions in three dimensions (M-RoPE): what a draft model that sees images turns queries and keys by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from repro.cases.case import Request, Setup
from repro.cases.layout import Ints
from repro.cases.payload import integers
from repro.cases.runner_facts import RUNNER_FACTS
from runners.releases.live import Given, Rows
from runners.releases.model import ROPE_THETA

NAME = "mrope_positions"
AXES = 3  # time, height, width
_PART = 0.5  # of a head, which is turned where axes take turns


def sections(setup: Setup, part: float = 1.0) -> list[int]:
    """The number of a head's pairs that each axis turns: this part of them together, and the first axis most."""
    pairs = int(setup.head_dim * part) // 2
    each = pairs // AXES
    return [pairs - (AXES - 1) * each, each, each]


def config(setup: Setup) -> Mapping[str, Any]:
    """The part of the draft model's Hugging Face configuration."""
    return scaling(setup) if setup.mrope else {}


def scaling(setup: Setup) -> Mapping[str, Any]:
    """The part of the configuration of any such model."""
    return {"rope_scaling": {"rope_type": "default", "mrope_section": sections(setup)}}


def interleaved(setup: Setup) -> Mapping[str, Any]:
    """The same of models whose axes take turns in half a head's pairs. Outside of rounds positions have one axis."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": ROPE_THETA, "partial_rotary_factor": _PART}
    if RUNNER_FACTS[setup.runner].serves:
        rope |= {"mrope_section": sections(setup, _PART), "mrope_interleaved": True}
    return {"partial_rotary_factor": _PART, "rope_parameters": rope}


def given(setup: Setup, requests: Sequence[Request], positions: Ints) -> Given:
    """mrope_positions: [*positions.shape, axes], of positions [n, tokens]. A request with images is behind its tokens'
    positions, by mrope_position_delta, and never at 0 as padding is. Drafts are text, and sglang gives their axes the
    same position; here each has one of its own, so that an axis that is taken for another shows."""
    if not setup.mrope:
        return {}
    behind = [integers(r.data, NAME, (AXES,), r.seq_len) for r in requests]
    return {NAME: positions[:, :, None] - np.stack(behind)[:, None]}


def fields(rows: Rows) -> Mapping[str, torch.Tensor]:
    """The fields of a ForwardBatch: [axes, tokens]."""
    return {NAME: rows[NAME].flatten(0, 1).T.contiguous()} if NAME in rows.tensors else {}


def is_on(runner: Any) -> bool:
    """True if this graph runner's draft model has them."""
    owner = getattr(runner, "model_runner", None)  # a runner of several layers has one for each
    if owner is None:
        return False
    return bool(getattr(getattr(owner.model, "model", None), "is_mrope_enabled", False))


def caller(forward_batch: Any) -> Mapping[str, Any]:
    """The values that the caller may still look at, if there are any."""
    return {NAME: forward_batch.mrope_positions}
