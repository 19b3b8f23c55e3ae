"""The distance that rounding carries a step's outputs, and whether graph and eager lie further apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

from repro.traces.paths import BOTH, VARIANTS, Recorded
from repro.traces.trace import Array
from runners.engines.staging import HostArrays
from runners.releases.reference.rounding import FORMATS
from runners.sessions import memory, third_opinion
from runners.sessions.captured import Captured
from runners.sessions.passes import Passes
from runners.sessions.states import DIFFER

# The size by which inputs are moved to see whether an output hangs on rounding: a few units in the last place.
NUDGE = {torch.float32: 2.0**-21, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
# The slots in which graph and eager left different bits; asked for, and not recorded.
KV_DIFFERS = "kv_differs"


def measured(passes: Passes, names: list[str]) -> list[dict[str, Array]]:
    """Measure how far eager differs from itself; then put its first result back. The values that it gave each time
    under these names."""
    captured, inputs = passes.captured, passes.inputs
    setup, noisy = captured.setup, inputs.family.noisy
    snapshots, nudge, again = captured.snapshots, NUDGE[captured.dtype], inputs.rows
    before = snapshots.kept(snapshots.BEFORE)
    variants: list[dict[str, Array]] = []
    if inputs.asked.busiest <= setup.max_bs and inputs.family.eager_pads(setup):
        again = again.padded(setup.bucket(inputs.asked.busiest), captured.neutral)
    up, down = (inputs.rows.nudged(noisy, factor) for factor in (1 + nudge, 1 - nudge))
    for path, rows, factor in zip(VARIANTS, (again, up, down), (1.0, 1 + nudge, 1 - nudge), strict=True):
        start = before if noisy else memory.scaled(before, factor)
        snapshots.put_back(snapshots.BEFORE)
        memory.restore(captured.kv, start)
        with nullcontext() if noisy else captured.embeddings_moved(factor):
            passes.run_eager(path, rows)
        passes.see_slots(path, start)
        came = passes.came("eager")
        passes.see_rows(path, came, captured.kv)
        captured.states.see_values(passes.staging, path, inputs.requests, kept=bool(passes.paths))
        variants.append({name: came[path, name] for name in names})
    passes.staging.flush()
    snapshots.put_back(snapshots.EAGER)
    return variants


def gave_the_same(came: HostArrays, outputs: Sequence[str]) -> bool:
    """True if both paths gave the same in these outputs and left the same KV cache and states."""
    # Slot 0 is where padded rows write.
    differ = [came[place] for place in came if place[0] == Recorded.STATE_SLOTS and place[1].startswith(DIFFER)]
    return not any(map(np.any, (came[Recorded.EAGER, KV_DIFFERS], *differ))) and all(
        np.array_equal(came[Recorded.GRAPH, name], came[Recorded.EAGER, name]) for name in outputs
    )


def apart(captured: Captured, came: HostArrays, names: Sequence[str], variants: list[dict[str, Array]]) -> bool:
    """True if graph and eager lie further apart than measured noise allows; in the KV, than a hint of rounding. names:
    of their outputs."""
    graph, eager = ({name: came[path, name] for name in names} for path in BOTH)
    if third_opinion.apart(graph, eager, variants, FORMATS[captured.dtype].unit):
        return True
    between = came[Recorded.EAGER, KV_DIFFERS].astype(np.int64)
    # Padded rows write into the reserved page as they like.
    differs = torch.tensor(between[between >= captured.setup.page_size], device=captured.device)
    snapshots = captured.snapshots
    of_graph, of_eager = (
        {"kv": memory.contents(snapshots.kept(moment), differs).float().cpu().numpy()}
        for moment in (snapshots.GRAPH, snapshots.EAGER)
    )
    return third_opinion.apart(of_graph, of_eager, [], FORMATS[captured.kv[0].dtype].unit)


def scale(tensors: Sequence[torch.Tensor], factor: float, *, unevenly: bool = False) -> None:
    """Multiply these; unevenly: every other entry becomes as much smaller."""
    for tensor in tensors:
        by = torch.full_like(tensor, factor)
        if unevenly:
            by.view(-1)[1::2] = 2.0 - factor
        tensor.mul_(by)


@contextmanager
def scaled_for_now(tensors: Sequence[torch.Tensor], factor: float, *, unevenly: bool = False) -> Iterator[None]:
    """While entered, these are so many times what they were; unevenly: every other entry is as much smaller."""
    unmoved = [tensor.clone() for tensor in tensors]
    scale(tensors, factor, unevenly=unevenly)
    try:
        yield
    finally:
        for tensor, values in zip(tensors, unmoved, strict=True):
            tensor.copy_(values)
