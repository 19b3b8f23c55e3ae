"""sglang 0.5.16: workers of newer generations."""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPDraftWorker

from repro.cases.case import Setup
from runners.releases.draft.v0_5_14 import graph
from runners.releases.frozen_kv_mtp.every import batch_fields, bind, capture, eager, neutral, pools
from runners.releases.frozen_kv_mtp.family import FAMILY
from runners.releases.live import Live, Rows
from runners.releases.model import Folders
from runners.releases.workers.present import in_phases, server_args

__all__ = ["NAME", "batch", "build", "capture", "eager", "graph", "neutral"]

NAME = "0.5.16"


def build(setup: Setup, device: str, models: Folders) -> Live:
    arguments = server_args(setup, device, models) | pools(setup)
    live = in_phases(setup, device, arguments, FrozenKVMTPDraftWorker, lambda live: [FAMILY.model_runner(live)])
    bind(setup, live.target)
    return live


def batch(live: Live, rows: Rows) -> Any:
    return ForwardBatch(**batch_fields(live, rows))
