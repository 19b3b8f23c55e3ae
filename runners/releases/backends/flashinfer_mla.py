"""The metadata of sglang's flashinfer backend for latent attention, as its kernel reads it: row starts and lengths of
the host's plan, and the KV indices on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from repro.cases.case import Setup
from repro.cases.families import is_latent
from runners.engines.standins.dense import memory_from
from runners.engines.standins.flashinfer_mla import planned

# An entry of no KV slot, behind those of the last sequence or outside of the memory.
_NONE = -1


def is_used(setup: Setup) -> bool:
    """True if a setup has this backend, which sglang chooses by the model."""
    return setup.backend == "flashinfer" and is_latent(setup)


def metadata(wrappers: Sequence[Any], used: int) -> Mapping[str, torch.Tensor]:
    """One call a wrapper: kv_indptr, qo_indptr [calls, sequences + 1], kv_indices [calls, at least `used`], with what
    lies behind the sequences, as in other backends: a draft plans fewer keys of padded rows than it writes."""
    calls = [_call(wrapper) for wrapper in wrappers]
    width = max(used, *(int(starts[-1]) for starts, _, _ in calls))
    return {
        "kv_indptr": torch.stack([starts for starts, _, _ in calls]),
        "qo_indptr": torch.stack([queries for _, queries, _ in calls]),
        "kv_indices": torch.stack([_filled(slots[:width], width) for _, _, slots in calls]),
    }


def _call(wrapper: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row starts of keys and queries, and the KV slots of all sequences, one behind the other, then those behind."""
    plan, indices = planned(wrapper)
    memory = memory_from(indices)
    rows = [
        _filled(memory[max(0, begin) : max(0, begin + length)], max(0, length))
        for begin, length in zip(plan.keys.tolist(), plan.lengths.tolist(), strict=False)
    ]
    ends = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    last = int(plan.keys[len(rows) - 1] + plan.lengths[len(rows) - 1]) if rows else 0
    return ends, plan.queries.clone(), torch.cat((*rows, memory[max(0, last) :]))


def _filled(slots: torch.Tensor, width: int) -> torch.Tensor:
    return torch.cat((slots, slots.new_full((width - len(slots),), _NONE)))
