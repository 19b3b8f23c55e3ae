"""The batches that MLP synchronisation gets to pad, and the lists of the scheduler's batches behind their forwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from repro.traces.paths import Recorded
from runners.recording.observer import Watch
from runners.releases.adapters.round.ranks import BATCH

# The batches' rows, and the lists of the scheduler's batch with an entry a request.
ROWS, LISTS = "rows", ("extend_lens", "prefix_lens", "extend_logprob_start_lens", "lora_ids")


@contextmanager
def seen(scheduler: Any, watch: Watch) -> Iterator[None]:
    """While entered, each batch is looked at; at the end all numbers are recorded, [n, 2]: requests, and entries."""
    numbers: dict[str, list[tuple[int, int]]] = defaultdict(list)
    pads, worker = BATCH.prepare_mlp_sync_batch, scheduler.draft_worker
    generates = worker.forward_batch_generation

    def pad(self: Any, *args: Any, **named: Any) -> Any:
        numbers[ROWS].append((int(self.batch_size), len(self.seq_lens)))
        return pads(self, *args, **named)

    def generate(batch: Any, *args: Any, **named: Any) -> Any:
        before = {name: (entries, len(entries)) for name in LISTS if (entries := getattr(batch, name, None))}
        result = generates(batch, *args, **named)
        for name, (entries, count) in before.items():
            numbers[name].append((count, len(entries)))
        return result

    with (
        patch.object(BATCH, "prepare_mlp_sync_batch", pad),
        patch.object(worker, "forward_batch_generation", generate),
    ):
        yield
    for name, counts in numbers.items():
        watch.see(-1, Recorded.PADDED, name, np.array(counts))
