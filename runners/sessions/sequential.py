"""Decoding the tokens that a verify accepted one after another: what their states must be."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from repro.cases.case import Request
from runners.releases.live import Rows
from runners.sessions.noise import NUDGE
from runners.sessions.passes import Passes
from runners.sessions.states import Path

SEQUENTIAL, NUDGED = "sequential", "sequential_nudged"


def see(passes: Passes) -> None:
    """Record the states that sequential decoding leaves, from the memory before the call, and once more with token
    embeddings moved by rounding noise; then put eager's result back."""
    captured, inputs, paths = passes.captured, passes.inputs, passes.paths
    snapshots = captured.snapshots
    for name, factor in ((SEQUENTIAL, 1.0), (NUDGED, 1 + NUDGE[captured.dtype])):
        snapshots.put_back(snapshots.BEFORE)
        inputs.watch.at(inputs.number, name)
        with captured.embeddings_moved(factor) if factor != 1.0 else nullcontext():
            for number in range(max(map(len, paths))):
                _decode(
                    passes,
                    [(r, path) for r, path in zip(inputs.requests, paths, strict=True) if len(path) > number],
                    number,
                )
        captured.states.see_values(passes.staging, name, inputs.requests, kept=True)
        passes.came("eager")
    snapshots.put_back(snapshots.EAGER)


def _decode(passes: Passes, those: Sequence[tuple[Request, Path]], number: int) -> None:
    """Decode the token of this number of each of these requests, and keep the states that then are to be kept."""
    captured, decode = passes.captured, passes.captured.adapter.decode
    assert decode is not None
    requests = [replace(request, seq_len=request.seq_len + number + 1) for request, _ in those]
    rows = dict(decode.inputs(captured.setup, captured.table, requests))
    rows["input_ids"] = rows["input_ids"].copy()
    rows["input_ids"][:] = [path[number][1] for _, path in those]
    with captured.timed("eager", passes.watch):
        decode.eager(captured.live, decode.batch(captured.live, Rows.put(len(requests), rows, captured.device)))
    states = captured.states
    states.keep([r for r, _ in those if states.keeps(replace(r, seq_len=r.seq_len + number), 1)])
