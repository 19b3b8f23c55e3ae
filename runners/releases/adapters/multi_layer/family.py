"""A draft-extend batch for a draft of several layers, each a model of its own with a KV cache of its own: layer after
layer goes over the tokens that a verify has judged, and each draws one more token of the next draft."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from runners.releases.adapters.draft_extend import family as one_layer
from runners.releases.backends import paged_calls, paged_metadata
from runners.releases.live import Family, Given, Live, mha_cache
from runners.releases.options import mimo
from runners.releases.reference import layered


def runners(live: Live) -> Any:
    """The model runners of the draft's layers."""
    return live.draft.draft_runner_list


def all_layers(live: Live) -> Any:
    """A stand-in for one model runner that has all layers together, for the session."""
    first = runners(live)[0]
    return SimpleNamespace(
        model=torch.nn.ModuleList([runner.model for runner in runners(live)]),
        dtype=first.dtype,
        req_to_token_pool=first.req_to_token_pool,
        layers=runners(live),
    )


def caches(layers: Any) -> list[torch.Tensor]:
    return [tensor for runner in layers.layers for tensor in mha_cache(runner)]


# What of a layer's attention backend the graphs read.
METADATA = {"kv_indptr": "kv_indptr", "kv_indices": "cuda_graph_kv_indices", "qo_indptr": "qo_indptr"}


def backend(live: Live, layer: int) -> Any:
    return live.draft.draft_extend_attn_backend_list[layer]


def static(live: Live, runner: Any) -> Mapping[str, torch.Tensor]:
    """The static tensors of every layer."""
    if paged_calls.are_made(live.setup):
        return paged_metadata.static(backend(live, layer) for layer in range(live.setup.num_steps))
    return {
        f"{name}.{layer}": getattr(backend(live, layer), attribute)
        for layer in range(live.setup.num_steps)
        for name, attribute in METADATA.items()
    }


def metadata(live: Live, runner: Any, bs: int, batch: Given) -> Mapping[str, torch.Tensor]:
    """The metadata of a layer that is launched by itself; of all of them that of the first: at the first launch there
    is no other yet."""
    used = int(batch["seq_lens"].sum()) + live.setup.max_bs
    if paged_calls.are_made(live.setup):
        return one_layer.of_pages(live, bs, used)
    first = backend(live, getattr(runner, "step", 0))
    indices = {name: getattr(first, attribute)[None] for name, attribute in METADATA.items()}
    return indices | {"kv_indices": indices["kv_indices"][:, :used]}


def neutral(live: Live) -> Mapping[str, int]:
    """The neutral values of one layer, but for the count of drafts, by which layers find the token that a row draws
    from: 0 is its first."""
    rows = one_layer.neutral_rows(live.setup, backend(live, 0).get_cuda_graph_seq_len_fill_value())
    return {**rows, "num_correct_drafts": 0}


FAMILY = Family(
    given=one_layer.given,
    flat=one_layer.FAMILY.flat,
    noisy=one_layer.FAMILY.noisy,
    buffers=one_layer.BUFFERS,
    caller=one_layer.caller,
    model_runner=all_layers,
    configs=mimo.configs,
    static=static,
    metadata=metadata,
    prefix=one_layer.FAMILY.prefix,
    kv=caches,
    input_buffers=one_layer.input_buffers,
    metadata_after=one_layer.FAMILY.metadata_after,
    reference=layered.same_tokens,
)
