"""A trace's record as values that can be compared for equality."""

from __future__ import annotations

import numpy as np

from repro.traces.trace import RecordedArray, Trace


def bits(trace: Trace) -> list[tuple[object, ...]]:
    """Everything, but for what lies in KV slot 0: all padded rows write there, and on a GPU any of them may be last."""
    real = {(s.step, s.path): s.array != 0 for s in trace.seen if s.name == "kv_slots"}

    def told(seen: RecordedArray) -> tuple[object, ...]:
        array = seen.array
        if seen.name in ("kv_slots", "kv_rows"):
            array = np.ascontiguousarray(array[real[seen.step, seen.path]])
        return (seen.step, seen.path, seen.name, array.dtype.str, array.shape, array.tobytes())

    return [told(seen) for seen in trace.seen]
