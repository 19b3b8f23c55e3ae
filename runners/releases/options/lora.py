"""Adapters of weights (LoRA): a first one of all projections, and a second one of a smaller rank that leaves some as
they are. They change texts, and drafts know nothing of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import pad

from repro.cases.case import Setup
from repro.cases.payload import floats
from repro.cases.rows.adapters import ADAPTERS
from repro.cases.sharing import ranks_of, sharers_of
from runners.recording.observer import HarnessError

# Before, sglang takes adapters with drafts from a table alone (server_args.py, 0.5.18:9373).
DRAFTED_SINCE = "0.5.19"
# Before, it captures no prefill with them (server_args.py, 0.5.16:3792).
PREFILLED_SINCE = "0.5.17"
# Before, its backends name the device "cuda".
ANYWHERE_SINCE = "0.5.20"
_DATA = 38  # any constant: weights are part of the meaning of a seed file
# The projections that sglang joins to one, in the order of its rows, and those that stand alone.
_JOINED: Mapping[str, tuple[str, ...]] = {
    "self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "self_attn.o_proj": ("o_proj",),
    "mlp.gate_up_proj": ("gate_proj", "up_proj"),
    "mlp.down_proj": ("down_proj",),
}
_HEAD = "lm_head"
# The projections whose inputs ranks share, and add their products; of others they share rows.
_ADDED, _NETWORK = ("o_proj", "down_proj"), ".mlp."
# Each adapter has a rank, a factor of its products, and projections that it leaves as they are.
_RANKS, _FACTORS = (8, 4), (0.25, 0.5)
_LEFT: tuple[tuple[str, ...], ...] = ((), ("k_proj", "gate_proj", "up_proj", "o_proj", _HEAD))


@dataclass(frozen=True, slots=True)
class _Part:
    """A projection's rows of one adapter: matrices [rank, inputs] and [rows, rank] of all ranks together, that are zero
    where it is left as it is. rows, columns: this rank's share of the product."""

    name: str
    narrow: torch.Tensor
    wide: torch.Tensor
    rows: slice
    columns: slice

    @property
    def added(self) -> torch.Tensor:
        """The product, as this rank adds it."""
        return self.wide[self.rows].double() @ self.narrow[:, self.columns].double()


def arguments(setup: Setup) -> dict[str, Any]:
    """Arguments of a server."""
    modules = [name for names in _JOINED.values() for name in names] + [_HEAD] * setup.lora_head
    return {
        "enable_lora": True,
        "max_loras_per_batch": setup.max_loras_per_batch,
        "lora_backend": setup.lora_backend,
        "max_lora_rank": max(_RANKS),
        "lora_target_modules": modules,
    }


def name_of(adapter: int) -> str | None:
    """The name by which sglang knows an adapter; of 0, which is the model as it is, none."""
    return f"adapter-{adapter}" if adapter else None


def load(runner: Any, setup: Setup) -> None:
    """Give a target's runner all adapters. runner: sglang's ModelRunner."""
    reference: Any = importlib.import_module("sglang.srt.lora.lora_registry").LoRARef
    for adapter in range(1, ADAPTERS + 1):
        parts = [part for joined in _parts(setup, runner.model, adapter).values() for part in joined if part.wide.any()]
        rank = _RANKS[adapter - 1]
        config = {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": rank * _FACTORS[adapter - 1],
            "target_modules": sorted({part.name.rpartition(".")[2] for part in parts}),
        }
        weights = {
            f"base_model.model.{part.name}.lora_{kind}.weight": matrix
            for part in parts
            for kind, matrix in (("A", part.narrow), ("B", part.wide))
        }
        name = name_of(adapter)
        # Beside other ranks sglang keeps all adapters (lora_manager.py, 0.5.21:336).
        named = reference(lora_id=name, lora_name=name, lora_path=name, pinned=setup.dp_attention)
        result = runner.load_lora_adapter_from_tensors(named, weights, config)
        if not result.success:
            raise HarnessError(f"adapter {adapter} was not loaded: {result.error_message}")


def residents(runner: Any) -> list[Any]:
    """The objects that say which adapter lies in which rows of memory, and which goes next: as those rows are put back
    behind a case, so are these."""
    pool = runner.lora_manager.memory_pool
    return [pool.uid_to_buffer_id, pool.buffer_id_to_uid, pool.eviction_policy]


@contextmanager
def merged(setup: Setup, model: Any, adapter: int) -> Iterator[None]:
    """While entered, the weights of a target's layers are read with what this adapter adds to them (reference/llama.py:
    weight); 0: with nothing."""
    parts = _parts(setup, model, adapter) if adapter else {}
    for place, joined in parts.items():
        module = model.get_submodule(place)
        rows = torch.cat([part.added for part in joined]) * _FACTORS[adapter - 1]
        module.added = pad(rows, (0, 0, 0, len(module.weight) - len(rows)))
    try:
        yield
    finally:
        for place in parts:
            del model.get_submodule(place).added


def _parts(setup: Setup, model: Any, adapter: int) -> dict[str, list[_Part]]:
    """The parts of an adapter by the module of sglang's to whose rows they are added, in the order of these."""
    parts: dict[str, list[_Part]] = {}
    for number, layer in enumerate(model.model.layers):
        for joined, names in _JOINED.items():
            place, prefix = f"model.layers.{number}.{joined}", f"model.layers.{number}.{joined.partition('.')[0]}"
            weight, attention = model.get_submodule(place).weight, layer.self_attn
            heads = (attention.q_size, attention.kv_size, attention.kv_size)
            rows = heads if len(names) == len(heads) else (len(weight) // len(names),) * len(names)
            parts[place] = [
                _shared(setup, f"{prefix}.{name}", count, weight, adapter)
                for name, count in zip(names, rows, strict=True)
            ]
    if setup.lora_head:
        weight = model.get_submodule(_HEAD).weight
        parts[_HEAD] = [_part(_HEAD, setup.vocab_size, weight, adapter, weight.shape[1])]
    return parts


def _shared(setup: Setup, name: str, rows: int, weight: torch.Tensor, adapter: int) -> _Part:
    """The part of a projection of which this rank has so many rows, or some inputs where ranks add their products.
    Beside other ranks of data-parallel attention all of them share a network, and none attention."""
    inputs, ranks, here = weight.shape[1], 1, 0
    if _NETWORK in name:
        ranks, here = ranks_of(setup), ranks_of(setup) - sharers_of(setup)
    if name.rpartition(".")[2] in _ADDED:
        part = _part(name, rows, weight, adapter, inputs * ranks)
        return replace(part, columns=slice(here * inputs, (here + 1) * inputs))
    part = _part(name, rows * ranks, weight, adapter, inputs)
    return replace(part, rows=slice(here * rows, (here + 1) * rows))


def _part(name: str, rows: int, weight: torch.Tensor, adapter: int, inputs: int) -> _Part:
    """Both matrices in the type of the weight that they are added to."""
    rank = _RANKS[adapter - 1]
    narrow = _even(f"{adapter}.{name}.narrow", (rank, inputs)) / inputs**0.5
    wide = _even(f"{adapter}.{name}.wide", (rows, rank)) / rank**0.5
    if name.rpartition(".")[2] in _LEFT[adapter - 1]:
        wide.zero_()
    return _Part(name, narrow.to(weight.dtype), wide.to(weight.dtype), rows=slice(None), columns=slice(None))


def _even(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Values of mean 0 and variance 1."""
    return torch.from_numpy(floats(_DATA, name, shape)) * 3.0**0.5
