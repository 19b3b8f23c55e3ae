"""sglang's backend for sparse attention (DSA) without its compiled kernels: modules answer as on a GPU, and DeepGEMM's
stand-in has its calls noted as those of attention."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from runners.engines.standins import deep_gemm, fa3
from runners.recording.observer import Unsupported
from runners.releases.backends.paged_calls import Call, calls
from runners.releases.options.recurrent import rewrite

_INDEXER = "sglang.srt.layers.attention.dsa.dsa_indexer"
# Modules that ask whether they run on a GPU of NVIDIA's, and import DeepGEMM there alone.
_ASK = (
    _INDEXER,
    "sglang.srt.layers.attention.dsa_backend",
    "sglang.srt.layers.attention.dsa.dsa_metadata_manager",
    "sglang.srt.layers.attention.dsa.dsa_backend_mtp_precompute",
)
_HADAMARD = ("sglang.kernels.ops.quantization.hadamard", "sglang.jit_kernel.hadamard")


def prepare(device: str, count: int) -> None:
    """Prepare sglang; call this before the workers of such a setup are built. count: of the keys that a query chooses;
    0: all. Prefills of more tokens have no dense attention."""
    if device != "cpu":
        raise Unsupported("the calls of DSA's indexer are noted on the emulated engine alone")
    os.environ |= {"SGLANG_DSA_FUSE_TOPK": "0", "SGLANG_DISABLE_DSA_INDEXER_FUSION": "1"}
    os.environ |= {"SGLANG_DSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD": str(count)} if count else {}
    _stand_in()


@functools.cache
def _stand_in() -> None:
    """Once a process."""
    stood_in = deep_gemm.importable(calls.listened(deep_gemm.fp8_paged_mqa_logits, _call))
    with fa3.importable():
        for module in _present(_ASK):
            vars(module).update(_is_cuda=True, is_cuda=lambda: True, deep_gemm=stood_in)
    indexer: Any = importlib.import_module(_INDEXER)
    indexer.Indexer.forward_native = indexer.Indexer.forward_cuda
    # It asks for the number of the queries' GPU, by which it knows how much memory there is.
    rewrite(indexer.Indexer._get_topk_ragged, r"= device\.index$", "= 0")
    rotary: Any = importlib.import_module("sglang.srt.layers.rotary_embedding")
    indexer.get_rope_wrapper = lambda *args, device=None, **named: _ByHead(rotary.get_rope(*args, **named))
    for module in _present(_HADAMARD):
        vars(module)["hadamard_transform"] = _hadamard
    products = torch.mm
    torch.mm = lambda a, b, **named: products(a.float(), b.float()) if "out_dtype" in named else products(a, b, **named)


def _present(names: Iterable[str]) -> Iterator[Any]:
    """The modules of these names that this release has."""
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            yield importlib.import_module(name)


def _call(arguments: Mapping[str, Any]) -> tuple[int, Call]:
    """A call of the indexer as one of attention: each query reads the pages of its row."""
    lengths, table = arguments["lengths"], arguments["table"]
    requests, each = arguments["q"].shape[:2]
    count = requests * each
    call = Call(
        # Rows of the table are repeated for the queries of a request, of which the kernel is given the first.
        page_table=table.as_strided((count, table.shape[1]), (table.stride(0) // each, 1)),
        lengths=lengths.reshape(-1),
        query_starts=torch.from_numpy(np.arange(count + 1)),
        page_size=deep_gemm.PAGE,
        causal=False,
        window=(-1, -1),
        is_part=False,
    )
    return count, call


def _hadamard(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """The product with a Hadamard matrix, over the last dimension, which is a power of two."""
    size, out = x.shape[-1], x.float()
    half = 1
    while half < size:
        pairs = out.unflatten(-1, (-1, 2, half))
        out = torch.stack((pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]), -2).flatten(-3)
        half *= 2
    return (out * scale).to(x.dtype)


class _ByHead:
    """A rotation that takes queries and keys with heads or without, as a GPU's kernel does."""

    def __init__(self, rotate: Any) -> None:
        self._rotate, self.cos_sin_cache = rotate, rotate.cos_sin_cache

    def __call__(self, positions: torch.Tensor, *both: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = [part if part.dim() > 2 else part[:, None] for part in both]
        turned = self._rotate(positions, *parts)
        return tuple(part.view(whole.shape) for part, whole in zip(turned, both, strict=True))
