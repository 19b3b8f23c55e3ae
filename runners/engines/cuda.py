"""Real CUDA graphs: torch.cuda.CUDAGraph with a hook at the moment of launch, nothing else changed."""

from __future__ import annotations

from collections.abc import Callable

import torch

device = "cuda"


class Graph(torch.cuda.CUDAGraph):
    """before_replay, if set, is called at each replay, just before the graph is launched."""

    before_replay: Callable[[Graph], None] | None = None

    def replay(self) -> None:
        if Graph.before_replay is not None:
            Graph.before_replay(self)
        super().replay()


def install() -> None:
    """Put the observed graph where sglang looks for CUDA graphs. Touches no device."""
    torch.cuda.CUDAGraph = Graph  # type: ignore[misc]


def capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()


def mark_host(tensor: torch.Tensor) -> None:
    """Nothing to say: a host tensor is one on the CPU."""


def synchronize() -> None:
    """Wait for the device, so that an asynchronous error surfaces here."""
    torch.cuda.synchronize()
