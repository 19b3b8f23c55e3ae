"""Candidate patches for buffers that are too small, or that nothing makes."""

from __future__ import annotations

from repro.upstream.candidate import CandidatePatch
from repro.upstream.edits import Edit

_SPECULATIVE = "sglang/srt/speculative/"

BUFFER_PATCHES = (
    CandidatePatch(
        seed="multi-layer-pool-too-small",
        oracle="kv_indices",
        release="0.5.11",
        why="the pool has a row for each request slot",
        edits=(
            Edit(
                file=f"{_SPECULATIVE}multi_layer_eagle_worker_v2.py",
                function="MultiLayerEagleDraftWorker.__init__",
                old="self.req_to_token_pool.size",
                new="self.req_to_token_pool.req_to_token.shape[0]",
            ),
        ),
    ),
    CandidatePatch(
        seed="multi-layer-hidden-states-unmade",
        oracle="attributes",
        release="0.5.10.post1",
        why="a layer leaves its hidden states in its buffer, as it does since 0.5.11",
        edits=(
            Edit(
                file=f"{_SPECULATIVE}multi_layer_eagle_draft_extend_cuda_graph_runner.py",
                function="MultiLayerEagleDraftExtendCudaGraphRunner.capture_one_batch_size",
                old="self.hidden_states",
                new="buffers.hidden_states",
            ),
        ),
    ),
    CandidatePatch(
        seed="draft-extend-adaptive-lengths-shared",
        oracle="memory",
        release="0.5.23",
        why="lengths that depend on a runner's width are its own while it is captured",
        edits=(
            Edit(
                file=f"{_SPECULATIVE}eagle_draft_extend_cuda_graph_runner.py",
                function="EAGLEDraftExtendCudaGraphRunner.__init__",
                old="self.buffers.share_buffers(exclude={'select_index'})",
                new='self.buffers.share_buffers(exclude={"select_index", "extend_seq_lens"})',
            ),
        ),
    ),
    # A batch of a graph whose requests stand at the context's end needs verify-mask-ends-at-the-context besides.
    CandidatePatch(
        seed="verify-mask-of-larger-batches",
        oracle="memory",
        release="0.5.16",
        why="a batch that the mask of graphs has no room for gets one of its own",
        edits=(
            Edit(
                file=f"{_SPECULATIVE}eagle_utils.py",
                function="build_tree_kernel_efficient",
                old="device = seq_lens.device",
                new="""
                    device = seq_lens.device
                    if tree_mask_buf is not None and tree_mask_mode == TreeMaskMode.FULL_MASK:
                        needed = num_verify_tokens * (seq_lens_sum + num_verify_tokens * bs)
                        if needed > tree_mask_buf.numel():
                            tree_mask_buf = None
                """,
            ),
            # Where the sum is not known, a batch within the graphs needs none, and the largest there can be is enough.
            Edit(
                file=f"{_SPECULATIVE}eagle_worker_common.py",
                function="build_eagle_verify_input",
                old="seq_lens_sum = 0",
                new="""
                    runner, count = target_worker.model_runner, batch.seq_lens.shape[0]
                    graphs = runner.decode_cuda_graph_runner
                    fits = graphs is not None and count <= graphs.max_bs
                    seq_lens_sum = 0 if fits else count * runner.attn_backend.max_context_len
                """,
            ),
        ),
    ),
    CandidatePatch(
        seed="round-tree-of-few-tokens",
        oracle="ended",
        release="0.5.23",
        why="no accepted path has more nodes than the tree",
        edits=(
            Edit(
                file=f"{_SPECULATIVE}eagle_worker_common.py",
                function="_compact_accept_to_front",
                old="s1 = accept_index.shape[1]",
                new="""
                    accept_index = accept_index[:, :nd]
                    s1 = accept_index.shape[1]
                """,
            ),
        ),
    ),
)
