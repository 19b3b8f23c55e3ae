"""The reference's answer on a step, recorded beside the results of the step's paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from repro.cases.case import Request
from repro.traces.paths import OPINIONS, Recorded
from repro.traces.trace import Array
from runners.engines.sending import sent
from runners.engines.staging import StagingBuffer
from runners.recording.observer import Watch
from runners.sessions import memory, third_opinion
from runners.sessions.captured import Captured

Kv = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The results of each path of a step, eager first: its outputs, one row a request, and the KV cache."""

    outputs: Mapping[Recorded, Mapping[str, Array]]
    kv: Mapping[Recorded, Kv]


def ask(
    captured: Captured,
    requests: Sequence[Request],
    shown: Mapping[str, torch.Tensor],
    left: Left,
    staging: StagingBuffer,
    watch: Watch,
) -> None:
    """Record what the call should have given, and what the paths left where it should have written. Where they made
    other choices, once as eager made them and once as the graph did. shown: the batch, one row a request."""
    before = captured.snapshots.kept(captured.snapshots.BEFORE)
    for path, claimed in left.outputs.items():
        if path is not Recorded.EAGER and third_opinion.same_choices(claimed, left.outputs[Recorded.EAGER]):
            break
        opinion = captured.third_opinion.on(requests, shown, captured.table, before, claimed)
        without = third_opinion.unlike(opinion or {}, claimed)
        if without:
            watch.fact("reference", f"knows nothing of {', '.join(sorted(without))}")
        if opinion is None:
            break
        parts = {name + part for name in without for part in ("", *third_opinion.PARTS)}
        opinion = {name: array for name, array in opinion.items() if name not in parts}
        for name, array in opinion.items():
            staging.see(OPINIONS[path], name, array)
        slots = sent(torch.from_numpy(opinion.get("kv_slots", np.empty(0, dtype=np.int64))), captured.device)
        for whose, kv in left.kv.items():
            staging.see(OPINIONS[path], f"kv_{whose}", memory.contents(kv, slots))
        staging.flush()
