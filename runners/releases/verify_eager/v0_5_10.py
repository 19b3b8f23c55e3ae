"""sglang 0.5.10.post1: some fields of a verify input are spelt otherwise."""

from __future__ import annotations

from sglang.srt.speculative import eagle_info_v2

from runners.releases.live import Live
from runners.releases.verify_eager.driven import ForwardBatch, verify_spelt
from runners.releases.verify_eager.family import Verified
from runners.releases.workers.v0_5_10 import NAME, build

__all__ = ["NAME", "ForwardBatch", "build", "pose_as_cuda", "verify"]


def pose_as_cuda() -> None:
    """On a CPU sglang finds no KV slots for a tree, though the kernel that does is Triton's."""
    eagle_info_v2._is_cuda = True


def verify(live: Live, runner: str, verified: Verified) -> None:
    verify_spelt(live, runner, verified, "retrive")
