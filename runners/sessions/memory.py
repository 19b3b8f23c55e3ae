"""A session's KV cache: what lies in it before a step, which slots a path changed, and whether two caches agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from repro.case import Request
from repro.layout import Ints
from repro.payload import NOISE_SIZE, floats, window
from runners.watch import Unfit


def fill_table(rows: torch.Tensor, table: Ints) -> None:
    """Put the layout into req_to_token. Unfit if it does not hold it."""
    height, width = table.shape
    if rows.shape[0] < height or rows.shape[1] < width:
        raise Unfit(f"req_to_token is {tuple(rows.shape)}, the layout needs {table.shape}")
    rows.zero_()
    rows[:height, :width] = torch.from_numpy(table)


def fill_cache(kv: Sequence[torch.Tensor], table: Ints) -> None:
    """Put known values into the whole cache. Unfit if it has too few slots."""
    for number, tensor in enumerate(kv):
        if tensor.shape[0] <= table.max():
            raise Unfit(f"the KV cache has {tensor.shape[0]} slots, the layout needs {table.max() + 1}")
        tensor.copy_(torch.from_numpy(floats(0, f"kv{number}", tuple(tensor.shape))))


def fill_step(
    kv: Sequence[torch.Tensor],
    noise: torch.Tensor,
    step: int,
    prefixes: Sequence[tuple[Request, Ints]],
    drafts: Ints,
) -> None:
    """Put each request's prefix into its KV slots, from its `data`, whatever ran before; and into the slots of its
    drafts what differs from step to step, so that every write shows as a change."""
    slots = np.concatenate([*(own for _, own in prefixes), drafts])
    for number, tensor in enumerate(kv):
        width = tensor[0].numel()
        starts = [
            window(request.data, f"prefix{number}") + np.arange(own.size, dtype=np.int64) * width
            for request, own in prefixes
        ]
        starts.append(window(step, f"stale{number}") + np.arange(drafts.size, dtype=np.int64) * width)
        where = torch.from_numpy(np.stack([slots, np.concatenate(starts)])).to(noise.device)
        cells = (where[1][:, None] + torch.arange(width, device=noise.device)) & (NOISE_SIZE - 1)
        tensor.view(len(tensor), width)[where[0]] = noise[cells]


def copied(kv: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in kv]


def restore(kv: Sequence[torch.Tensor], contents: Sequence[torch.Tensor]) -> None:
    for tensor, values in zip(kv, contents, strict=True):
        tensor.copy_(values)


def changed_slots(kv: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> torch.Tensor:
    """Which KV slots have changed in any bit since `before`: bool [slots]."""
    differs = [(_bits(a) != _bits(b)).flatten(1).any(1) for a, b in zip(kv, before, strict=True)]
    return torch.stack(differs).any(0)


def contents(kv: Sequence[torch.Tensor], slots: torch.Tensor) -> torch.Tensor:
    """What lies in these slots: [n, layers * 2 * heads * head_dim]."""
    return torch.cat([tensor[slots].flatten(1) for tensor in kv], dim=1)


def same_contents(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> torch.Tensor:
    """Whether two KV caches hold the same bits, slot 0 apart, in which padded rows write: a scalar on the device."""
    equal = [(_bits(x)[1:] == _bits(y)[1:]).all() for x, y in zip(a, b, strict=True)]
    return torch.stack(equal).all()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, so that equal NaNs are equal and zeros of different sign are not."""
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
