"""Bugs that no release mends, or that a later one mended unnamed: the smallest change of sglang under which their seeds
pass. It shows that the cause is where it is said to be, and is a patch to begin with."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Status
from repro.upstream.attention_patches import ATTENTION_PATCHES
from repro.upstream.buffer_patches import BUFFER_PATCHES
from repro.upstream.candidate import CandidatePatch
from repro.upstream.edits import Edit, edited
from repro.upstream.length_patches import LENGTH_PATCHES
from repro.upstream.mrope_patches import MROPE_PATCHES
from repro.upstream.prove import Result

_SPECULATIVE = "sglang/srt/speculative/"
_FLASH_ATTENTION = "sglang/srt/layers/attention/flashattention_backend.py"


def problem(published: Result, repaired: Result) -> str:
    """Why the patch does not fix the failure; "" if it does. Other failures of the same case are ignored."""
    for name, answer in (("as published", published), ("repaired", repaired)):
        if answer.status is None or answer.status is Status.UNKNOWN:
            return f"{name}: {answer.text}"
    if published.verdict is None:
        return f"does not fail as published: {published.text}"
    return f"fails as before: {repaired.text}" if repaired.verdict else ""


def exit_code(published: Result, repaired: Result) -> ExitCode:
    if published.status is None or repaired.status is None:
        return ExitCode.ERROR
    return ExitCode.FAIL if problem(published, repaired) else ExitCode.PASS


def lines(repair: CandidatePatch, targets: tuple[str, str], published: Result, repaired: Result) -> Iterator[str]:
    """For a person. targets: as published, and with the change."""
    wrong = problem(published, repaired)
    yield f"{repair.seed} on {targets[0]}: {'NOT SHOWN' if wrong else 'shown'}: {repair.why}"
    if wrong:
        yield f"  {wrong}"
        return
    yield f"  as published it fails by {repair.oracle}: {published.failed} of {published.tried} runs"
    rest = "passes" if repaired.status is Status.PASS else f"fails no more by {repair.oracle}, but for other bugs"
    yield f"  with the change it {rest}: {targets[1]}"


def patch(repair: CandidatePatch, release: Path) -> Iterator[str]:
    """A unified diff's lines. release: its import path. EditNotFound if an edit has no place there; OSError if a
    file is missing."""
    for file in dict.fromkeys(edit.file for edit in repair.edits):
        text = (release / file).read_text()
        after = edited(text, [edit for edit in repair.edits if edit.file == file])
        yield from difflib.unified_diff(text.splitlines(), after.splitlines(), f"a/{file}", f"b/{file}", lineterm="")


CANDIDATE_PATCHES = (
    CandidatePatch(
        seed="multi-layer-stale-padding",
        oracle="slot0_padding",
        release="0.5.23",
        why="req_pool_indices is reset like the other buffers of padded rows",
        edits=(
            # The row's value is 0 already where it is padding; it was not stored there.
            Edit(
                file="sglang/kernels/ops/speculative/multi_layer_eagle.py",
                function="fill_draft_extend_prepare_buffers_kernel",
                old="tl.store(req_pool_indices_ptr + i, rpi, mask=is_real)",
                new="tl.store(req_pool_indices_ptr + i, rpi, mask=in_bs)",
            ),
        ),
    ),
    CandidatePatch(
        seed="multi-layer-verify-without-metadata",
        oracle="metadata_once",
        release="0.5.15.post1",
        why="the batch's metadata counts as made only where a graph's replay made it",
        edits=(
            Edit(
                file=f"{_SPECULATIVE}multi_layer_eagle_worker_v2.py",
                function="MultiLayerEagleWorkerV2.verify",
                old="not _is_npu or can_run_cuda_graph",
                new="can_run_cuda_graph",
            ),
        ),
    ),
    CandidatePatch(
        seed="verify-mask-not-padded",
        oracle="memory",
        release="0.5.23",
        why="the mask is as long as all requests of the padded batch need it",
        edits=(
            Edit(
                file="sglang/srt/layers/attention/triton_backend.py",
                function="TritonAttnBackend.init_forward_metadata",
                old="custom_mask = spec_info.custom_mask",
                new="""
                    custom_mask = spec_info.custom_mask
                    lengths = num_tokens_per_req * (forward_batch.seq_lens + num_tokens_per_req)
                    missing = int(lengths.sum()) - custom_mask.numel()
                    if missing > 0:
                        custom_mask = torch.cat([custom_mask, custom_mask.new_ones(missing)])
                """,
            ),
        ),
    ),
    CandidatePatch(
        seed="verify-tree-indexes-behind-mask",
        oracle="ended",
        release="0.5.23",
        why="requests of padding take their mask from the end of the batch's own",
        edits=(
            Edit(
                file=_FLASH_ATTENTION,
                function="FlashAttentionBackend.init_forward_metadata",
                old="forward_batch.spec_info.custom_mask[mask_extraction_indices]",
                new="forward_batch.spec_info.custom_mask[mask_extraction_indices.clamp("
                "max=forward_batch.spec_info.custom_mask.numel() - 1)]",
            ),
        ),
    ),
    CandidatePatch(
        seed="draft-padded-branches-keep-slots",
        oracle="kv_indices",
        release="0.5.18",
        why="branches of padding have draft slots, too: the reserved one",
        edits=(
            Edit(
                file=_FLASH_ATTENTION,
                function="FlashAttentionBackend._apply_cuda_graph_metadata",
                old="cache_loc = out_cache_loc.view(-1, self.speculative_num_steps)",
                new="""
                    cache_loc = out_cache_loc.new_zeros(bs * self.topk * self.speculative_num_steps)
                    cache_loc[: out_cache_loc.numel()] = out_cache_loc
                    cache_loc = cache_loc.view(-1, self.speculative_num_steps)
                """,
            ),
        ),
    ),
    CandidatePatch(
        seed="draft-branches-overflow-table",
        oracle="ended",
        release="0.5.12.post1",
        why="a draft step's row of the page table takes the pages of drafts up to this step, for which it has room",
        edits=(
            Edit(
                file=_FLASH_ATTENTION,
                function="draft_decode_set_expand_metadata",
                old="cache_loc = (cache_loc // page_size).to(torch.int32)",
                new="cache_loc = (cache_loc[:, :decode_length] // page_size).to(torch.int32)",
            ),
        ),
    ),
    CandidatePatch(
        seed="draft-padded-branches-keep-pages",
        oracle="kv_indices",
        release="0.5.23",
        why="a branch's row of the page table is cleared before its pages are put there",
        edits=(
            Edit(
                file=_FLASH_ATTENTION,
                function="draft_decode_set_expand_metadata",
                old="page_table[:num_seqs, :].scatter_(1, positions, cache_loc)",
                new="page_table[:num_seqs, :].zero_().scatter_(1, positions, cache_loc)",
            ),
        ),
    ),
    CandidatePatch(
        seed="verify-tree-padded-as-chain",
        oracle="metadata_once",
        release="0.5.15.post1",
        why="a request of a verify batch has the tokens of its tree, which is a chain for topk 1 alone",
        edits=(
            Edit(
                file=f"{_SPECULATIVE}eagle_worker_v2.py",
                function="EAGLEWorkerV2.verify",
                old="verify_input.num_tokens_per_req = self.speculative_num_steps + 1",
                new="verify_input.num_tokens_per_req = self.speculative_num_draft_tokens",
            ),
        ),
    ),
    CandidatePatch(
        seed="multi-layer-queries-of-later-layers",
        oracle="graph_equals_eager",
        release="0.5.14",
        why="the attention backend of each layer knows how many tokens of a request the layer goes over",
        edits=(
            Edit(
                file=f"{_SPECULATIVE}multi_layer_eagle_worker_v2.py",
                function="MultiLayerEagleDraftWorker.init_attention_backend",
                old="""
                    self.draft_extend_attn_backend_list.append(
                        draft_backend_factory.create_draft_extend_backend()
                    )
                """,
                new="""
                    self.draft_extend_attn_backend_list.append(
                        draft_backend_factory.create_draft_extend_backend()
                    )
                    if hasattr(self.draft_extend_attn_backend_list[-1], "num_draft_tokens"):
                        self.draft_extend_attn_backend_list[-1].num_draft_tokens += step
                """,
            ),
        ),
    ),
    CandidatePatch(
        seed="draft-extend-reads-twice",
        oracle="metadata_shape",
        release="0.5.12.post1",
        why="kv_indptr and kv_indices cover the prefix alone: the kernel is given the new tokens besides",
        edits=(
            Edit(
                file="sglang/srt/layers/attention/triton_backend.py",
                function="TritonAttnBackend.init_forward_metadata_replay_cuda_graph",
                old="seq_lens = seq_lens[:bs]",
                new="seq_lens = torch.clamp(seq_lens[:bs] - (self.speculative_num_steps + 1), min=0)",
            ),
        ),
    ),
    CandidatePatch(
        seed="kv-move-branches-page-boundary",
        oracle="kv_moves",
        release="0.5.12.post1",
        why="draft slots close up behind their branches' pages also where no prefix leaves a page begun",
        edits=(
            Edit(
                file=f"{_SPECULATIVE}spec_utils.py",
                function="assign_draft_cache_locs",
                old="(page_size != 1 and topk != 1) and duplicate_cache_len > 0",
                new="page_size != 1 and topk != 1",
            ),
        ),
    ),
    CandidatePatch(
        seed="multi-layer-nine-tokens",
        oracle="graph_equals_eager",
        release="0.5.14",
        why="a block has room for all tokens that a later layer takes over",
        edits=(
            Edit(
                file=f"{_SPECULATIVE}triton_ops/multi_layer_eagle.py",
                function="assign_new_state_triton",
                old="BLOCK_SEQ = 8",
                new="BLOCK_SEQ = triton.next_power_of_2(old_input_ids.shape[0])",
            ),
        ),
    ),
    CandidatePatch(
        seed="draft-positions-ahead",
        oracle="reference",
        release="0.5.11",
        why="positions advance behind a draft step: the first draft stands where the prefix ends",
        edits=tuple(
            Edit(file=f"{_SPECULATIVE}{file}", function=f"{worker}.draft_forward", old=old, new=new)
            for file, worker in (
                ("eagle_worker_v2.py", "EagleDraftWorker"),
                ("eagle_worker.py", "EAGLEWorker"),
            )
            for old, new in (
                ("forward_batch.positions.add_(1)", ""),
                (
                    "hidden_states = logits_output.hidden_states",
                    "hidden_states = logits_output.hidden_states\nforward_batch.positions.add_(1)",
                ),
            )
        ),
    ),
    *LENGTH_PATCHES,
    *MROPE_PATCHES,
    *ATTENTION_PATCHES,
    *BUFFER_PATCHES,
)
