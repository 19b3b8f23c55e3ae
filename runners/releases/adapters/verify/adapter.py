"""The target's runner in target-verify mode, over the trees of the draft worker's own eager draft."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.speculative import eagle_utils
from sglang.srt.speculative.eagle_info import EagleVerifyInput

from runners.engines.standins import tree
from runners.releases.adapters.decode import adapter as decode
from runners.releases.adapters.decode.family import backend
from runners.releases.adapters.decode.family import given as one_token
from runners.releases.adapters.draft import adapter as draft
from runners.releases.adapters.verify.commit import accepted, commit
from runners.releases.adapters.verify.family import DRAFT, FAMILY
from runners.releases.forward_pass import forward_batch, replayed, verify_spelling
from runners.releases.live import Decode, Live, Outputs, Rows
from runners.releases.options import adaptive
from runners.releases.workers import present
from runners.releases.workers.checkpoint import loaded
from runners.releases.workers.verifier import verifier

NATIVE = "sgl_build_tree_kernel_efficient"
# Since 0.5.23 trees are built in a module of the kernels' package.
_KERNELS = "sglang.kernels.ops.speculative"

__all__ = ["accepted", "commit"]
build, neutral = present.build, decode.neutral
DECODE = Decode(inputs=one_token, batch=decode.batch, eager=decode.eager)


def capture(live: Live) -> Any:
    loaded(live)
    return adaptive.captured(live, adaptive.TARGET, partial(decode.capture, live), verifier)


def stand_in() -> None:
    """For the native function that builds trees, where sglang would import it if there were a GPU."""
    modules: list[Any] = [eagle_utils]
    if importlib.util.find_spec("sglang.kernels") and importlib.util.find_spec(f"{_KERNELS}.spec_tree"):
        modules.append(importlib.import_module(f"{_KERNELS}.spec_tree"))
    for module in modules:
        if not hasattr(module, NATIVE):
            setattr(module, NATIVE, tree.build_tree_kernel_efficient)


stand_in()


def prepare(live: Live, rows: Rows) -> Mapping[str, torch.Tensor]:
    """An eager pass of the draft model, by the draft runner's adapter."""
    draft_rows = {old: rows[name] for name, old in DRAFT.items()}
    draft_rows["hidden_states"] = rows["hidden_states"].to(live.draft.draft_runner.dtype)
    batch_rows = Rows(count=rows.count, tensors={**rows.tensors, **draft_rows})
    drafted = draft.eager(live, draft.batch(live, batch_rows))
    return {name: tensor.clone() for name, tensor in drafted.items()}


def into(live: Live, count: int) -> tuple[Any, ...]:
    """The last arguments of the function that builds trees: the mode of the mask, and where mask and positions go, for
    so many requests.

    Up to 0.5.16 two buffers of the attention backend; since then its mask and how it is laid out come in one object,
    which is asked whether the batch fits, and positions have no buffer, as build_eagle_verify_input has it
    (eagle_worker_common.py)."""
    if hasattr(backend(live), "get_verify_buffers_to_fill_after_draft"):
        return live.draft.tree_mask_mode, *backend(live).get_verify_buffers_to_fill_after_draft()
    mask = backend(live).verify_mask
    if mask is None:  # flashinfer packs it into a buffer of its own
        return live.draft.tree_mask_mode, None, True
    return mask.mode, mask.buffer if mask.fits(count) else None, mask.is_read


def trees(live: Live, rows: Rows, total: int) -> tuple[torch.Tensor, ...]:
    """Mask, positions, the three ways through the tree and its tokens, built into the attention backend's buffers, as
    after every draft. total: the sum of the lengths. An idle batch has empty ones (create_idle_input)."""
    setup = live.setup
    if not rows.count:
        tokens = rows["seq_lens"].new_empty(0, dtype=torch.int64)
        through = tokens.view(0, 1).expand(0, setup.num_draft_tokens)
        return tokens.bool(), tokens, through, through, through, tokens
    built: tuple[torch.Tensor, ...] = eagle_utils.build_tree_kernel_efficient(
        rows["bonus_tokens"],
        rows["parents"],
        rows["scores_index"],
        rows["tokens"],
        rows["seq_lens"],
        total,
        setup.topk,
        setup.num_steps,
        setup.num_draft_tokens,
        *into(live, rows.count),
    )
    return built


def batch(live: Live, rows: Rows) -> Any:
    setup, runner = live.setup, FAMILY.model_runner(live)
    lengths = rows["seq_lens"].cpu()
    mask, positions, index, next_token, next_sibling, tokens = trees(live, rows, int(lengths.sum()))
    spelling = verify_spelling()
    spec_info = EagleVerifyInput(
        draft_token=tokens,
        custom_mask=mask,
        positions=positions,
        **{
            f"{spelling}_index": index,
            f"{spelling}_next_token": next_token,
            f"{spelling}_next_sibling": next_sibling,
            f"{spelling}_cum_len": None,
        },
        spec_steps=setup.num_steps,
        topk=setup.topk,
        draft_token_num=setup.num_draft_tokens,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        seq_lens_sum=int(lengths.sum()),
        seq_lens_cpu=lengths,
    )
    fields = {
        "forward_mode": ForwardMode.TARGET_VERIFY,
        "batch_size": rows.count,
        "input_ids": tokens,
        "req_pool_indices": rows["req_pool_indices"],
        "seq_lens": rows["seq_lens"],
        "seq_lens_cpu": lengths,
        "seq_lens_sum": int(lengths.sum()),
        "out_cache_loc": rows["out_cache_loc"],
        "positions": positions,
        "return_logprob": False,
        "spec_algorithm": runner.spec_algorithm,
        "spec_info": spec_info,
        "capture_hidden_mode": CaptureHiddenMode.FULL,
    }
    return forward_batch(runner, fields)


def outputs(returned: Any) -> Outputs:
    return {"logits": returned.next_token_logits, "hidden_states": returned.hidden_states}


def graph(runner: Any, batch: Any) -> Outputs:
    return outputs(replayed(runner, batch))


def eager(live: Live, batch: Any) -> Outputs:
    """Run the batch as the worker's verify would; the target itself has no graph runner."""
    return outputs(FAMILY.model_runner(live).forward(batch).logits_output)
