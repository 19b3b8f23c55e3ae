"""The runner's buffers when a graph is launched, and what their padded rows must hold."""

from __future__ import annotations

import torch

from repro.cases.buffer_facts import TOKENS_SECOND
from repro.traces.paths import Recorded
from runners.engines.staging import StagingBuffer
from runners.sessions.observe.observer import Call, Observer


class Launch(Observer):
    """The first launch of a call; a runner of several graphs launches more."""

    def once(self, staging: StagingBuffer) -> None:
        for name in self.captured.buffers:
            staging.see(Recorded.NEUTRAL, name, self.captured.neutral.get(name.removesuffix("_cpu"), 0))

    def launched(self, call: Call) -> None:
        if call.launches > 1:
            return
        captured, family, staging = self.captured, self.captured.adapter.family, call.staging
        bs, raw_bs = family.sizes(captured.runner)
        staging.see(Recorded.LAUNCH, "bs", bs)
        staging.see(Recorded.LAUNCH, "raw_bs", raw_bs)
        for name, tensor in captured.gathered().items():
            staging.see(Recorded.GATHERED, name, tensor)
        buffers = family.launched(captured.runner) if family.launched else captured.buffers
        for name, tensor in buffers.items():
            rows = bs if family.launched else captured.setup.max_bs
            staging.see(Recorded.LAUNCH, name, _by_token(name, tensor), rows=rows)


def _by_token(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """An input buffer with its tokens in the first dimension."""
    return tensor.T if name in TOKENS_SECOND else tensor
