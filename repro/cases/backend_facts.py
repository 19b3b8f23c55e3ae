"""The abilities of each attention backend, and what cases draw for it: one row a backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFacts:
    """One row of BACKEND_FACTS."""

    # What cases draw, a value as often as it is named here.
    drawn_head_dims: tuple[int, ...]
    drawn_dtypes: tuple[str, ...]
    # All head dims that it has kernels for; None: any multiple of 8.
    head_dims: tuple[int, ...] | None = None
    # Dtypes that it has no kernels for.
    without_dtypes: tuple[str, ...] = ()
    # True if NEXTN, whose models have latent attention, is drawn over it.
    latent: bool = False
    # The width of a token's latent vector, and of the rotary part beside it: those that kernels are compiled for.
    latent_dims: tuple[int, int] = (512, 64)
    # Whether its kv_indices name the query tokens' own KV slots besides those of the prefix.
    indexes_queries: bool = False
    # Whether it reads whole pages by their numbers: each branch of a draft reads its own copy of the prefix's last
    # page, and a padded row any slots of the reserved one.
    reads_pages: bool = False
    # Whether drafts of several steps are driven with windows; and whether its backend for them can be made at all where
    # there is one, which flashinfer's asserts that there is not.
    drafts_in_windows: bool = True
    starts_in_windows: bool = True
    # True if it has update_verify_buffers_to_fill_after_draft, by which verify's metadata that was planned while the
    # draft ran takes over the draft's tree. In all releases the others' is that of AttentionBackend, which raises.
    plans_ahead: bool = False
    # The runners whose graphs build its metadata, in some release; and whether it takes one graph of all of
    # multi_layer's layers (Setup.one_graph), which trtllm_mha refuses.
    plans_in_graphs: frozenset[str] = frozenset()
    combines_layers: bool = False
    # Whether it plans a prefill whose whole pass is one graph: sglang's others plan no such mode.
    captures_prefills: bool = False
    # Whether it is driven with keys and values of eight bits (Setup.kv_dtype).
    quantises: bool = False
    # Whether setups with a logit cap are drawn: flashinfer's kernels are planned without a cap, whatever the layer says
    # (docs/findings).
    draws_caps: bool = False
    # Whether the emulated engine has it under deterministic inference: flashinfer's stand-in takes no sizes of splits.
    # FlashAttention's sums each request by itself, in one part.
    invariant: bool = False
    # What the names of sglang's classes for it begin with; empty: anything.
    classes: str = ""
    # The sizes of pages that it takes, where not all: sglang takes another instead. And whether it takes chains alone,
    # with topk 1.
    page_sizes: tuple[int, ...] = ()
    chains: bool = False
    # Its kernels are those of a GPU of SM100, for which the emulated engine is taken then.
    on_sm100: bool = False
    # The engines it can be driven on, and why the emulated one refuses a dtype.
    engines: tuple[str, ...] = ("emulated", "cuda", "toy")
    emulation_lacks: Mapping[str, str] = field(default_factory=dict)
    # It runs on CPUs in production, so that the emulated engine has no GPU to stand in for.
    on_cpu: bool = False
    # sglang's code for it names the device "cuda" literally, so that emulating it needs that word redirected.
    names_cuda: bool = False


# Of backends whose kernels read page tables.
_PAGED: Mapping[str, Any] = {
    "without_dtypes": ("float32",),
    "indexes_queries": True,
    "reads_pages": True,
    "names_cuda": True,
}

BACKEND_FACTS = {
    "triton": BackendFacts(
        # Triton's dot wants at least 16; of 24 a block's last eight are masked.
        drawn_head_dims=(16, 32, 24),
        drawn_dtypes=("float32", "float32", "float32", "float16"),
        latent=True,
        # Of the two pairs of sizes for which Triton's kernel keeps them apart, the smaller.
        latent_dims=(256, 32),
        plans_ahead=True,
        quantises=True,
        draws_caps=True,
        invariant=True,
        classes="Triton",
        emulation_lacks={"bfloat16": "Triton's interpreter has no bfloat16 arithmetic"},
    ),
    "flashinfer": BackendFacts(
        # Each head dim is compiled when it is first used.
        drawn_head_dims=(64,),
        drawn_dtypes=("float16",),
        head_dims=(64, 128, 256),
        without_dtypes=("float32",),
        indexes_queries=True,
        drafts_in_windows=False,
        starts_in_windows=False,
        captures_prefills=True,
        classes="FlashInfer",
        names_cuda=True,
    ),
    "fa3": BackendFacts(
        drawn_head_dims=(64,),
        drawn_dtypes=("float16", "float16", "bfloat16"),
        # Multiples of 8 up to 256; these are the powers of two among those that a library is compiled for.
        head_dims=(64, 128, 256),
        without_dtypes=("float32",),
        indexes_queries=True,
        reads_pages=True,
        plans_in_graphs=frozenset({"draft_extend", "multi_layer"}),
        combines_layers=True,
        drafts_in_windows=False,
        captures_prefills=True,
        invariant=True,
        classes="FlashAttention",
        names_cuda=True,
    ),
    "trtllm_mha": BackendFacts(
        drawn_head_dims=(64,),
        drawn_dtypes=("float16", "float16", "bfloat16"),
        head_dims=(64, 128, 256),
        page_sizes=(16, 32, 64),
        chains=True,
        drafts_in_windows=False,
        starts_in_windows=False,
        plans_in_graphs=frozenset({"draft", "decode", "verify", "draft_extend", "multi_layer"}),
        classes="TRTLLM",
        engines=("emulated",),
        on_sm100=True,
        **_PAGED,
    ),
    "intel_amx": BackendFacts(
        drawn_head_dims=(16, 32), drawn_dtypes=("float32", "bfloat16"), engines=("emulated",), on_cpu=True
    ),
}
