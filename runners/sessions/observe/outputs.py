"""The outputs that a pass gives its real requests."""

from __future__ import annotations

import torch

from repro.cases.buffer_facts import LOGITS
from repro.traces.paths import Recorded
from runners.releases.live import Outputs
from runners.sessions.errors import Misshapen, SglangError
from runners.sessions.observe.observer import Call, Observer


class PassOutputs(Observer):
    """The rows of real requests: a pass over a padded batch gives more. And how many rows of logits a graph gives for
    each request, where ranks count by that."""

    def after(self, call: Call, outputs: Outputs) -> None:
        real = len(call.requests)
        if not real:
            return
        for name, tensor in call.asked(outputs).items():
            each = _rows_each(name, tensor, call.count)
            if call.by_graph and name in LOGITS and self.captured.setup.dp_attention:
                call.staging.see(Recorded.LOGITS, "rows of a request", each)
            real_rows = tensor if tensor.shape[0] == each * real else tensor[: each * real]
            call.staging.see(call.path, name, real_rows, rows=real if each > 1 else 0)


def _rows_each(name: str, tensor: torch.Tensor, count: int) -> int:
    """The rows of an output that each of so many requests has. Misshapen, as sglang's, where some have none."""
    if tensor.shape[0] < count:
        raise SglangError(Misshapen(f"{name} has {tensor.shape[0]} rows for {count} requests"))
    return tensor.shape[0] // count
