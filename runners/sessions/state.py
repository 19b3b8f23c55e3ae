"""What runner, workers and attention backends hold between calls, Python's attributes as well as tensors: taken at one
moment, put back in place at another. A key that is remembered on the host says what lies in memory: where memory alone
went back, whatever goes by the key would skip in front of other contents.

Objects stay the same objects: attributes, lists, dictionaries, sets, arrays and tensors get back what they held. What
was made since falls away with the last reference to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from operator import is_
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from runners.sessions import memory
from runners.sessions.standing import is_scratch, without_views

# Whose objects are looked into; flashinfer's keep plans. And the modules whose variables count: those of such objects.
_OWN = ("sglang.srt.", "flashinfer.", "runners.engines.standins.")
# Objects whose contents are their own affair, by the end of their class's name: settings, and memory of requests.
_OF_OTHERS = ("Pool", "Allocator", "Config", "Args", "Coordinator", "Registry", "Tokenizer")
_WEIGHTS = "_parameters"  # of a module of torch's
_VARIABLES = (int, float, str, bytes, type(None), tuple, dict, list, set, deque, np.ndarray, torch.Tensor)


@dataclass(frozen=True, slots=True)
class Moment:
    """What was held then: of mappings (attributes are one), sequences and sets the contents, of arrays a copy."""

    mappings: list[tuple[dict[Any, Any], dict[Any, Any]]] = field(default_factory=list)
    variables: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    sequences: list[tuple[Any, list[Any]]] = field(default_factory=list)
    sets: list[tuple[set[Any], set[Any]]] = field(default_factory=list)
    arrays: list[tuple[Any, Any]] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    contents: list[torch.Tensor] = field(default_factory=list)

    def put_back(self) -> None:
        """Have all of it hold this again."""
        for mapping, held in self.mappings:
            if list(mapping) != list(held) or not all(map(is_, mapping.values(), held.values())):
                mapping.clear()
                mapping.update(held)
        for module, values in self.variables:
            module.update(values)
        for sequence, entries in self.sequences:
            if len(sequence) != len(entries) or not all(map(is_, sequence, entries)):
                sequence.clear()
                sequence.extend(entries)
        for members, were in self.sets:
            members.clear()
            members.update(were)
        for array, values in self.arrays:
            array[...] = values
        memory.restore(self.tensors, self.contents)


class State:
    """roots: the objects from which all others are found. apart: tensors that are kept elsewhere, a KV cache say: what
    shares their memory is left alone."""

    def __init__(self, roots: Mapping[str, Any], apart: Collection[torch.Tensor]) -> None:
        self._roots = list(roots.values())
        self._apart = {tensor.untyped_storage().data_ptr() for tensor in apart}

    def take(self) -> Moment:
        moment = Moment()
        tensors: dict[int, torch.Tensor] = {}
        seen: set[int] = set()
        classes: set[type] = set()
        waiting = list(self._roots)
        while waiting:
            value = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, torch.Tensor):
                if self._keeps(value):
                    tensors[id(value)] = value
            elif isinstance(value, np.ndarray):
                moment.arrays.append((value, value.copy()))
            elif isinstance(value, tuple):
                waiting += value
            elif isinstance(value, list | deque):
                moment.sequences.append((value, list(value)))
                waiting += value
            elif isinstance(value, set):
                moment.sets.append((value, set(value)))
            else:
                mapping = value if isinstance(value, dict) else _attributes(value, classes)
                if mapping is not None:
                    moment.mappings.append((mapping, dict(mapping)))
                    waiting += (held for name, held in mapping.items() if not is_scratch(name) and name != _WEIGHTS)
        whole = without_views({str(place): tensor for place, tensor in tensors.items()})
        moment.tensors.extend(whole.values())
        moment.contents.extend(memory.copied(moment.tensors))
        return moment

    def _keeps(self, tensor: torch.Tensor) -> bool:
        if not tensor.numel() or tensor.layout is not torch.strided or tensor.is_meta or tensor.requires_grad:
            return False
        return tensor.untyped_storage().data_ptr() not in self._apart


def _attributes(value: Any, classes: set[type]) -> dict[str, Any] | None:
    """None of an object that is not looked into."""
    kind = type(value)
    looked_into = kind is SimpleNamespace or isinstance(value, torch.nn.Module) or kind.__module__.startswith(_OWN)
    if not looked_into or isinstance(value, type) or kind.__name__.endswith(_OF_OTHERS):
        return None
    return getattr(value, "__dict__", None)
