"""What a step asks besides its two paths: whether a runner takes a batch, whether both paths gave the same, and what
kernels did to memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from repro.cases.buffer_facts import TOKENS_SECOND
from repro.traces.paths import BOTH, Recorded
from repro.traces.trace import Array
from runners.engines.active import engine
from runners.engines.guards import untouched
from runners.engines.staging import HostArrays, StagingBuffer
from runners.releases.reference.rounding import FORMATS
from runners.sessions import memory, third_opinion
from runners.sessions.captured import Captured
from runners.sessions.errors import Misshapen, SglangError

GREEDY = "greedy"
# The slots in which graph and eager left different bits; asked for, and not recorded.
KV_DIFFERS = "kv_differs"


def see_memory(tape: StagingBuffer) -> None:
    """Record what kernels did to memory since this was last asked."""
    for name, value in engine.memory_seen().items():
        tape.see(Recorded.MEMORY, name, value)
    tape.hold()


def can_run(runner: Any, forward_batch: Any) -> bool:
    """Whether the runner would replay a graph for this batch."""
    asked = getattr(runner, "can_run_graph", None) or runner.can_run
    return bool(asked(forward_batch))


def captured_for(runner: Any, graph: object) -> dict[str, int]:
    """Of a graph of this runner, which batches it was captured for: `size` of them, by the key that the runner keeps it
    under, and as `greedy` whether for those of greedy requests alone, where the runner has graphs of their own for
    these. Nothing of a graph that is not found."""
    graphs = getattr(runner, "graphs", None) or getattr(getattr(runner, "backend", None), "_graphs", {})
    key = next((key for key, held in graphs.items() if held is graph), None)
    size = getattr(key, "size", key)
    found = {"size": size} if isinstance(size, int) else {}
    if any(getattr(other, "variant_label", None) == GREEDY for other in graphs):
        found["greedy"] = int(getattr(key, "variant_label", None) == GREEDY)
    return found


def rows_each(name: str, tensor: torch.Tensor, count: int) -> int:
    """How many rows of an output each of so many requests has. Misshapen, as sglang's, where some have none."""
    if tensor.shape[0] < count:
        raise SglangError(Misshapen(f"{name} has {tensor.shape[0]} rows for {count} requests"))
    return tensor.shape[0] // count


def gave_the_same(came: HostArrays, outputs: Sequence[str]) -> bool:
    """Whether both paths gave the same in these outputs and left the same KV cache."""
    # Slot 0 is where padded rows write.
    return not np.any(came[Recorded.EAGER, KV_DIFFERS]) and all(
        np.array_equal(came[Recorded.GRAPH, name], came[Recorded.EAGER, name]) for name in outputs
    )


def apart(captured: Captured, came: HostArrays, names: Sequence[str], variants: list[dict[str, Array]]) -> bool:
    """Whether graph and eager lie further apart than measured noise allows; in the KV, than a hint of rounding. names:
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


def see_bands(tape: StagingBuffer, every: Sequence[Any], came: HostArrays) -> None:
    """Record the guard bands that were broken, and how much was intact."""
    intact = 0
    for number, bands in enumerate(every):
        read = came[Recorded.GUARD, str(number)]
        broken = bands.broken(read)
        intact += 0 if broken else read.size
        for name, contents in broken.items():
            tape.see(Recorded.GUARD, name, contents)
            tape.see(Recorded.GUARD, f"{name}.want", untouched(contents.size))
        if broken:
            bands.mend()
    tape.see(Recorded.GUARD, "intact", intact)


def by_token(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """An input buffer with its tokens in the first dimension."""
    return tensor.T if name in TOKENS_SECOND else tensor
