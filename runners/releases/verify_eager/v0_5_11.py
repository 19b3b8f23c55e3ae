"""sglang 0.5.11 and 0.5.12: other workers, and the fields of a verify input spelt right."""

from __future__ import annotations

from runners.releases.verify_eager.driven import ForwardBatch, verify
from runners.releases.verify_eager.v0_5_10 import pose_as_cuda
from runners.releases.workers.v0_5_11 import NAME, build

__all__ = ["NAME", "ForwardBatch", "build", "pose_as_cuda", "verify"]
