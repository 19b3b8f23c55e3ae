"""The tiny models that are run: Hugging Face configuration folders, and weights on which every input matters."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from repro.cases.case import Setup
from repro.cases.own_place import temporary_folder
from repro.cases.payload import floats

ROPE_THETA = 10000.0
_WEIGHTS_DATA = 27338  # any constant: weights are part of the meaning of a seed file


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The folders of the target's and of the draft model's configurations."""

    target: Path
    draft: Path


@contextmanager
def folders(target: Mapping[str, Any], draft: Mapping[str, Any]) -> Iterator[Folders]:
    """Write both configurations for as long as the models are built."""
    with temporary_folder("eagleeye-models-") as root:
        yield Folders(target=_write(root / "target", target), draft=_write(root / "draft", draft))


def _write(folder: Path, config: Mapping[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def dimensions(setup: Setup) -> dict[str, Any]:
    """The entries of a configuration that all kinds of models have."""
    return {
        "hidden_size": setup.hidden_size,
        "num_attention_heads": setup.num_heads,
        "num_key_value_heads": setup.num_kv_heads,
        "vocab_size": setup.vocab_size,
        "max_position_embeddings": setup.context_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": ROPE_THETA,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": setup.dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def llama(setup: Setup, architecture: str = "LlamaForCausalLM") -> dict[str, Any]:
    """The configuration of a Llama of one layer, or of a draft model of that kind; of two layers, a sliding
    and a full one, where sliding layers have KV slots of their own."""
    is_hybrid = setup.swa and architecture == "LlamaForCausalLM"
    return dimensions(setup) | {
        "architectures": [architecture],
        "model_type": "llama",
        "num_hidden_layers": 2 if is_hybrid else 1,
        **({"is_hybrid_swa": True, "hybrid_layer_pattern": [1, 0]} if is_hybrid else {}),
        "intermediate_size": setup.hidden_size,
        "head_dim": setup.head_dim,
    }


_ASKED = "get_attention_sliding_window_size"
# Llama's classes by whose they are; the draft models derive from the target's.
_WHOSE = {
    "target": frozenset({"LlamaForCausalLM"}),
    "draft": frozenset({"LlamaForCausalLMEagle", "LlamaForCausalLMEagle3"}),
    "": frozenset[str](),
}


@contextmanager
def windowed(window: int, whose: str) -> Iterator[None]:
    """While entered, a Llama target or draft model is built as one whose layers see so many tokens before their own; 0:
    all. sglang asks the model for it, before it makes the attention backend."""
    if not window:
        yield
        return
    # The second has an answer of its own since 0.5.23.
    names = ("llama", "LlamaForCausalLM"), ("llama_eagle3", "LlamaForCausalLMEagle3")
    kinds = [getattr(importlib.import_module(f"sglang.srt.models.{module}"), kind) for module, kind in names]
    kept = {kind: vars(kind).get(_ASKED) for kind in kinds}

    def size(self: Any) -> int | None:
        if type(self).__name__ not in _WHOSE[whose]:
            return None
        pattern = getattr(self.config, "hybrid_layer_pattern", None)
        for attention in attentions(self):
            if pattern is None or pattern[attention.layer_id]:
                attention.sliding_window_size = window
        return window

    for kind in kinds:
        setattr(kind, _ASKED, size)
    try:
        yield
    finally:
        for kind, window_of in kept.items():
            if window_of is None:
                delattr(kind, _ASKED)
            else:
                setattr(kind, _ASKED, window_of)


def attentions(model: Any) -> Iterator[Any]:
    """sglang's attention layers of a model."""
    yield from (module for module in model.modules() if type(module).__name__ == "RadixAttention")


@contextmanager
def capped(cap: int) -> Iterator[None]:
    """While entered, models are built with attention whose scores level off there; 0: nowhere. So they are with a cap
    of their own, before the attention backend is made, which may ask for it."""
    if not cap:
        yield
        return
    kind: Any = importlib.import_module("sglang.srt.layers.radix_attention").RadixAttention
    built = kind.__init__

    def build(self: Any, *args: Any, **more: Any) -> None:
        built(self, *args, **more)
        self.logit_cap = float(cap)

    kind.__init__ = build
    try:
        yield
    finally:
        kind.__init__ = built


def keep_sizes() -> None:
    """Have sglang build layers as wide as they are configured. On a CPU device it rounds the intermediate size up to
    what CPU kernels want, and notes the number of heads, by which some models divide the hidden size; on a GPU, which
    the emulated engine stands for, it does neither."""
    module: Any = importlib.import_module("sglang.srt.configs.update_config")
    module.DEFAULT_MOE_PADDING_SIZE = 1

    def update(config: Any, name: str, value: object) -> None:
        if not name.startswith("original_"):
            setattr(config, name, value)

    module.update_config = update


def fill_weights(model: torch.nn.Module) -> None:
    """Give every parameter known values of a size that keeps activations near one.

    The loader's dummy weights lie within 0.001 of zero; with them a model hardly looks at its inputs, and a
    comparison of its outputs would pass whatever a buffer held.
    """
    _norms_without_kernels(model)
    for name, parameter in model.named_parameters():
        values = torch.from_numpy(floats(_WEIGHTS_DATA, name, tuple(parameter.shape)))
        if parameter.dim() < 2:
            values = 1.0 + 0.25 * values
        elif "embed" not in name:
            values = values * (3.0 / parameter.shape[-1]) ** 0.5 * (0.5 if _is_eagles_first(name, parameter) else 1.5)
        parameter.data.copy_(values)


def _is_eagles_first(name: str, parameter: torch.Tensor) -> bool:
    """True for the layer that joins a token and the hidden states of the draft before, in EAGLE's draft model: without
    a norm before attention they would grow threefold with every draft, and after ten be no numbers any more."""
    return name.endswith("fc.weight") and parameter.shape[1] == 2 * parameter.shape[0]


@contextmanager
def norms_without_kernels() -> Iterator[None]:
    """While entered, models are loaded with norms that run in float32 on a GPU, too: their own session cannot reach
    them before graphs are captured."""
    kind: Any = importlib.import_module("sglang.srt.model_executor.model_runner").ModelRunner
    loads = kind.load_model

    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = loads(self, *args, **kwargs)
        _norms_without_kernels(self.model)
        return loaded

    kind.load_model = load_model
    try:
        yield
    finally:
        kind.load_model = loads


def _norms_without_kernels(model: torch.nn.Module) -> None:
    """sgl_kernel's norms refuse float32, which cases use because it rounds least: let sglang's own PyTorch form of
    them run there, by graph and by eager alike. Half precision, as in production, keeps the kernels."""
    for module in model.modules():
        weight = next(module.parameters(recurse=False), None)
        if weight is None or not type(module).__name__.endswith("Norm") or not hasattr(module, "forward_native"):
            continue
        if weight.is_cuda and weight.dtype == torch.float32:
            module._forward_method = module.forward_native
        if not weight.is_cuda:
            module.forward = _in_place(module.forward)


def _in_place(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Have a norm's results keep the shapes of its arguments, as a kernel in place does. PyTorch's sum with the
    residual broadcasts: a batch of one token that lost its first dimension would get it back."""

    @functools.wraps(forward)
    def normed(x: Any, *args: Any, **kwargs: Any) -> Any:
        results = forward(x, *args, **kwargs)
        residual = args[0] if args else kwargs.get("residual")
        if not isinstance(residual, torch.Tensor) or x.shape == residual.shape or x.numel() != residual.numel():
            return results
        return results[0].view(x.shape), *results[1:]

    return normed
