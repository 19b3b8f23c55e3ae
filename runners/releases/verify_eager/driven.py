"""What every release has alike: the verify of both kinds of second EAGLE workers, and its input."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.multi_layer_eagle_worker_v2 import MultiLayerEagleWorkerV2

from repro.cases.runner_facts import RUNNER_FACTS
from runners.releases.live import Live
from runners.releases.verify_eager.family import Verified, end, schedule_batch, worker

__all__ = ["ForwardBatch", "verify", "verify_spelt"]

# By the name that the table of runners has for them.
WORKERS: dict[str, Any] = {worker.__name__: worker for worker in (EAGLEWorkerV2, MultiLayerEagleWorkerV2)}


def spec_info(live: Live, verified: Verified, spelling: str) -> Any:
    setup = live.setup
    lengths = verified.seq_lens.cpu()
    tree = torch.zeros((verified.size, setup.num_draft_tokens), dtype=torch.int64, device=verified.tokens.device)
    places: dict[str, Any] = {f"{spelling}_{place}": tree.clone() for place in ("index", "next_token", "next_sibling")}
    found = EagleVerifyInput(
        draft_token=verified.tokens,
        custom_mask=verified.mask,
        positions=verified.positions,
        spec_steps=setup.num_steps,
        topk=setup.topk,
        draft_token_num=setup.num_draft_tokens,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        seq_lens_sum=int(lengths.sum()),
        seq_lens_cpu=lengths,
        **places,
        **{f"{spelling}_cum_len": None},
    )
    found.sample = end
    return found


def verify_spelt(live: Live, runner: str, verified: Verified, spelling: str) -> None:
    batch = schedule_batch(live, verified, spec_info(live, verified, spelling), ForwardMode.DECODE)
    WORKERS[RUNNER_FACTS[runner].worker].verify(worker(live), batch)


def verify(live: Live, runner: str, verified: Verified) -> None:
    verify_spelt(live, runner, verified, "retrieve")
