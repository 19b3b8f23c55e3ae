"""Candidate patches for windows of attention, of draft-extend on flashinfer and of a verify on Triton, and for
the logit cap that flashinfer is planned with."""

from __future__ import annotations

from repro.upstream.candidate import CandidatePatch
from repro.upstream.edits import Edit
from repro.upstream.length_patches import PLANNED_FROM_THE_START

_FLASHINFER = "sglang/srt/layers/attention/flashinfer_backend.py"
_EXTEND = "sglang/kernels/ops/attention/extend_attention.py"
_DECODE, _PREFILL = "FlashInferIndicesUpdaterDecode", "FlashInferIndicesUpdaterPrefill"

# The indices of a prefix's first tokens are overwritten by those from where the window begins.
_EXTEND_PLANNED = f"""
{PLANNED_FROM_THE_START.strip()}
if spec_info.spec_input_type == SpecInputType.EAGLE_DRAFT_EXTEND and kv_start_idx is not None:
    translator.pack_read_stream(
        plan,
        req_pool_indices=req_pool_indices,
        seq_lens=paged_kernel_lens,
        indptr=kv_indptr,
        out=kv_indices,
        kv_start_idx=kv_start_idx,
        kind=read_kind,
    )
"""
# A tree's token sees its own branch alone among the new tokens, and how many it sees is its depth.
_DEPTHS = """
mask_m = (cur_block_m * BLOCK_M + offs_m) < cur_seq_len_extend
depth_m = cur_block_m * BLOCK_M + offs_m
if USE_CUSTOM_MASK and SLIDING_WINDOW_SIZE > 0:
    depth_m = tl.zeros([BLOCK_M], dtype=tl.int32) - 1
    for start_n in range(0, cur_seq_len_extend, BLOCK_N):
        column = start_n + tl.arange(0, BLOCK_N)
        seen = tl.load(
            mask_ptr
            + cur_seq_mask_start_idx
            + (cur_block_m * BLOCK_M + offs_m[:, None])
            * (cur_seq_len + window_kv_offset)
            + window_kv_offset
            + cur_seq_len_prefix
            + column[None, :],
            mask=mask_m[:, None] & (column[None, :] < cur_seq_len_extend),
            other=0,
        )
        depth_m += tl.sum((seen != 0).to(tl.int32), 1)
"""
_BEGUN = """
extend_start = (
    tl.maximum(cur_block_m * BLOCK_M - SLIDING_WINDOW_SIZE, 0) // BLOCK_N
) * BLOCK_N
"""
_WINDOW = """
window_mask = (cur_block_m * BLOCK_M + offs_m[:, None]) <= (
    start_n + offs_n[None, :] + SLIDING_WINDOW_SIZE
)
"""
# The same in the kernel of one stage, whose keys are the window's of the prefix, then the tree's.
_UNIFIED_DEPTHS = """
mask_dv = offs_dv < Lv
depth_m = cur_block_m * BLOCK_M + offs_m
if USE_CUSTOM_MASK and SLIDING_WINDOW_SIZE > 0:
    depth_m = tl.zeros([BLOCK_M], dtype=tl.int32) - 1
    seen_before = tl.zeros([BLOCK_M], dtype=tl.int32)
    for start_n in range(cur_seq_prefix_len, cur_seq_kv_len, BLOCK_N):
        column = start_n + tl.arange(0, BLOCK_N)
        seen = tl.load(
            mask_ptr
            + cur_seq_mask_start_idx
            + (cur_block_m * BLOCK_M + offs_m[:, None])
            * (cur_window_start + cur_seq_kv_len)
            + cur_window_start
            + column[None, :],
            mask=mask_m[:, None] & (column[None, :] < cur_seq_kv_len),
            other=0,
        )
        depth_m += tl.sum((seen != 0).to(tl.int32), 1)
"""
_KEYS_BY_DEPTH = """
k_abs_pos = cur_window_start + start_n + offs_n[None, :]
if USE_CUSTOM_MASK:
    in_tree = start_n + offs_n[None, :] >= cur_seq_prefix_len
    own = (in_tree & (custom_mask != 0)).to(tl.int32)
    depth_n = seen_before[:, None] + tl.cumsum(own, 1) - 1
    seen_before += tl.sum(own, 1)
    k_abs_pos = tl.where(in_tree, cur_window_start + cur_seq_prefix_len + depth_n, k_abs_pos)
"""
# flashinfer chooses the kernel when it plans, and gives it each layer's own cap when it runs: one with a cap is right
# where all layers have one. A layer without would divide by 0; where there is such a layer all stays as it is.
_CAP = "logits_soft_cap=self.logits_soft_cap"
_CAP_KEPT = """
self.q_data_type = model_runner.dtype
self.logits_soft_cap = min(
    (
        layer.logit_cap
        for layer in model_runner.model.modules()
        if hasattr(layer, "logit_cap")
    ),
    default=0.0,
)
"""
_PLANNED = """
wrapper.begin_forward(
    kv_indptr,
    kv_indices,
    self.kv_last_page_len[:bs],
    self.num_qo_heads,
    self.num_kv_heads,
    self.head_dim,
    1,
    data_type=self.data_type,
    q_data_type=self.q_data_type,
    non_blocking=True,
    fixed_split_size=fixed_split_size,
    disable_split_kv=(
        disable_split_kv if disable_split_kv is not None else False
    ),
)"""
_RAGGED = """
wrapper_ragged.begin_forward(
    qo_indptr,
    qo_indptr,
    self.num_qo_heads,
    self.num_kv_heads,
    self.head_dim,
    q_data_type=self.q_data_type,
)"""
_WINDOWED = """
if window_left >= 0:
    # selects the module with the per-element window mask compiled in
    paged_plan_kwargs["window_left"] = window_left
"""
# A fast plan keeps the kernel that capture planned.
_WITH_CAP = f"""
{_WINDOWED.strip()}
if not uses_fast_prefill:
    # selects the module with the cap compiled in
    paged_plan_kwargs["logits_soft_cap"] = self.logits_soft_cap
"""


def _capped(function: str, old: str, new: str = "") -> Edit:
    """new: without it, what is called gets the cap as its last argument."""
    new = new or old.removesuffix(")") + f"    {_CAP},\n)"
    return Edit(file=_FLASHINFER, function=function, old=old, new=new)


def _kernel(old: str, new: str, function: str = "_fwd_kernel") -> Edit:
    return Edit(file=_EXTEND, function=function, old=old, new=new)


ATTENTION_PATCHES = (
    CandidatePatch(
        seed="draft-extend-window-reads-first-tokens",
        oracle="kv_reads",
        release="0.5.23",
        why="a token that is extended reads the last tokens before it, as many as the window has",
        edits=(
            # All rows are computed, those of rejected drafts, too.
            Edit(
                file=_FLASHINFER,
                function=f"{_PREFILL}.update_sliding_window",
                old="""
                    num_accept_tokens[: seq_lens.shape[0]].to(
                        device=seq_lens.device, dtype=seq_lens.dtype
                    )
                """,
                new="spec_info.num_tokens_per_req",
            ),
            Edit(
                file=_FLASHINFER,
                function=f"{_PREFILL}.update_sliding_window",
                old="wrapper_id == 0 and not use_ragged and spec_info is None",
                new="wrapper_id == 0 and not use_ragged "
                "and (spec_info is None or spec_info.spec_input_type == SpecInputType.EAGLE_DRAFT_EXTEND)",
            ),
            Edit(
                file=_FLASHINFER,
                function=f"{_PREFILL}.call_begin_forward",
                old=PLANNED_FROM_THE_START,
                new=_EXTEND_PLANNED,
            ),
        ),
    ),
    CandidatePatch(
        seed="flashinfer-logit-cap-not-planned",
        oracle="reference",
        release="0.5.23",
        why="attention is planned with a logit cap where all layers have one",
        edits=(
            *(
                _capped(f"{updater}.__init__", "self.q_data_type = model_runner.dtype", _CAP_KEPT)
                for updater in (_DECODE, _PREFILL)
            ),
            _capped(f"{_DECODE}.call_begin_forward", _PLANNED),
            _capped(
                f"{_DECODE}.call_begin_forward",
                _PLANNED.removesuffix(")") + "    global_override_indptr_cpu=global_override_indptr_cpu,\n)",
            ),
            _capped(f"{_PREFILL}.call_begin_forward", _RAGGED),
            _capped(f"{_PREFILL}.call_begin_forward", _WINDOWED, _WITH_CAP),
        ),
    ),
    CandidatePatch(
        seed="verify-window-by-place-in-tree",
        oracle="reference",
        release="0.5.23",
        why="the window of a tree's token is measured by its depth, which its row of the mask tells",
        edits=(
            _kernel("mask_m = (cur_block_m * BLOCK_M + offs_m) < cur_seq_len_extend", _DEPTHS),
            _kernel(
                "cur_seq_len_prefix + cur_block_m * BLOCK_M + offs_m[:, None]",
                "cur_seq_len_prefix + depth_m[:, None]",
            ),
            _kernel(
                "extend_end = 0 if SKIP_EXTEND else cur_block_m_end",
                """
                    extend_end = 0 if SKIP_EXTEND else cur_block_m_end
                    seen_before = tl.zeros([BLOCK_M], dtype=tl.int32)
                """,
            ),
            _kernel(_BEGUN, f"if not USE_CUSTOM_MASK:{_BEGUN.replace(chr(10), chr(10) + '    ').rstrip()}"),
            _kernel(
                "final_mask &= custom_mask",
                """
                    final_mask &= custom_mask
                    depth_n = seen_before[:, None] + tl.cumsum(custom_mask.to(tl.int32), 1) - 1
                    seen_before += tl.sum(custom_mask.to(tl.int32), 1)
                """,
            ),
            _kernel(
                _WINDOW,
                f"""
if USE_CUSTOM_MASK:
    window_mask = depth_m[:, None] <= depth_n + SLIDING_WINDOW_SIZE
else:{_WINDOW.replace(chr(10), chr(10) + "    ").rstrip()}
                """,
            ),
        ),
    ),
    CandidatePatch(
        seed="verify-window-by-place-deterministic",
        oracle="reference",
        release="0.5.23",
        why="the window of a tree's token is measured by its depth in the kernel of one stage, too",
        edits=tuple(
            _kernel(old, new, "_fwd_kernel_unified")
            for old, new in (
                ("mask_dv = offs_dv < Lv", _UNIFIED_DEPTHS),
                (
                    "cur_window_start + cur_seq_prefix_len + cur_block_m * BLOCK_M + offs_m[:, None]",
                    "cur_window_start + cur_seq_prefix_len + depth_m[:, None]",
                ),
                ("k_abs_pos = cur_window_start + start_n + offs_n[None, :]", _KEYS_BY_DEPTH),
            )
        ),
    ),
    CandidatePatch(
        seed="verify-window-deterministic-mask",
        oracle="reference",
        release="0.5.23",
        why="rows of the tree's mask are as long as the whole request, and its window begins where its KV does",
        edits=(
            Edit(
                file=_EXTEND,
                function="_fwd_kernel_unified",
                old="(cur_block_m * BLOCK_M + offs_m[:, None]) * cur_seq_kv_len",
                new="(cur_block_m * BLOCK_M + offs_m[:, None]) * (cur_window_start + cur_seq_kv_len) "
                "+ cur_window_start",
            ),
        ),
    ),
)
