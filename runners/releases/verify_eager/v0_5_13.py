"""sglang 0.5.13: the kernels that find KV slots have a module of their own."""

from __future__ import annotations

from sglang.srt.speculative.triton_ops import cache_locs

from runners.releases.verify_eager.driven import ForwardBatch, verify
from runners.releases.workers.v0_5_11 import build

__all__ = ["NAME", "ForwardBatch", "build", "pose_as_cuda", "verify"]

NAME = "0.5.13"


def pose_as_cuda() -> None:
    """On a CPU sglang finds no KV slots for a tree, though the kernel that does is Triton's."""
    cache_locs._is_cuda = True
