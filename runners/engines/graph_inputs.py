"""The memory that emulated graphs use and did not allocate.

A CUDA graph keeps addresses and holds nothing: once an input is freed, a replay reads whatever the allocator has put
there since. A recording does hold its inputs, so that it can read them, and counts how often. An input is freed if
there are no other references to its storage. A recording that was dropped does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from runners.engines.guards import made_at
from runners.engines.places import in_sglang


@dataclass(slots=True, kw_only=True)
class Input:
    """A storage. form: dtype and shape of the tensor that a call used first. captured, made: sglang's lines; made is
    empty if the line is unknown. uses: tensors of this recording that share the storage. Mutable."""

    storage: torch.UntypedStorage
    form: str = ""
    captured: str = ""
    made: str = ""
    uses: int = 0


def note(inputs: dict[int, Input], tensors: Iterable[torch.Tensor]) -> None:
    """A recording keeps these tensors, each an object of its own. The form is empty as long as all of a storage's
    tensors are."""
    for tensor in tensors:
        storage = tensor.untyped_storage()
        entry = inputs.setdefault(storage._cdata, Input(storage=storage))
        entry.uses += 1
        if tensor.numel() and not entry.form:
            entry.form = f"{str(tensor.dtype).removeprefix('torch.')}{[*tensor.shape]}"
            entry.captured, entry.made = in_sglang(), made_at(storage)


def freed(inputs: Iterable[Input], recordings: Iterable[Mapping[int, Input]]) -> list[Input]:
    """The inputs among these that only recordings hold. recordings: the inputs of all that there are. Besides tensors,
    Python's object for a storage is a reference: the same one for everybody."""
    ours: Counter[int] = Counter()
    for recording in recordings:
        for number, entry in recording.items():
            ours[number] += entry.uses
    return [entry for entry in inputs if _references(entry.storage) == ours[entry.storage._cdata] + 1]


def _references(storage: torch.UntypedStorage) -> int:
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count
