"""sglang 0.5.14 and 0.5.15: construction in phases, and sampling is no longer the verify input's."""

from __future__ import annotations

from sglang.srt.speculative import eagle_worker_v2, multi_layer_eagle_worker_v2

from runners.releases.live import Live
from runners.releases.verify_eager import driven
from runners.releases.verify_eager.driven import ForwardBatch
from runners.releases.verify_eager.family import Verified, end
from runners.releases.verify_eager.v0_5_13 import pose_as_cuda
from runners.releases.workers.v0_5_14 import NAME, build

__all__ = ["NAME", "ForwardBatch", "build", "pose_as_cuda", "verify"]


def verify(live: Live, runner: str, verified: Verified) -> None:
    for module in (eagle_worker_v2, multi_layer_eagle_worker_v2):
        module.eagle_sample = end  # nothing else in this process samples
    driven.verify(live, runner, verified)
