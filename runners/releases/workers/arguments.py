"""The arguments of workers: the server's arguments for a setup, and the ranks of a single process."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Container
from typing import Any

from sglang.srt.server_args import ServerArgs

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Setup
from repro.cases.families import DSA, GEMMA, MIMO, V4, is_latent, is_recurrent
from repro.cases.layout import pool_tokens
from repro.cases.option import SERVER
from repro.cases.options import OPTIONS
from repro.cases.releases import release_order
from repro.cases.rows.adapters import NO_ADAPTERS
from repro.cases.rows.serving import FULL, prefill_buckets
from repro.cases.runner_facts import FROM_TABLE, IN_BLOCKS, MARKOV, RUNNER_FACTS
from runners.recording.observer import Unsupported
from runners.releases.backends import dsa as sparse
from runners.releases.backends import dsv4 as compressed
from runners.releases.backends import flashinfer_mla
from runners.releases.catalogue import present_release
from runners.releases.model import Folders
from runners.releases.options import (
    abilities,
    adaptive,
    blackwell,
    blocks,
    deterministic,
    dsa,
    dsv4,
    gemma4,
    lora,
    mimo,
    nan_logits,
    ngram,
    quantised,
    recurrent,
)
from runners.releases.workers.rendezvous import in_memory

# How the buckets of graphs are given up to 0.5.13; since then they are in cuda_graph_config.
_GONE = {"cuda_graph_bs", "cuda_graph_max_bs", "disable_piecewise_cuda_graph"}
# Options that a worker is not given by their values: what it is given instead is told here, or where it is built.
_OF_PREFILLS = {"prefill_max_bs", "prefill_backend"}
_BY_OTHER_MEANS = {"capture_bs", "slots", "adaptive", "dp_attention", "tp_size", "overlap", "pool"} | _OF_PREFILLS
_BY_OTHER_MEANS |= NO_ADAPTERS.keys()

# Setups that earlier releases are not driven with: which, the first release that is, and the refusal.
_SINCE: tuple[tuple[Callable[[Setup], bool], str, str], ...] = (
    (lambda s: s.family == DSA, dsa.SINCE, "sparse attention runs through compiled kernels without a stand-in"),
    (lambda s: bool(s.index_topk), dsa.FEWER_SINCE, "kernels choose 2,048 keys"),
    (lambda s: s.family == V4, dsv4.SINCE, "DeepSeek-V4 is not driven: its model runs through other kernels"),
    (lambda s: s.family == GEMMA, gemma4.SERVED_SINCE, "rounds of frozen-KV drafts are not driven"),
    (lambda s: s.family == MIMO, mimo.SERVED_SINCE, "rounds of multi-layer drafts are not driven"),
    (
        lambda s: is_recurrent(s) and RUNNER_FACTS[s.runner].serves,
        recurrent.SERVED_SINCE,
        "rounds of recurrent models are not driven",
    ),
    (
        lambda s: is_recurrent(s) and s.plan_stream,
        "0.5.17",
        "the backend of recurrent layers raises where a stream for plans has it update its buffers",
    ),
    (
        lambda s: s.enable_lora and s.algorithm not in FROM_TABLE,
        lora.DRAFTED_SINCE,
        "sglang takes adapters with NGRAM alone",
    ),
    (lambda s: s.sanitizes, nan_logits.SANITIZED_SINCE, "sglang sanitizes no logits"),
    (lambda s: s.algorithm in IN_BLOCKS, blocks.SINCE, "another worker drafts blocks"),
    (lambda s: s.algorithm == MARKOV, blocks.MARKOV_SINCE, "no worker drafts by it"),
    (lambda s: s.algorithm in FROM_TABLE, ngram.SINCE, "another worker drafts from a table"),
    (
        lambda s: s.algorithm in IN_BLOCKS and s.logprobs,
        blocks.LOGPROBS_SINCE,
        "log-probabilities are refused where blocks are drafted",
    ),
    (
        lambda s: s.algorithm in IN_BLOCKS - {MARKOV} and s.dp_attention,
        blocks.RANKS_SINCE,
        "blocks are not drafted under data-parallel attention",
    ),
    (
        lambda s: bool(prefill_buckets(s)) and s.prefill_backend == FULL,
        "0.5.15.post1",
        "full prefill graphs are refused",
    ),
    (
        lambda s: bool(prefill_buckets(s)) and s.prefill_backend == FULL and s.backend == "fa3" and s.page_size > 1,
        "0.5.16",
        "full prefill graphs over FlashAttention have pages of one token",
    ),
    # Rules of ServerArgs._disable_breakable_cudagraph_if_incompatible (server_args.py, 0.5.15.post1:3335), which a
    # backend that is asked for by its name passes by.
    (
        lambda s: bool(s.prefill_max_bs) and is_latent(s) and s.family != DSA,
        "0.5.18",
        "sglang switches prefill graphs off with latent attention",
    ),
    (
        lambda s: bool(s.prefill_max_bs) and s.dp_attention,
        "0.5.17",
        "sglang switches prefill graphs off with data-parallel attention",
    ),
    (
        lambda s: bool(s.prefill_max_bs) and s.deterministic,
        deterministic.PREFILLED_SINCE,
        "sglang switches prefill graphs off with deterministic inference",
    ),
    (
        lambda s: bool(s.prefill_max_bs) and s.enable_lora,
        lora.PREFILLED_SINCE,
        "sglang switches prefill graphs off with adapters",
    ),
)


def server_args(setup: Setup, device: str, models: Folders, *, spare_rows: int) -> dict[str, Any]:
    """Keyword arguments of ServerArgs. Graphs are off while the workers are built: the runner is built by `capture`.
    spare_rows: how many rows of the request pool belong to no request, besides those that the pool has by itself."""
    arguments = {
        "model_path": str(models.target),
        "speculative_draft_model_path": str(models.draft),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "device": device,
        "sampling_backend": "pytorch",
        "max_total_tokens": pool_tokens(setup),
        "max_running_requests": setup.slots + spare_rows,
        "mem_fraction_static": 0.5,
        "disable_radix_cache": True,
        "disable_cuda_graph": True,
        "disable_piecewise_cuda_graph": True,
        "random_seed": 1,
        # It times kernels to choose among their variants; a bundle's flashinfer lacks what 0.5.23 calls for it.
        "disable_flashinfer_autotune": True,
        "cuda_graph_bs": list(setup.capture_bs),
        "cuda_graph_max_bs": setup.max_bs,
    }
    if setup.swa:
        # As many KV slots for sliding layers as for full ones, and a page more than requests own. Since 0.5.14 sliding
        # layers have no more than each request takes until its next eviction, and chunks of a prefill, which sglang may
        # leave out: here requests evict nothing.
        tokens = pool_tokens(setup) + setup.page_size
        os.environ["SGLANG_SWA_EVICTION_INTERVAL"] = str(tokens)
        arguments |= {"swa_full_tokens_ratio": 1.0, "max_total_tokens": tokens, "chunked_prefill_size": tokens}
    known = inspect.signature(ServerArgs).parameters
    arguments |= _options(setup, known)
    arguments |= _prepared(setup, device, known)
    arguments |= adaptive.arguments(setup, models.target, known)
    return {name: value for name, value in arguments.items() if name in known or name not in _GONE}


def refuse(setup: Setup) -> None:
    """Unsupported if this release is not driven with such a setup."""
    release = release_order(present_release())
    for concerns, since, refusal in _SINCE:
        if release < release_order(since) and concerns(setup):
            raise Unsupported(f"before {since} {refusal}")


def _prepared(setup: Setup, device: str, known: Container[str]) -> dict[str, Any]:
    """The arguments of a setup's model, after sglang is prepared for it. Unsupported if this engine cannot serve it."""
    if not BACKEND_FACTS[setup.backend].on_cpu:
        abilities.prepare(device)
    if BACKEND_FACTS[setup.backend].on_sm100:
        blackwell.prepare(device)
    if setup.deterministic:
        deterministic.prepare(device)
    if is_latent(setup) and flashinfer_mla.is_used(setup) and device == "cuda":
        raise Unsupported("the plan of flashinfer's MLA kernel is recorded on the emulated engine alone")
    refuse(setup)
    arguments: dict[str, Any] = {}
    if setup.family == DSA:
        sparse.prepare(device, setup.index_topk)
        arguments = dsa.arguments(known)
    if setup.family == V4:
        compressed.prepare(device)
        arguments = dsv4.arguments(known)
    if setup.algorithm in FROM_TABLE:
        arguments = ngram.arguments(setup)
    if setup.family == MIMO:
        arguments = mimo.arguments(setup)
    if is_recurrent(setup):
        recurrent.prepare(setup, device)
        arguments |= recurrent.arguments(setup)
        if release_order(present_release()) >= release_order(recurrent.KEPT_SINCE):
            arguments |= recurrent.keeping(setup, known)
    if setup.enable_lora:
        arguments |= lora.arguments(setup)
    if setup.kv_dtype:
        quantised.prepare(device)
    return arguments


def _options(setup: Setup, known: Container[str]) -> dict[str, Any]:
    """The options that ServerArgs knows by their names. Unsupported if one is set that it does not know."""
    arguments = {}
    for option in OPTIONS:
        if option.part == SERVER and option.field not in _BY_OTHER_MEANS:
            if option.name in known:
                arguments[option.name] = option.form(getattr(setup, option.field))
            elif option.is_set(setup):
                raise Unsupported(f"this release has no {option.name}")
    return arguments


def ranks() -> dict[str, Any]:
    """Rank arguments of a single process."""
    return {
        "gpu_id": 0,
        "tp_rank": 0,
        "moe_ep_rank": 0,
        "pp_rank": 0,
        "attn_cp_rank": 0,
        "moe_dp_rank": 0,
        "dp_rank": None,
        "nccl_port": in_memory(),
    }


def construct(kind: Any, *args: Any, **fields: Any) -> Any:
    """Call a constructor with those keyword arguments that it knows."""
    known = inspect.signature(kind.__init__).parameters
    return kind(*args, **{name: value for name, value in fields.items() if name in known})


def without_speculation(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if not name.startswith("speculative_")}
