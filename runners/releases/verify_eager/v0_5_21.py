"""sglang 0.5.21: counts of a group are checked against the group's size, which is one here."""

from __future__ import annotations

from collections.abc import Sequence

from sglang.srt.layers import dp_attention
from sglang.srt.model_executor import forward_batch_info

from runners.releases.live import Live
from runners.releases.verify_eager import v0_5_16
from runners.releases.verify_eager.driven import ForwardBatch
from runners.releases.verify_eager.family import RANK, Verified
from runners.releases.verify_eager.v0_5_16 import pose_as_cuda
from runners.releases.workers.present import build

__all__ = ["NAME", "ForwardBatch", "build", "pose_as_cuda", "verify"]

NAME = "0.5.21"


def _ours(per_rank: Sequence[int]) -> int:
    """Where in a list of all ranks ours stands."""
    return RANK


def verify(live: Live, runner: str, verified: Verified) -> None:
    for module in (dp_attention, forward_batch_info):
        module.dp_slot_in = _ours
    v0_5_16.verify(live, runner, verified)
