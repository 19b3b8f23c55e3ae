"""sglang 0.5.14 and 0.5.15: construction in phases."""

from __future__ import annotations

from runners.releases.verify_eager.driven import ForwardBatch, verify
from runners.releases.verify_eager.v0_5_13 import pose_as_cuda
from runners.releases.workers.v0_5_14 import NAME, build

__all__ = ["NAME", "ForwardBatch", "build", "pose_as_cuda", "verify"]
