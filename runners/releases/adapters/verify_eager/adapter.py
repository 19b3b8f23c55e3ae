"""The verify of both kinds of second EAGLE workers, and its input."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from sglang.srt.layers import dp_attention
from sglang.srt.model_executor import forward_batch_info
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.multi_layer_eagle_worker_v2 import MultiLayerEagleWorkerV2

from repro.cases.runner_facts import RUNNER_FACTS
from runners.releases.adapters.verify_eager.family import RANK, Verified, end, schedule_batch
from runners.releases.forward_pass import verify_spelling
from runners.releases.live import Live
from runners.releases.workers import present
from runners.releases.workers.building import as_on_gpus
from runners.releases.workers.verifier import verifier

build = present.build
BATCH = ForwardBatch  # what is watched

# Where the kernels are that find KV slots, newest first.
CACHE_LOCS = (
    "sglang.kernels.ops.speculative.cache_locs",
    "sglang.srt.speculative.triton_ops.cache_locs",
    "sglang.srt.speculative.eagle_info_v2",
)
# By the name that the table of runners has for them.
WORKERS: dict[str, Any] = {worker.__name__: worker for worker in (EAGLEWorkerV2, MultiLayerEagleWorkerV2)}


def spec_info(live: Live, verified: Verified) -> Any:
    setup = live.setup
    lengths = verified.seq_lens.cpu()
    tree = torch.zeros((verified.size, setup.num_draft_tokens), dtype=torch.int64, device=verified.tokens.device)
    spelling = verify_spelling()
    places: dict[str, Any] = {f"{spelling}_{place}": tree.clone() for place in ("index", "next_token", "next_sibling")}
    verify_input = EagleVerifyInput(
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
    verify_input.sample = end
    return verify_input


def pose_as_cuda() -> None:
    """On a CPU sglang finds no KV slots for a tree, though the kernel that does is Triton's; and since 0.5.16 a batch
    asks the backend for a length that only a CPU's has."""
    kernels: Any = next(module for module in map(_module, CACHE_LOCS) if module)
    kernels._is_cuda = True
    if kernels.__name__ == CACHE_LOCS[0]:
        as_on_gpus("sglang.srt.model_executor.forward_batch_info")


def _module(name: str) -> ModuleType | None:
    """None where this release has no such module."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            return None
        raise


def verify(live: Live, runner: str, verified: Verified, constructed: Callable[[Any], None]) -> None:
    """Up to where it samples: up to 0.5.13 by its input, then by a function that the workers take from elsewhere.
    constructed: is given the worker that verifies, before it does."""
    for name in ("eagle_worker_v2", "multi_layer_eagle_worker_v2", "eagle_worker_common"):
        module: Any = _module(f"sglang.srt.speculative.{name}")
        if hasattr(module, "eagle_sample"):
            module.eagle_sample = end  # nothing else in this process samples
    for module in (dp_attention, forward_batch_info):
        if hasattr(module, "dp_slot_in"):  # since 0.5.21 counts are checked against the group's size, which is one here
            module.dp_slot_in = _ours
    kind = WORKERS[RUNNER_FACTS[runner].worker]
    info = spec_info(live, verified)
    worker = verifier(live, kind)
    constructed(worker)
    worker.verify(schedule_batch(live, verified, batch_class(kind), info, ForwardMode.DECODE))


def batch_class(kind: Any) -> Any:
    """The class of what a worker's verify is given, as its signature says."""
    annotation = inspect.signature(kind.verify).parameters["batch"].annotation
    return getattr(sys.modules[kind.__module__], annotation) if isinstance(annotation, str) else annotation


def _ours(per_rank: Sequence[int]) -> int:
    """The place of this rank in a list of all ranks."""
    return RANK
