"""runners.sessions.open, with Triton's attention given KV slot 0 for every key of an eager batch beyond all buckets."""

from __future__ import annotations

import importlib
from typing import Any

from repro.cases.case import Setup, Target
from runners.recording.observer import RunCase, Watch
from runners.sessions import open


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    attention: Any = importlib.import_module("sglang.srt.layers.attention.triton_backend")
    plan = attention.TritonAttnBackend.init_forward_metadata

    def misled(self: Any, forward_batch: Any) -> None:
        plan(self, forward_batch)
        if forward_batch.batch_size > setup.max_bs:
            self.forward_metadata.kv_indices.zero_()

    attention.TritonAttnBackend.init_forward_metadata = misled
    return open.open_session(setup, target, watch)
