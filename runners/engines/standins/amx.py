"""sgl_kernel's attention for CPUs, whose binary wants a build for CPUs and AMX, as torch operators in plain torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from runners.engines.standins import native_imports

# Optional arguments came later; releases without them leave them out.
_DECODE = (
    "decode_attention_cpu(Tensor query, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor(c!) output, Tensor key, "
    "Tensor value, Tensor loc, Tensor(d!) attn_logits, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
    "float sm_scale, float logit_cap, bool is_cross_attention=False, int sliding_window_size=0, "
    "Tensor? encoder_lens=None, Tensor? sinks=None) -> ()"
)
_EXTEND = (
    "extend_attention_cpu(Tensor query, Tensor key, Tensor value, Tensor(a!) output, Tensor k_cache, Tensor v_cache, "
    "Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, Tensor extend_start_loc, "
    "int max_len_extend, float sm_scale, float logit_cap, bool is_cross_attention=False, int sliding_window_size=0, "
    "Tensor? encoder_lens=None, Tensor? sinks=None) -> ()"
)
# The same for caches of 8-bit numbers as well, behind the caches.
_SCALED = _DECODE.replace("Tensor(c!) output", "float k_scale, float v_scale, Tensor(c!) output")
_library: list[torch.library.Library] = []


def define(*, scaled: bool = False) -> None:
    """Define the attention operators of a build for CPUs that is absent, and let sgl_kernel be imported. scaled: as
    since 0.5.20, with the scales of keys and values."""
    if _library:
        return
    library = torch.library.Library("sgl_kernel", "FRAGMENT")
    _library.append(library)
    if hasattr(torch.ops.sgl_kernel, "decode_attention_cpu"):
        return
    library.define(_SCALED if scaled else _DECODE)
    library.define(_EXTEND)
    library.impl("decode_attention_cpu", scaled_decode_attention if scaled else decode_attention, "CPU")
    library.impl("extend_attention_cpu", _refuse, "CPU")
    if importlib.util.find_spec("sgl_kernel") is None:
        native_imports.stand_in("sgl_kernel")


@contextmanager
def declaring() -> Iterator[None]:
    """While entered, an operator of sgl_kernel that is about to get a fake implementation is declared if it does not
    exist: sglang gives one to each that any model may call, and PyTorch wants them to exist. Calling one raises."""
    register = torch.library.register_fake

    def declared(name: str, *arguments: Any, **options: Any) -> Any:
        namespace, _, operator = name.partition("::")
        if namespace == "sgl_kernel" and not hasattr(torch.ops.sgl_kernel, operator):
            _library[0].define(f"{operator}() -> ()")
        return register(name, *arguments, **options)

    torch.library.register_fake = declared
    try:
        yield
    finally:
        torch.library.register_fake = register


def decode_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    output: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attention: bool = False,
    sliding_window_size: int = 0,
    encoder_lens: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Put each row's key and value into its slot, then let its query attend to the seq_lens tokens of its request.

    query, output: [rows, heads, head_dim]; key, value: [rows, ...]; caches: [slots, kv heads, head_dim].
    """
    if is_cross_attention or sliding_window_size > 0 or sinks is not None:
        raise NotImplementedError("cross attention, sliding windows and sinks have no stand-in")
    k_cache[loc] = key.reshape(-1, *k_cache.shape[1:])
    v_cache[loc] = value.reshape(-1, *v_cache.shape[1:])
    groups = query.shape[1] // k_cache.shape[1]
    for row, (request, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        tokens = req_to_token[request, :length].long()
        keys, values = (cache[tokens].float().repeat_interleave(groups, 1) for cache in (k_cache, v_cache))
        scores = torch.einsum("hd,nhd->hn", query[row].float(), keys) * sm_scale
        if logit_cap > 0:
            scores = logit_cap * torch.tanh(scores / logit_cap)
        output[row] = torch.einsum("hn,nhd->hd", scores.softmax(-1), values).to(output.dtype)


def scaled_decode_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scale: float,
    v_scale: float,
    *rest: Any,
) -> None:
    """The same, of caches that are kept as they are."""
    if (k_scale, v_scale) != (1.0, 1.0):
        raise NotImplementedError(f"caches scaled by {k_scale} and {v_scale} have no stand-in")
    decode_attention(query, k_cache, v_cache, *rest)


def _refuse(*_: object) -> None:
    raise NotImplementedError("extend_attention_cpu has no stand-in: no driven runner extends")
