"""Candidate patches for windows, for contexts at their end, for lengths and for batches without padding."""

from __future__ import annotations

from repro.upstream.candidate import CandidatePatch
from repro.upstream.edits import Edit

_SPECULATIVE = "sglang/srt/speculative/"
_TRITON = "sglang/srt/layers/attention/triton_backend.py"
_FLASHINFER = "sglang/srt/layers/attention/flashinfer_backend.py"
_FLASH_ATTENTION = "sglang/srt/layers/attention/flashattention_backend.py"
# More than any draft or tree takes behind the context.
BEHIND = 128


def one_key_more(*functions: str) -> tuple[Edit, ...]:
    """A window of W is W tokens before a token and the token itself. functions: those that lay out what is read."""
    return (
        Edit(
            file=_TRITON,
            function="TritonAttnBackend.init_cuda_graph_state",
            old="max_num_tokens * self.sliding_window_size",
            new="max_num_tokens * (self.sliding_window_size + 1)",
        ),
        *(
            Edit(
                file=_TRITON,
                function=function,
                old="torch.tensor(sliding_window_size)",
                new="torch.tensor(sliding_window_size + 1)",
            )
            for function in functions
        ),
    )


def no_key_of_its_own(file: str, worker: str, function: str) -> Edit:
    """A frozen-KV draft writes no key, so that all that it reads are tokens before it: no longer than the window, even
    where decode counts a token itself besides."""
    return Edit(
        file=f"{_SPECULATIVE}{file}",
        function=f"{worker}.{function}",
        old="self.draft_attn_backend = self._init_draft_attn_backend()",
        new="""
            self.draft_attn_backend = self._init_draft_attn_backend()
            if getattr(self.draft_attn_backend, "sliding_window_size", None):
                self.draft_attn_backend.sliding_window_size -= 1
        """,
    )


def longer(file: str, function: str, times: int = 1) -> Edit:
    """A buffer with as much for each token as a context and what may come behind it."""
    old = "max_num_tokens * self.max_context_len"
    new = f"max_num_tokens * (self.max_context_len + {BEHIND})"
    return Edit(file=file, function=function, old=old, new=new, times=times)


def planned_by_the_bucket(call: str) -> Edit:
    """call: a method of the attention backend, from `self.` on, with which a draft's replay plans."""
    return Edit(
        file=f"{_SPECULATIVE}eagle_draft_cuda_graph_runner.py",
        function="EAGLEDraftCudaGraphRunner.replay",
        old=f"self.{call}",
        new=f"""
            raw_seq_lens_sum = forward_batch.seq_lens_sum
            if raw_seq_lens_sum is not None:
                forward_batch.seq_lens_sum = raw_seq_lens_sum + (bs - raw_bs) * self.seq_len_fill_value
            self.{call}
            forward_batch.seq_lens_sum = raw_seq_lens_sum
        """,
    )


def _asked_by_shape(file: str, runner: str, old: str, key: str) -> Edit:
    """Graphs are kept by their shape, and asked for by it."""
    return Edit(
        file=file,
        function=f"{runner}.can_run_graph",
        old=f"self.backend.can_run(forward_batch, {old})",
        new=f"self.backend.can_run(forward_batch, {key})",
    )


# What plans a verify or a draft-extend, with the indices of prefixes from their first tokens on.
PLANNED_FROM_THE_START = """
kv_indices, kv_indptr, qo_indptr, custom_mask = (
    spec_info.generate_attn_arg_prefill(
        req_pool_indices=req_pool_indices,
        paged_kernel_lens=paged_kernel_lens,
        paged_kernel_lens_sum=paged_kernel_lens_sum,
        translator=translator,
        plan=plan,
        kind=read_kind,
    )
)
"""
# Indices and mask come for whole prefixes; what lies before the window is cut from both. A tree's token is as far from
# another as their depths are, wherever the two stand in the tree.
_VERIFY_CUT = f"""
if window_left >= 0:
    paged_kernel_lens, paged_kernel_lens_sum = seq_lens, int(seq_lens.sum())
{PLANNED_FROM_THE_START.strip()}
if window_left >= 0:
    width, device = spec_info.draft_token_num, seq_lens.device
    lens = seq_lens.long() + width
    column = torch.arange(kv_indices.numel(), device=device)
    column = column - torch.repeat_interleave(kv_indptr[:-1].long(), lens)
    kv_indices = kv_indices[column >= torch.repeat_interleave(kv_start_idx, lens)]
    kv_indptr = torch.nn.functional.pad(torch.cumsum(lens - kv_start_idx, dim=0), (1, 0)).int()
    rows = torch.repeat_interleave(lens, width)
    row = torch.repeat_interleave(torch.arange(rows.numel(), device=device), rows)
    column = torch.arange(row.numel(), device=device) - (torch.cumsum(rows, dim=0) - rows)[row]
    query = (seq_lens[:, None] + torch.arange(width, device=device)).flatten()
    if spec_info.positions is not None:
        given = spec_info.positions[: rows.numel()]
        query[: given.numel()] = given
    place = column - torch.repeat_interleave(seq_lens, width)[row]
    key = torch.where(place < 0, column, query[row // width * width + place.clamp(min=0)])
    seen = custom_mask[: row.numel()] & (key + window_left >= query[row])
    first = torch.repeat_interleave(kv_start_idx, width)
    custom_mask, window_left = seen[column >= first[row]], -1
"""

# Up to 0.5.21 nothing says whose plan it is; a layer with a window has lengths of its own.
_EARLIER_PLAN = """
kv_indices, kv_indptr, qo_indptr, custom_mask = (
    spec_info.generate_attn_arg_prefill(
        req_pool_indices,
        paged_kernel_lens,
        paged_kernel_lens_sum,
        self.req_to_token,
    )
)
"""
_EARLIER_VERIFY_CUT = f"""
window_left = -1
if spec_info.spec_input_type.name == "EAGLE_VERIFY" and paged_kernel_lens is not seq_lens:
    window_left = self.sliding_window_size
{_VERIFY_CUT.strip().replace(PLANNED_FROM_THE_START.strip(), _EARLIER_PLAN.strip())}
"""
# Both wrappers of a graph had one buffer for their masks, which the second overwrote for the first.
_TWO_MASKS = Edit(
    file=_FLASHINFER,
    function="FlashInferAttnBackend._create_prefill_wrappers",
    old="self.cuda_graph_custom_mask",
    new="(torch.zeros_like(self.cuda_graph_custom_mask) if i else self.cuda_graph_custom_mask)",
)
EARLIER_VERIFY_WINDOW = (
    Edit(
        file=_FLASHINFER,
        function="FlashInferIndicesUpdaterPrefill.call_begin_forward",
        old=_EARLIER_PLAN,
        new=_EARLIER_VERIFY_CUT,
    ),
    _TWO_MASKS,
)

LENGTH_PATCHES = (
    CandidatePatch(
        seed="verify-window-reads-first-tokens",
        oracle="graph_equals_eager",
        release="0.5.23",
        why="a verified token reads the last tokens of its prefix, as many as the window has",
        edits=(
            Edit(
                file=_FLASHINFER,
                function="FlashInferIndicesUpdaterPrefill.update_sliding_window",
                old="wrapper_id == 0 and not use_ragged and spec_info is None",
                new="wrapper_id == 0 and not use_ragged "
                "and (spec_info is None or spec_info.spec_input_type == SpecInputType.EAGLE_VERIFY)",
            ),
            Edit(
                file=_FLASHINFER,
                function="FlashInferIndicesUpdaterPrefill.call_begin_forward",
                old=PLANNED_FROM_THE_START,
                new=_VERIFY_CUT,
            ),
            _TWO_MASKS,
        ),
    ),
    CandidatePatch(
        seed="decode-window-one-short",
        oracle="metadata_shape",
        release="0.5.23",
        why="a decoded token reads as many tokens before it as the window has, besides itself",
        edits=(
            *one_key_more("update_sliding_window_buffer"),
            no_key_of_its_own("frozen_kv_mtp_worker_v2.py", "FrozenKVMTPDraftWorker", "init_attention_backends"),
        ),
    ),
    CandidatePatch(
        seed="draft-window-not-planned",
        oracle="kv_reads",
        release="0.5.23",
        why="a draft reads as many tokens before it as the window has, besides itself",
        edits=(
            Edit(
                file=_TRITON,
                function="TritonMultiStepDraftBackend.__init__",
                old="self.sliding_window_size = model_runner.sliding_window_size",
                new="""
                    self.sliding_window_size = model_runner.sliding_window_size
                    if self.sliding_window_size:
                        self.sliding_window_size += 1
                """,
            ),
        ),
    ),
    CandidatePatch(
        seed="draft-extend-window-not-planned",
        oracle="ended",
        release="0.5.22",
        why="graphs of draft-extend have KV indices for layers with a window",
        edits=(
            Edit(
                file=_TRITON,
                function="TritonAttnBackend._update_draft_extend_buffers",
                old="return qo_indptr, kv_indptr, num_tokens_per_req",
                new="""
                    if self.sliding_window_size is not None and self.sliding_window_size > 0:
                        update_sliding_window_buffer(
                            self.window_kv_indptr,
                            self.kv_index_translator,
                            plan,
                            req_pool_indices,
                            self.sliding_window_size,
                            kv_lens,
                            bs,
                            token_to_kv_pool=self.token_to_kv_pool,
                            window_kv_indices=self.cuda_graph_window_kv_indices,
                        )
                    return qo_indptr, kv_indptr, num_tokens_per_req
                """,
            ),
            Edit(
                file=_TRITON,
                function="TritonAttnBackend._init_forward_metadata_out_graph",
                old="""
                    self.forward_metadata = self._build_cuda_graph_forward_metadata(
                        bs,
                        forward_mode,
                        spec_info,
                        swa_out_cache_loc,
                    )
                """,
                new="""
                    self.forward_metadata = self._build_cuda_graph_forward_metadata(
                        bs,
                        forward_mode,
                        spec_info,
                        swa_out_cache_loc,
                    )
                    if forward_mode.is_draft_extend_v2() and self.window_kv_indptr is not None:
                        self.forward_metadata.window_kv_indptr = self.window_kv_indptr[: bs + 1]
                        self.forward_metadata.window_kv_indices = self.cuda_graph_window_kv_indices
                """,
            ),
        ),
    ),
    CandidatePatch(
        seed="draft-rows-end-at-the-context",
        oracle="metadata_shape",
        release="0.5.23",
        why="rows of the draft's kv_indices have room for the drafts behind a context",
        edits=(
            Edit(
                file=f"{_SPECULATIVE}spec_utils.py",
                function="draft_kv_indices_buffer_width",
                old="return num_seqs * topk * max_context_len",
                new=f"return num_seqs * topk * (max_context_len + {BEHIND})",
            ),
        ),
    ),
    *(
        CandidatePatch(
            seed=seed,
            oracle="row_width",
            release="0.5.23",
            why="page tables are as wide as the request table, which has room behind a context",
            edits=(
                Edit(
                    file=_FLASH_ATTENTION,
                    function="FlashAttentionBackend.__init__",
                    old="self.max_context_len = model_runner.model_config.context_len",
                    new="self.max_context_len = model_runner.req_to_token_pool.req_to_token.shape[1]",
                ),
            ),
        )
        for seed in (
            "multi-layer-pages-end-at-the-context",
            "draft-extend-pages-end-at-the-context",
            "draft-pages-end-at-the-context",
            "verify-pages-end-at-the-context",
        )
    ),
    CandidatePatch(
        seed="verify-mask-ends-at-the-context",
        oracle="memory",
        release="0.5.16",
        why="the mask has room for trees behind a context",
        edits=(longer(_TRITON, "TritonAttnBackend.init_cuda_graph_state", times=2),),
    ),
    CandidatePatch(
        seed="draft-sum-of-raw-batch",
        oracle="planned",
        release="0.5.13.post1",
        why="a padded batch is planned with the sum of its padded lengths",
        edits=(planned_by_the_bucket("draft_attn_backend.init_forward_metadata_out_graph(forward_batch)"),),
    ),
    CandidatePatch(
        seed="multi-layer-lengths-absent",
        oracle="ended",
        release="0.5.15.post1",
        why="a sum of lengths that is not there is not added to",
        edits=(
            Edit(
                file=f"{_SPECULATIVE}multi_layer_eagle_draft_extend_cuda_graph_runner.py",
                function="MultiLayerEagleMultiStepDraftExtendCudaGraphRunner.prepare",
                old="forward_batch.seq_lens_sum + (bs - raw_bs) * self.seq_len_fill_value",
                new="None if forward_batch.seq_lens_sum is None else "
                "forward_batch.seq_lens_sum + (bs - raw_bs) * self.seq_len_fill_value",
            ),
        ),
    ),
    CandidatePatch(
        seed="decode-last-hidden-refused",
        oracle="bucket",
        release="0.5.16",
        why="a graph with all hidden states holds a batch that asks for the last ones",
        edits=(
            Edit(
                file="sglang/srt/model_executor/runner/decode_cuda_graph_runner.py",
                function="DecodeCudaGraphRunner.can_run_graph",
                old="requested_capture_hidden_mode == self.capture_hidden_mode",
                new="requested_capture_hidden_mode <= self.capture_hidden_mode",
            ),
        ),
    ),
    CandidatePatch(
        seed="no-replay-without-padding",
        oracle="bucket",
        release="0.5.15.post1",
        why="a graph is asked for by the shape that it is kept by",
        edits=(
            _asked_by_shape(
                f"{_SPECULATIVE}eagle_draft_cuda_graph_runner.py",
                "EAGLEDraftCudaGraphRunner",
                "cuda_graph_bs",
                "self._make_graph_key(cuda_graph_bs)",
            ),
            _asked_by_shape(
                f"{_SPECULATIVE}eagle_draft_extend_cuda_graph_runner.py",
                "EAGLEDraftExtendCudaGraphRunner",
                "cuda_graph_bs",
                "self._make_graph_key(cuda_graph_bs)",
            ),
            _asked_by_shape(
                f"{_SPECULATIVE}multi_layer_eagle_draft_extend_cuda_graph_runner.py",
                "MultiLayerEagleDraftExtendCudaGraphRunner",
                "cuda_graph_bs",
                "self._make_graph_key(cuda_graph_bs)",
            ),
            _asked_by_shape(
                "sglang/srt/model_executor/runner/decode_cuda_graph_runner.py",
                "DecodeCudaGraphRunner",
                "graph_key",
                "self._make_graph_key(cuda_graph_bs, get_current_stream_idx() if self.enable_pdmux else None)",
            ),
        ),
    ),
)
