"""The lengths of captured batches' tensors, and the width of their integers."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from repro.traces.paths import Recorded
from repro.traces.trace import Array
from runners.engines.staging import StagingBuffer
from runners.sessions.observe.observer import Observer


class ExtentsCaptured(Observer):
    """Batches as attention met them in captures."""

    def once(self, staging: StagingBuffer) -> None:
        extents, has_ranks = self.captured.extents, self.captured.setup.dp_attention
        for name, pairs in extents.met.items():
            staging.see(Recorded.EXTENTS_CAPTURED, name, pairs)
        staging.see(Recorded.TOKENS_CAPTURED, "own", _sorted(extents.tokens).reshape(-1, 2))
        if has_ranks:
            staging.see(Recorded.TOKENS_CAPTURED, "gathered", _sorted(extents.gathered).reshape(-1, 2))
        for name, ranks in extents.ranks.items() if has_ranks else ():
            staging.see(Recorded.RANKS_CAPTURED, name, _sorted(ranks))
        for name, counts in extents.counts.items():
            staging.see(Recorded.COUNTS_CAPTURED, name, _sorted(counts))
        staging.see_numbers(Recorded.WIDTHS_CAPTURED, extents.widths)


def _sorted(rows: Collection[tuple[int, ...]]) -> Array:
    return np.array(sorted(rows))
