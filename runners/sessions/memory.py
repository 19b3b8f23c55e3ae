"""A session's KV cache: what lies in it before a step, which slots a path changed, and whether two caches agree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch

from repro.cases.case import Request
from repro.cases.layout import Ints
from repro.cases.payload import NOISE_SIZE, floats, noise, window
from runners.engines.sending import sent
from runners.recording.observer import HarnessError

Key = TypeVar("Key", bound=Hashable)


def fill_table(rows: torch.Tensor, table: Ints) -> None:
    """Put the layout into req_to_token, whose rows are wider than a context by what sglang leaves for drafts.
    HarnessError if it does not hold it."""
    height, width = table.shape
    if rows.shape[0] < height or rows.shape[1] < width:
        raise HarnessError(f"req_to_token is {tuple(rows.shape)}, the layout needs {table.shape}")
    rows.zero_()
    rows[:height, :width] = sent(torch.from_numpy(table), rows.device)


def fill_cache(kv: Sequence[torch.Tensor], table: Ints) -> None:
    """Put known values into the whole cache. HarnessError if it has too few slots."""
    for number, tensor in enumerate(kv):
        if tensor.shape[0] <= table.max():
            raise HarnessError(f"the KV cache has {tensor.shape[0]} slots, the layout needs {table.max() + 1}")
        tensor.copy_(torch.from_numpy(floats(0, f"kv{number}", tuple(tensor.shape))))


def filled_from(widest: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """The values that KV caches are filled from: the noise of repro/cases/payload.py on the device, from whose end it
    goes on to its beginning for as many values as the widest slot takes."""
    values = _noise(dtype).to(device)
    return torch.cat((values, values[:widest]))


def prepare() -> None:
    """Make the noise in the process that sessions are forked from: it takes longer than a small cache's filling."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        _noise(dtype)


@functools.cache
def _noise(dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(noise()).to(dtype)


class Filling:
    """Fills a KV cache with rows that begin at any of the values that filled_from() gives. kv: its tensors, all with as
    many slots."""

    def __init__(self, kv: Sequence[torch.Tensor], values: torch.Tensor) -> None:
        self._device = values.device
        groups = _alike(kv, lambda tensor: tensor[0].numel())
        # Per width: the noise as rows of it, and the caches' tensors.
        self._groups = [
            (values.as_strided((NOISE_SIZE, width), (1, 1)), [kv[number].view(-1, width) for number in group])
            for width, group in groups.items()
        ]
        self._parts = [1, *(len(tensors) for _, tensors in self._groups)]
        order = [number for group in groups.values() for number in group]
        self._prefixes, self._stale = [f"prefix{number}" for number in order], [f"stale{number}" for number in order]
        self._widths = np.array([[width] for width, group in groups.items() for _ in group], dtype=np.int64)

    def fill(self, step: int, prefixes: Sequence[tuple[Request, Ints]], others: Ints) -> None:
        """Put each request's prefix into its KV slots, from its `data`, whatever ran before; and into other slots what
        differs from step to step, so that every write shows as a change."""
        slots = np.concatenate([*(slots_of for _, slots_of in prefixes), others])
        sizes = np.array([*(slots_of.size for _, slots_of in prefixes), others.size])
        # How far each slot is from the first one of its request.
        along = np.arange(slots.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        data = [request.data for request, _ in prefixes]
        begins = [
            [*(window(number, prefix) for number in data), window(step, stale)]
            for prefix, stale in zip(self._prefixes, self._stale, strict=True)
        ]
        rows = (np.repeat(np.array(begins), sizes, axis=1) + along * self._widths) & (NOISE_SIZE - 1)
        both = sent(torch.from_numpy(np.concatenate((slots[None], rows))), self._device)
        (where, *begin) = both.split(self._parts)
        for (values, tensors), first in zip(self._groups, begin, strict=True):
            for tensor, contents in zip(tensors, values[first].unbind(), strict=True):
                tensor[where[0]] = contents.to(tensor.dtype)


def copy_slots(kv: Sequence[torch.Tensor], sources: Ints, targets: Ints) -> None:
    """Put what lies in some slots into others."""
    if targets.size:
        here, there = (sent(torch.from_numpy(slots), kv[0].device) for slots in (sources, targets))
        for tensor in kv:
            tensor[there] = tensor[here]


def _alike(kv: Sequence[torch.Tensor], of: Callable[[torch.Tensor], Key]) -> dict[Key, list[int]]:
    """The numbers of those that are alike in this."""
    groups: dict[Key, list[int]] = {}
    for number, tensor in enumerate(kv):
        groups.setdefault(of(tensor), []).append(number)
    return groups


class Snapshots:
    """A KV cache as it was before a step, after the graph and after eager, so kept that all are compared at once.

    kv: its tensors, all with as many slots. beside: other memory, by name, of which copies are kept and put back at
    the same moments.
    """

    BEFORE, GRAPH, EAGER = range(3)

    def __init__(self, kv: Sequence[torch.Tensor], beside: Mapping[str, Snapshots] = {}) -> None:
        self._kv, self.beside = list(kv), beside
        groups = _alike(kv, lambda tensor: (tensor.shape, tensor.dtype, tensor.device)).values()
        self._groups = [[self._kv[number] for number in group] for group in groups]
        stacks = [group[0].new_empty((3, len(group), *group[0].shape)) for group in self._groups]
        self._parts = [[list(stack[moment]) for stack in stacks] for moment in range(3)]
        whole = [bits(stack).flatten(3) for stack in stacks]
        self._neighbours = [(stack[1:], stack[:-1]) for stack in whole]
        self._ends = [(stack[2], stack[0]) for stack in whole]
        order = [number for group in groups for number in group]
        self._order = [order.index(number) for number in range(len(order))]

    def take(self, moment: int) -> None:
        """Keep what is in the cache now; the next one of this moment replaces it."""
        for parts, group in zip(self._parts[moment], self._groups, strict=True):
            torch._foreach_copy_(parts, group)
        for other in self.beside.values():
            other.take(moment)

    def kept(self, moment: int) -> list[torch.Tensor]:
        """The copies kept of this moment, in the cache's order."""
        snapshots = [snapshot for parts in self._parts[moment] for snapshot in parts]
        return [snapshots[place] for place in self._order]

    def put_back(self, moment: int) -> None:
        """Have in the cache what it held then."""
        for parts, group in zip(self._parts[moment], self._groups, strict=True):
            torch._foreach_copy_(group, parts)
        for other in self.beside.values():
            other.put_back(moment)

    def compare(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The slots that differ in any bit, bool [slots] each: since before, by graph; since before, by eager; between
        those two."""
        by_graph, between = _any([torch.ne(*pair).any(dim=(1, 3)) for pair in self._neighbours]).unbind()
        return by_graph, _any([torch.ne(*pair).any(dim=(0, 2)) for pair in self._ends]), between


def _any(masks: Sequence[torch.Tensor]) -> torch.Tensor:
    """True where any of the masks is."""
    return functools.reduce(torch.logical_or, masks)


def copied(kv: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in kv]


def restore(tensors: Sequence[torch.Tensor], contents: Sequence[torch.Tensor]) -> None:
    """Copy contents into tensors, those of a kind together, which takes a GPU one launch."""
    kinds: dict[tuple[torch.dtype, torch.device], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for tensor, values in zip(tensors, contents, strict=True):
        current, saved = kinds.setdefault((tensor.dtype, tensor.device), ([], []))
        current.append(tensor)
        saved.append(values)
    for current, saved in kinds.values():
        torch._foreach_copy_(current, saved)


def changed_slots(kv: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> torch.Tensor:
    """The KV slots that have changed in any bit since `before`: bool [slots]."""
    differs = [(bits(a) != bits(b)).flatten(1).any(1) for a, b in zip(kv, before, strict=True)]
    return torch.stack(differs).any(0)


def contents(kv: Sequence[torch.Tensor], slots: torch.Tensor) -> torch.Tensor:
    """The contents of these slots: [n, layers * 2 * heads * head_dim]; values of eight bits as float32."""
    rows = torch.cat([tensor[slots].flatten(1) for tensor in kv], dim=1)
    return rows if rows.element_size() > 1 else rows.float()


def scaled(kv: Sequence[torch.Tensor], factor: float) -> list[torch.Tensor]:
    """The whole cache times a factor, as near as its type has it."""
    return [(tensor.float() * factor).to(tensor.dtype) for tensor in kv]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, so that equal NaNs are equal and zeros of different sign are not."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
