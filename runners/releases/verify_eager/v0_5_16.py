"""sglang 0.5.16: both kinds of workers verify in one function, which samples; kernels have a package of their own."""

from __future__ import annotations

from sglang.kernels.ops.speculative import cache_locs
from sglang.srt.speculative import eagle_worker_common

from runners.releases.live import Live
from runners.releases.verify_eager import driven
from runners.releases.verify_eager.driven import ForwardBatch
from runners.releases.verify_eager.family import Verified, end
from runners.releases.workers.phased import as_on_gpus
from runners.releases.workers.present import build

__all__ = ["NAME", "ForwardBatch", "build", "pose_as_cuda", "verify"]

NAME = "0.5.16"


def pose_as_cuda() -> None:
    """On a CPU sglang finds no KV slots for a tree, though the kernel that does is Triton's, and a batch asks the
    backend for a length that only a CPU's has."""
    cache_locs._is_cuda = True
    as_on_gpus("sglang.srt.model_executor.forward_batch_info")


def verify(live: Live, runner: str, verified: Verified) -> None:
    eagle_worker_common.eagle_sample = end  # nothing else in this process samples
    driven.verify(live, runner, verified)
