"""The collectives of each forward of a scheduler's worker, in their order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from typing import Any
from unittest.mock import patch

import numpy as np

from repro.traces.paths import Recorded
from runners.recording.observer import Watch
from runners.releases.adapters.round.collectives import CALLS
from runners.releases.adapters.round.ranks import BATCH


@contextmanager
def heard(scheduler: Any, watch: Watch, way: str) -> Iterator[None]:
    """While entered, all are noted; at the end they are recorded under this name, in JSON."""
    worker, forwards, modes = scheduler.draft_worker, list[Any](), list[str]()
    generates, pads = worker.forward_batch_generation, BATCH.prepare_mlp_sync_batch

    def pad(self: Any, *args: Any, **named: Any) -> Any:
        result = pads(self, *args, **named)
        modes.append(str(getattr(self.dp_padding_mode, "name", None)))
        return result

    def generate(batch: Any, *args: Any, **named: Any) -> Any:
        forward = _told(batch)
        CALLS.made.clear()
        modes.clear()
        result = generates(batch, *args, **named)
        forwards.append(forward | {"padding": list(modes), "calls": [astuple(call) for call in CALLS.made]})
        return result

    with (
        patch.object(worker, "forward_batch_generation", generate),
        patch.object(BATCH, "prepare_mlp_sync_batch", pad),
    ):
        yield
    watch.see(-1, Recorded.COLLECTIVES, way, np.frombuffer(json.dumps(forwards).encode(), np.uint8))


def _told(batch: Any) -> dict[str, Any]:
    """Facts about a forward, from the scheduler's batch."""
    mode, sampling = batch.forward_mode, batch.sampling_info
    return {
        "requests": 0 if mode.is_idle() else len(batch.reqs),
        "prefills": bool(mode.is_extend() or batch.is_extend_in_batch),
        "samples": bool(not mode.is_idle() and sampling is not None and not sampling.is_all_greedy),
    }
