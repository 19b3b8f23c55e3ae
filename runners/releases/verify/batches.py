"""What is the same in every release: the draft before the call, its tree, the batch's fields, the eager pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.speculative import eagle_utils
from sglang.srt.speculative.eagle_info import EagleVerifyInput

from runners.engines.standins import tree
from runners.releases.decode.family import backend
from runners.releases.live import Live, Outputs, Rows
from runners.releases.verify.family import DRAFT, FAMILY

NATIVE = "sgl_build_tree_kernel_efficient"


def stand_in(module: Any) -> None:
    """For the native function that builds trees, which this module of sglang imports where there is a GPU."""
    if not hasattr(module, NATIVE):
        setattr(module, NATIVE, tree.build_tree_kernel_efficient)


stand_in(eagle_utils)


def drafted(
    live: Live, rows: Rows, batch: Callable[[Live, Rows], Any], eager: Callable[[Live, Any], Outputs]
) -> Mapping[str, torch.Tensor]:
    """An eager pass of the draft model; batch and eager are those of the draft runner's adapter."""
    own = {old: rows[name] for name, old in DRAFT.items()}
    own["hidden_states"] = rows["hidden_states"].to(live.draft.draft_runner.dtype)
    given = Rows(count=rows.count, tensors={**rows.tensors, **own})
    return {name: tensor.clone() for name, tensor in eager(live, batch(live, given)).items()}


def into_two_buffers(live: Live) -> tuple[Any, ...]:
    """Up to 0.5.16: the mode of the mask, and the attention backend's buffers for masks and positions."""
    return live.draft.tree_mask_mode, *backend(live).get_verify_buffers_to_fill_after_draft()


def fields(live: Live, rows: Rows, into: Callable[[Live], tuple[Any, ...]] = into_two_buffers) -> dict[str, Any]:
    """The trees are built into the attention backend's buffers, as after every draft. into: the last arguments of the
    function that builds them."""
    setup = live.setup
    lengths = rows["seq_lens"].cpu()
    mask, positions, index, next_token, next_sibling, tokens = eagle_utils.build_tree_kernel_efficient(
        rows["bonus_tokens"],
        rows["parents"],
        rows["scores_index"],
        rows["tokens"],
        rows["seq_lens"],
        int(lengths.sum()),
        setup.topk,
        setup.num_steps,
        setup.num_draft_tokens,
        *into(live),
    )
    spelling = "retrieve" if "retrieve_index" in EagleVerifyInput.__dataclass_fields__ else "retrive"
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
    return {
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
        "spec_algorithm": FAMILY.model_runner(live).spec_algorithm,
        "spec_info": spec_info,
        "capture_hidden_mode": CaptureHiddenMode.FULL,
    }


def outputs(returned: Any) -> Outputs:
    return {"logits": returned.next_token_logits, "hidden_states": returned.hidden_states}


def eager(live: Live, forward_batch: Any) -> Outputs:
    """As the worker's verify would; the target itself has no graph runner."""
    return outputs(FAMILY.model_runner(live).forward(forward_batch).logits_output)
