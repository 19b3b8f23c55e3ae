"""sglang 0.5.17: the backend's mask and how it is laid out come in one object, and no buffer for positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch

from runners.releases.decode.family import backend
from runners.releases.live import Given, Live, Rows
from runners.releases.verify import family
from runners.releases.verify.batches import fields
from runners.releases.verify.v0_5_14 import capture, eager, graph, neutral, prepare
from runners.releases.workers.present import build

__all__ = ["FAMILY", "NAME", "batch", "build", "capture", "eager", "graph", "neutral", "prepare"]

NAME = "0.5.17"


def into_one_mask(live: Live) -> tuple[Any, ...]:
    """As build_eagle_verify_input does it (eagle_worker_common.py); the bucket's size is what such a mask holds."""
    mask = backend(live).verify_mask
    if mask is None:  # flashinfer packs it into a buffer of its own
        return live.draft.tree_mask_mode, None, True
    return mask.mode, mask.buffer, mask.is_read


def static(live: Live, runner: Any) -> Mapping[str, torch.Tensor]:
    mask = backend(live).verify_mask
    return {**family.FAMILY.static(live, runner), **({} if mask is None else {"custom_mask": mask.buffer})}


def metadata(live: Live, runner: Any, bs: int, given: Given) -> Mapping[str, torch.Tensor]:
    mask = backend(live).verify_mask
    return family.metadata_with(backend(live), live.setup, given, None if mask is None else mask.buffer)


FAMILY = replace(family.FAMILY, static=static, metadata=metadata)


def batch(live: Live, rows: Rows) -> Any:
    return ForwardBatch(**fields(live, rows, into_one_mask))
