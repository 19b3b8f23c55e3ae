"""The batches of `decode`, on a CPU. A batch that fills its bucket is run as it is; only a padded one goes through the
runner's buffers, so what is recorded of a launch are the arguments of the compiled function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from runners.releases.adapters.decode import family as decode
from runners.releases.live import Given, Live

BUFFERS = tuple(name for name in decode.FAMILY.buffers if name != "seq_lens_cpu")


@contextmanager
def launching(runner: Any, launched: Callable[[], None]) -> Iterator[None]:
    """Each compiled function says so before it is called, and leaves what it is called with on the runner."""
    compiled = runner.graphs

    def told(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any) -> Any:
            runner.launched_with = forward_batch
            launched()
            return function(input_ids, positions, forward_batch)

        return call

    runner.graphs = {bs: told(function) for bs, function in compiled.items()}
    try:
        yield
    finally:
        runner.graphs = compiled


def sizes(runner: Any) -> tuple[int, int]:
    """The runner notes its sizes for a padded batch only."""
    bs = runner.launched_with.batch_size
    padded = any(runner.launched_with is captured for captured in runner.captured_forward_batches.values())
    return bs, runner.raw_bs if padded else bs


def nothing(live: Live, runner: Any) -> Mapping[str, torch.Tensor]:
    return {}


def no_metadata(live: Live, runner: Any, bs: int, batch: Given) -> Mapping[str, torch.Tensor]:
    """The attention operator takes req_to_token and req_pool_indices."""
    return {}


FAMILY = replace(
    decode.FAMILY,
    buffers=BUFFERS,
    static=nothing,
    metadata=no_metadata,
    input_buffers=lambda runner: runner,
    launched=lambda runner: {name: getattr(runner.launched_with, name) for name in BUFFERS},
    sizes=sizes,
    launching=launching,
)
