"""Drafts that rounds accepted."""

from __future__ import annotations

import numpy as np

from repro.traces.trace import Trace


def most_accepted(trace: Trace) -> int:
    """The most tokens that a request got in one round of the graphs."""
    seen = [each.array for each in trace.seen if (each.path, each.name) == ("round_graph", "accepted")]
    return int(np.concatenate(seen).max())
