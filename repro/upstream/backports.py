"""Known bugs mended where they are: the change of a buggy release under which what the bug alone does goes away. What
still fails then is another bug.

Each release may spell a place in its own way, so that a backport has several forms: the first whose places are all
there is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from repro.upstream.candidate import CandidatePatch
from repro.upstream.edits import Edit, EditNotFound, edited
from repro.upstream.length_patches import (
    BEHIND,
    EARLIER_VERIFY_WINDOW,
    longer,
    no_key_of_its_own,
    one_key_more,
    planned_by_the_bucket,
)
from repro.upstream.mrope_patches import MROPE_ANYWHERE, MROPE_FORMS
from repro.upstream.patches import CANDIDATE_PATCHES
from repro.upstream.replay_patches import COUNTS_RESET, PLANNED_WITHOUT_LENGTHS, POSITIONS_RESET

_SPECULATIVE = "sglang/srt/speculative/"
_EXECUTOR = "sglang/srt/model_executor/"
_FLASHINFER = "sglang/srt/layers/attention/flashinfer_backend.py"
_TRITON = "sglang/srt/layers/attention/triton_backend.py"
_MULTI_LAYER = f"{_SPECULATIVE}multi_layer_eagle_draft_extend_cuda_graph_runner.py"
_MULTI_LAYER_WORKER = f"{_SPECULATIVE}multi_layer_eagle_worker_v2.py"

# The text of a file of a release, by its path relative to the import path. OSError if it is missing.
Source = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backport:
    """name: as known_issues.toml has it under mended_by. why: what the edits do. forms: one for each way of spelling
    the place."""

    name: str
    why: str
    forms: tuple[tuple[Edit, ...], ...]


def edits_for(backport: Backport, source: Source) -> tuple[Edit, ...]:
    """The first form whose places are all in these sources; empty if no form fits."""
    for form in backport.forms:
        if _is_there(form, source):
            return form
    return ()


def _is_there(form: Sequence[Edit], source: Source) -> bool:
    try:
        for file in {edit.file for edit in form}:
            edited(source(file), [edit for edit in form if edit.file == file])
    except (EditNotFound, OSError):
        return False
    return True


def mends(names: Iterable[str], source: Source) -> Mapping[str, tuple[Edit, ...]]:
    """The edits of these backports, by name; those that cannot be made here are left out. Edits of the same
    place by two of them are made once."""
    edits_by_name: dict[str, tuple[Edit, ...]] = {}
    taken: set[Edit] = set()
    for name in names:
        edits = edits_for(BY_NAME[name], source)
        if edits:
            edits_by_name[name] = tuple(edit for edit in edits if edit not in taken)
            taken |= set(edits)
    return edits_by_name


def _behind(file: str, function: str, old: str, *more: str) -> Edit:
    """These statements, on lines of their own behind one that is there."""
    return Edit(file=file, function=function, old=old, new="\n".join((old, *more)))


def _zeroes(file: str, function: str, buffer: str) -> tuple[Edit, ...]:
    """req_pool_indices is reset behind this buffer, with which padded rows are reset already."""
    zeroed = buffer.rpartition(".")[0] + ".req_pool_indices.zero_()"
    return (_behind(file, function, f"{buffer}.zero_()", zeroed),)


_DRAFT = (f"{_SPECULATIVE}eagle_draft_cuda_graph_runner.py", "EAGLEDraftCudaGraphRunner.replay")
_STALE_DRAFT = tuple(
    f"buffers.{name}.zero_()" for name in ("topk_p", "topk_index", "hidden_states", "req_pool_indices")
)


def _verified_after_padding(file: str, worker: str) -> tuple[Edit, ...]:
    """Without a graph the forward pass makes attention's metadata itself, after it has padded the batch."""
    call = """
        forward_batch_output = self.target_worker.forward_batch_generation(
            model_worker_batch=None,
            forward_batch=verify_forward_batch,
            is_verify=True,
            skip_attn_backend_init={},
        )
    """
    return (
        Edit(
            file=f"{_SPECULATIVE}eagle_info_v2.py",
            function="EagleVerifyInputV2Mixin.prepare_for_v2_verify",
            old="target_worker.model_runner.attn_backend.init_forward_metadata(verify_forward_batch)",
        ),
        Edit(
            file=_SPECULATIVE + file,
            function=f"{worker}.verify",
            old=call.format("True"),
            new=call.format("can_run_cuda_graph"),
        ),
    )


_BACKPORTS = (
    Backport(
        name="#23037",
        why="padded rows of the draft's buffers are reset",
        forms=((_behind(*_DRAFT, "buffers.positions.zero_()", *_STALE_DRAFT),),),
    ),
    Backport(
        name="#26292 decode",
        why="padded rows of req_pool_indices are reset",
        forms=(
            _zeroes(
                f"{_EXECUTOR}cuda_graph_runner.py",
                "DecodeInputBuffers.populate_from_forward_batch",
                "self.out_cache_loc",
            ),
        ),
    ),
    Backport(
        name="#26292 cpu_decode",
        why="padded rows of req_pool_indices are reset",
        forms=(
            _zeroes(
                f"{_EXECUTOR}cpu_graph_runner.py",
                "CPUGraphRunner.prepare_replay",
                "captured_forward_batch.out_cache_loc",
            ),
        ),
    ),
    Backport(name="#24401", why="padded rows of positions are reset", forms=POSITIONS_RESET),
    *(
        Backport(
            name=f"lengths-of-an-earlier-batch {runner}",
            why="a batch without lengths on the host is planned without, as since 0.5.16",
            forms=forms,
        )
        for runner, forms in PLANNED_WITHOUT_LENGTHS.items()
    ),
    Backport(
        name="multi-layer-stale-counts",
        why="padded rows of num_accept_tokens are reset to the width, as one layer's runner does",
        forms=COUNTS_RESET,
    ),
    Backport(
        name="#26292 draft_extend",
        why="padded rows of req_pool_indices are reset",
        forms=(
            _zeroes(
                f"{_SPECULATIVE}eagle_draft_extend_cuda_graph_runner.py",
                "EAGLEDraftExtendCudaGraphRunner.replay",
                "buffers.positions",
            ),
        ),
    ),
    Backport(
        name="#26292 frozen_kv_mtp",
        why="padded rows of req_pool_indices are reset",
        forms=(
            _zeroes(
                f"{_SPECULATIVE}frozen_kv_mtp_cuda_graph_runner.py",
                "FrozenKVMTPCudaGraphRunner.replay",
                "buffers.positions",
            ),
        ),
    ),
    Backport(
        name="#26335",
        why="the tail of tgt_cache_loc is slot 0",
        forms=(
            (
                Edit(
                    file=f"{_SPECULATIVE}spec_utils.py",
                    function="get_src_tgt_cache_loc",
                    old="torch.empty_like(src_cache_loc)",
                    new="torch.zeros_like(src_cache_loc)",
                ),
            ),
        ),
    ),
    Backport(
        name="#27338",
        why="rows of the draft's kv_indices are as wide as all branches together",
        forms=(
            (
                Edit(
                    file=_FLASHINFER,
                    function="FlashInferMultiStepDraftBackend.init_cuda_graph_state",
                    old="max_bs * self.max_context_len",
                    new="max_bs * self.topk * self.max_context_len",
                ),
            ),
        ),
    ),
    Backport(
        name="#26244",
        why="attention's metadata is made from the padded batch",
        forms=(_verified_after_padding("eagle_worker_v2.py", "EAGLEWorkerV2"),),
    ),
    Backport(
        name="#26244 multi_layer",
        why="attention's metadata is made from the padded batch",
        forms=(_verified_after_padding("multi_layer_eagle_worker_v2.py", "MultiLayerEagleWorkerV2"),),
    ),
)

_ALL_SHARED = "self.buffers.share_buffers()"
_FROZEN = no_key_of_its_own("frozen_kv_mtp_worker.py", "FrozenKVMTPWorker", "__init__")
_EDITS = {repair.seed: repair.edits for repair in CANDIDATE_PATCHES}
# What other releases spell otherwise than the one that a repair was written for.
_OTHER_FORMS: dict[str, tuple[tuple[Edit, ...], ...]] = {
    "kv-move-branches-page-boundary": (
        (
            Edit(
                file=f"{_SPECULATIVE}spec_utils.py",
                function="assign_draft_cache_locs",
                old="page_size != 1 and topk != 1 and duplicate_cache_len > 0",
                new="page_size != 1 and topk != 1",
            ),
        ),
    ),
    "multi-layer-stale-padding": (
        (
            _behind(
                _MULTI_LAYER,
                "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner.reset_buffers",
                "self.cuda_graph_buffers['positions'].zero_()",
                "self.cuda_graph_buffers['req_pool_indices'].zero_()",
            ),
        ),
        (
            _behind(
                _MULTI_LAYER,
                "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner.prepare",
                "buffers.positions.zero_()",
                "buffers.req_pool_indices.zero_()",
            ),
        ),
    ),
    # Up to 0.5.13.post1 frozen-KV drafts have a worker of their own.
    "decode-window-one-short": ((*one_key_more("update_sliding_window_buffer"), _FROZEN),),
    "draft-rows-end-at-the-context": (
        (
            longer(_TRITON, "TritonMultiStepDraftBackend.init_cuda_graph_state"),
            *(
                Edit(
                    file=file,
                    function=f"{backend}MultiStepDraftBackend.init_forward_metadata",
                    old="forward_batch.batch_size * self.topk * self.max_context_len",
                    new=f"forward_batch.batch_size * self.topk * (self.max_context_len + {BEHIND})",
                )
                for file, backend in ((_TRITON, "Triton"), (_FLASHINFER, "FlashInfer"))
            ),
        ),
    ),
    "verify-window-reads-first-tokens": (EARLIER_VERIFY_WINDOW,),
    # Up to 0.5.19 no buffer can be left out.
    "draft-extend-adaptive-lengths-shared": (
        tuple(
            replace(edit, old=_ALL_SHARED, new=f"{_ALL_SHARED}\nself.buffers.extend_seq_lens = extend_seq_lens")
            for edit in _EDITS["draft-extend-adaptive-lengths-shared"]
        ),
    ),
    "decode-last-hidden-refused": (
        tuple(
            replace(edit, file=f"{_EXECUTOR}cuda_graph_runner.py", function="CudaGraphRunner.can_run")
            for edit in _EDITS["decode-last-hidden-refused"]
        ),
    ),
    # Up to 0.5.12 with a method of its own.
    "draft-sum-of-raw-batch": tuple(
        (planned_by_the_bucket(f"{backend}.init_forward_metadata_replay_cuda_graph(forward_batch, bs)"),)
        for backend in ("draft_attn_backend", "model_runner.draft_attn_backend")
    ),
    # Up to 0.5.12 in another file.
    "multi-layer-nine-tokens": (
        tuple(
            replace(edit, file=f"{_SPECULATIVE}multi_layer_eagle_utils.py")
            for edit in _EDITS["multi-layer-nine-tokens"]
        ),
    ),
    # Up to 0.5.14 each layer has a replay of its own.
    "multi-layer-lengths-absent": tuple(
        (replace(edit, function=f"MultiLayerEagleDraftExtendCudaGraphRunner.{name}"),)
        for edit in _EDITS["multi-layer-lengths-absent"]
        for name in ("execute", "replay")
    ),
    **MROPE_FORMS,
    # Up to 0.5.12 graphs have a method of their own.
    "draft-padded-branches-keep-slots": (
        tuple(
            replace(edit, function="FlashAttentionBackend.init_forward_metadata_replay_cuda_graph")
            for edit in _EDITS["draft-padded-branches-keep-slots"]
        ),
    ),
    "multi-layer-verify-without-metadata": (
        (
            Edit(
                file=_MULTI_LAYER_WORKER,
                function="MultiLayerEagleWorkerV2.verify",
                old="verify_forward_batch.mark_forward_metadata_ready()",
                new="if can_run_cuda_graph:\n    verify_forward_batch.mark_forward_metadata_ready()",
            ),
        ),
    ),
}

# What must be tried before the repair's own, whose places are there as well but do not suffice.
_EARLIER_FORMS: dict[str, tuple[tuple[Edit, ...], ...]] = {
    **MROPE_ANYWHERE,
    # Graphs have a function of their own in some releases, the first of which have no frozen-KV drafts.
    "decode-window-one-short": tuple(
        (*one_key_more("update_sliding_window_buffer", "update_sliding_window_buffer_cuda_graph"), *frozen)
        for frozen in ((_FROZEN,), ())
    ),
    # The local that says how many tokens a request has is another one in almost every release; the input has them all.
    "verify-mask-not-padded": (
        tuple(
            replace(edit, new=edit.new.replace("num_tokens_per_req", "spec_info.draft_token_num"))
            for edit in _EDITS["verify-mask-not-padded"]
        ),
    ),
    # Up to 0.5.12 the backend counts queries by its number of steps.
    "multi-layer-queries-of-later-layers": (
        (
            *_EDITS["draft-extend-reads-twice"],
            *(
                replace(edit, new=edit.new.replace("num_draft_tokens", "speculative_num_steps"))
                for edit in _EDITS["multi-layer-queries-of-later-layers"]
            ),
        ),
    ),
}


# Sessions build trees by themselves: what the worker asks first does not run in them, nor is it there in every release.
_FIRST_EDIT_ALONE = ("verify-mask-of-larger-batches",)


def _of(repair: CandidatePatch) -> Backport:
    edits = repair.edits[:1] if repair.seed in _FIRST_EDIT_ALONE else repair.edits
    forms = (*_EARLIER_FORMS.get(repair.seed, ()), edits, *_OTHER_FORMS.get(repair.seed, ()))
    return Backport(name=repair.seed, why=repair.why, forms=forms)


# All backports of a release are applied together, and this one changes lines of verify-window-reads-first-tokens.
_ALONE = "draft-extend-window-reads-first-tokens"
BACKPORTS = (*_BACKPORTS, *(_of(repair) for repair in CANDIDATE_PATCHES if repair.seed != _ALONE))
BY_NAME = {backport.name: backport for backport in BACKPORTS}
