"""Candidate patches for draft models with positions in three dimensions (M-RoPE)."""

from __future__ import annotations

from dataclasses import replace

from repro.upstream.candidate import CandidatePatch
from repro.upstream.edits import Edit

_SPECULATIVE = "sglang/srt/speculative/"
_COPIED = "_grouped_foreach_copy_(copy_dsts, copy_srcs)"
_BEGUN = "forward_batch.input_ids = input_ids"


def _staged(kind: str, tokens: str) -> Edit:
    """kind: of the runner, as its class has it; tokens: the local with how many there are of real requests."""
    file = {"Draft": "draft", "DraftExtend": "draft_extend"}[kind]
    return Edit(
        file=f"{_SPECULATIVE}eagle_{file}_cuda_graph_runner.py",
        function=f"EAGLE{kind}CudaGraphRunner.execute",
        old=_COPIED,
        new=f"""
            {_COPIED}
            if forward_batch.mrope_positions is not None:
                buffers.mrope_positions.zero_()
                buffers.mrope_positions[:, :{tokens}].copy_(forward_batch.mrope_positions)
        """,
    )


DRAFT_STAGED, EXTEND_STAGED = _staged("Draft", "raw_num_token"), _staged("DraftExtend", "num_tokens")


def _advanced(is_mrope: str) -> Edit:
    """A graph is captured with such positions whatever the model has, and must leave them alone where it has none."""
    return Edit(
        file=f"{_SPECULATIVE}eagle_worker_v2.py",
        function="EagleDraftWorker.draft_forward",
        old=_BEGUN,
        new=f"""
            {_BEGUN}
            if i and {is_mrope}:
                forward_batch.mrope_positions.add_(1)
        """,
    )


_ADVANCED = _advanced("self.draft_runner.model_config.model_is_mrope")
# Up to 0.5.15 it is the model runner that knows.
_ADVANCED_EARLIER = _advanced(
    'all(getattr(one, "model_is_mrope", True) for one in (self.draft_runner, self.draft_runner.model_config))'
)


def _one_by_one(edit: Edit, tokens: str) -> Edit:
    """The same up to 0.5.13, where each buffer is copied by itself."""
    copied = f"buffers.positions[:{tokens}].copy_(forward_batch.positions)"
    function = edit.function.replace("execute", "replay")
    return replace(edit, function=function, old=copied, new=edit.new.replace(_COPIED, copied))


MROPE_PATCHES = (
    CandidatePatch(
        seed="draft-mrope-not-staged",
        oracle="staged",
        release="0.5.20",
        why="positions in three dimensions are copied into the graph's buffer and advance from draft to draft",
        edits=(DRAFT_STAGED, _ADVANCED),
    ),
    CandidatePatch(
        seed="draft-extend-mrope-not-staged",
        oracle="staged",
        release="0.5.20",
        why="positions in three dimensions are copied into the graph's buffer",
        edits=(EXTEND_STAGED,),
    ),
)
# By seed, of any release; and what those up to 0.5.13 spell otherwise.
MROPE_ANYWHERE = {"draft-mrope-not-staged": ((DRAFT_STAGED, _ADVANCED_EARLIER),)}
MROPE_FORMS = {
    "draft-mrope-not-staged": ((_one_by_one(DRAFT_STAGED, "raw_num_token"), _ADVANCED_EARLIER),),
    "draft-extend-mrope-not-staged": ((_one_by_one(EXTEND_STAGED, "num_tokens"),),),
}
