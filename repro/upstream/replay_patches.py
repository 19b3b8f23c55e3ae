"""Resets and hand-overs of later releases' replays, for earlier ones: by each way of spelling the place."""

from __future__ import annotations

from repro.upstream.edits import Edit

_SPECULATIVE = "sglang/srt/speculative/"
_EXECUTOR = "sglang/srt/model_executor/"
_MULTI_LAYER = f"{_SPECULATIVE}multi_layer_eagle_draft_extend_cuda_graph_runner.py"
_RESET = "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner.reset_buffers"
_POSITIONS = "GraphSlot('positions', _tokens, torch.int64, axis='tokens'"


def _without_lengths(file: str, function: str, backend: str) -> tuple[Edit, ...]:
    """A batch that has no lengths on the host, and so no sum of them, is planned without."""
    plan = f"{backend}.init_forward_metadata_out_graph(fb_view)"
    without = f"if fb_view.seq_lens_sum is None:\n    fb_view.seq_lens_cpu = None\n{plan}"
    return (Edit(file=file, function=function, old=plan, new=without),)


# Padded rows of the target's positions, as since 0.5.14; up to 0.5.12 buffers have a class of their own.
POSITIONS_RESET = (
    (
        Edit(
            file=f"{_EXECUTOR}cuda_graph_buffer_registry.py",
            function="build_decode_registry",
            old=f"{_POSITIONS})",
            new=f"{_POSITIONS}, padding_policy=PaddingPolicy.ZERO)",
        ),
    ),
    (
        Edit(
            file=f"{_EXECUTOR}cuda_graph_runner.py",
            function="DecodeInputBuffers.populate_from_forward_batch",
            old="self.seq_lens.fill_(seq_len_fill_value)",
            new="self.seq_lens.fill_(seq_len_fill_value)\nself.positions.zero_()",
        ),
    ),
)
# By runner, as since 0.5.16; up to 0.5.13 other files and methods have the replay.
PLANNED_WITHOUT_LENGTHS = {
    "decode": tuple(
        (
            Edit(
                file=f"{_EXECUTOR}{file}.py",
                function="build_replay_fb_view",
                old="buffers.seq_lens_cpu[:bs]",
                new="None if forward_batch.seq_lens_cpu is None else buffers.seq_lens_cpu[:bs]",
            ),
        )
        for file in ("runner/decode_cuda_graph_runner", "cuda_graph_runner")
    ),
    "draft_extend": tuple(
        _without_lengths(
            f"{_SPECULATIVE}eagle_draft_extend_cuda_graph_runner.py",
            f"EAGLEDraftExtendCudaGraphRunner.{replay}",
            "self.draft_extend_attn_backend",
        )
        for replay in ("execute", "replay")
    ),
    "multi_layer": tuple(
        _without_lengths(
            _MULTI_LAYER,
            f"MultiLayerEagleDraftExtendCudaGraphRunner.{replay}",
            "self.eagle_worker.draft_extend_attn_backend_list[self.step]",
        )
        for replay in ("execute", "replay")
    ),
}
# Padded rows of num_accept_tokens, to the width, as one layer's runner does; up to 0.5.14 each layer has buffers.
COUNTS_RESET = (
    *(
        (
            Edit(
                file=_MULTI_LAYER,
                function=_RESET,
                old=f"self.cuda_graph_buffers['{name}'][:bs].copy_(batch_result.accept_lens)",
                new=f"self.cuda_graph_buffers['{name}'].fill_(self.speculative_num_steps + 1)\n"
                f"self.cuda_graph_buffers['{name}'][:bs].copy_(batch_result.accept_lens)",
            ),
        )
        for name in ("num_accept_tokens", "num_accepted_tokens")
    ),
    (
        Edit(
            file=_MULTI_LAYER,
            function="MultiLayerEagleMultiStepDraftExtendCudaGraphRunner.prepare",
            old="buffers.out_cache_loc.zero_()",
            new="buffers.out_cache_loc.zero_()\nbuffers.num_accept_tokens.fill_(self.num_tokens_per_bs)",
        ),
    ),
)
