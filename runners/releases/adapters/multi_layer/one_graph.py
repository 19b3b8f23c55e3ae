"""One graph for all layers of a draft, which moves the tokens up between them: since 0.5.16 a server's choice where no
Python is needed between layers. Logits of all layers but the last are overwritten, and the worker reads none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.speculative import multi_layer_eagle_draft_extend_cuda_graph_runner as module

from runners.recording.observer import Unsupported
from runners.releases.adapters.multi_layer.family import runners
from runners.releases.forward_pass import accept
from runners.releases.live import Live, Outputs
from runners.releases.reference.question import Answer, Question, Reference

DRAWN = ("topk_index", "topk_p")
_KIND = "OneGraphMultiLayerEagleMultiStepDraftExtendCudaGraphRunner"


def kind(live: Live) -> Any:
    """The runner's class. Unsupported where the worker would not choose it (its _capture_cuda_graphs)."""
    if not hasattr(module, _KIND):
        raise Unsupported("before 0.5.16 sglang captures a graph for each layer of a draft")
    for runner in runners(live):
        backend = runner.attn_backend
        staged = getattr(backend, "supports_draft_extend_metadata_staging", False)
        if not (staged or backend.draft_extend_metadata_captured_in_graph()):
            raise Unsupported(f"{type(backend).__name__} cannot refresh its draft-extend metadata for a combined graph")
    return getattr(module, _KIND)


def graph(runner: Any, forward_batch: Any) -> Outputs:
    accept(runner, forward_batch)
    runner.prepare(forward_batch)
    _, shares, indices = zip(*(runner.replay(layer) for layer in range(runner.speculative_num_steps)), strict=True)
    return {"topk_index": torch.cat(indices, dim=1), "topk_p": torch.cat(shares, dim=1)}


def drawn(outputs: Outputs) -> Outputs:
    """The outputs that a graph of all layers gives."""
    return {name: outputs[name] for name in DRAWN}


def in_float64(make: Callable[[Live], Reference | None]) -> Callable[[Live], Reference | None]:
    """The same call where it gives no logits, if the setup's does not."""

    def made(live: Live) -> Reference | None:
        reference = make(live)
        if reference is None or not live.setup.one_graph:
            return reference

        def run(question: Question) -> Answer:
            answer = reference(question)
            answer.floats = {name: values for name, values in answer.floats.items() if name in DRAWN}
            return answer

        return run

    return made
