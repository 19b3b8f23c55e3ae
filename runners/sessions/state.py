"""State of runner, workers and attention backends between calls, Python's attributes as well as tensors: taken at one
moment, put back in place at another. A key that is remembered on the host says what lies in memory: where memory alone
went back, whatever goes by the key would skip in front of other contents.

Objects stay the same objects: attributes, lists, dictionaries, sets, arrays and tensors get back what they held. What
was made since falls away with the last reference to it.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import is_
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from runners.sessions import memory
from runners.sessions.standing import is_scratch, without_views

# Whose objects are looked into; flashinfer's keep plans.
_OWN = ("sglang.srt.", "flashinfer.", "runners.engines.standins.")
# Objects whose contents are their own affair, by the end of their class's name: settings, and memory of requests.
_OF_OTHERS = ("Pool", "Allocator", "Config", "Args", "Coordinator", "Registry", "Tokenizer")
_WEIGHTS = "_parameters"  # of a module of torch's
_CONTAINERS = (torch.Tensor, np.ndarray, tuple, list, deque, set, dict)


@dataclass(frozen=True, slots=True)
class Moment:
    """The state at one moment: of mappings (attributes are one), sequences and sets the contents, of arrays a copy."""

    mappings: list[tuple[dict[Any, Any], dict[Any, Any]]] = field(default_factory=list)
    sequences: list[tuple[Any, list[Any]]] = field(default_factory=list)
    sets: list[tuple[set[Any], set[Any]]] = field(default_factory=list)
    arrays: list[tuple[Any, Any]] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    contents: list[torch.Tensor] = field(default_factory=list)

    def put_back(self) -> None:
        """Have all of it hold this again."""
        for mapping, contents in self.mappings:
            if not _is_same(mapping, contents):
                mapping.clear()
                mapping.update(contents)
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


@dataclass(frozen=True, slots=True)
class _Mapping:
    """The contents of a mapping, and the part of it that is looked into."""

    items: dict[Any, Any]
    parts: list[Any]


class State:
    """roots: the objects from which all others are found. apart: tensors that are kept elsewhere, a KV cache say: what
    shares their memory is left alone. Mutable: it remembers the mappings of the first moment, most of which never
    change; those of a later one would keep alive what sglang let go of."""

    def __init__(self, roots: Mapping[str, Any], apart: Collection[torch.Tensor]) -> None:
        self._roots = list(roots.values())
        self._apart = {tensor.untyped_storage().data_ptr() for tensor in apart}
        self._first: dict[int, _Mapping] = {}

    def take(self) -> Moment:
        moment = Moment()
        mappings: dict[int, _Mapping] = {}
        tensors: dict[int, torch.Tensor] = {}
        seen: set[int] = set()
        waiting = _looked_into(self._roots)
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
                waiting += _looked_into(value)
            elif isinstance(value, list | deque):
                moment.sequences.append((value, list(value)))
                waiting += _looked_into(value)
            elif isinstance(value, set):
                moment.sets.append((value, set(value)))
            else:
                mapping = value if isinstance(value, dict) else value.__dict__
                known = mappings[id(mapping)] = self._known(mapping)
                moment.mappings.append((mapping, known.items))
                waiting += known.parts
        self._first = self._first or mappings
        whole = without_views({str(place): tensor for place, tensor in tensors.items()})
        moment.tensors.extend(whole.values())
        moment.contents.extend(memory.copied(moment.tensors))
        return moment

    def _known(self, mapping: dict[Any, Any]) -> _Mapping:
        first = self._first.get(id(mapping))
        if first and _is_same(mapping, first.items):
            return first
        contents = dict(mapping)
        kept = [value for name, value in contents.items() if not is_scratch(name) and name != _WEIGHTS]
        return _Mapping(contents, _looked_into(kept))

    def _keeps(self, tensor: torch.Tensor) -> bool:
        if not tensor.numel() or tensor.layout is not torch.strided or tensor.is_meta or tensor.requires_grad:
            return False
        return tensor.untyped_storage().data_ptr() not in self._apart


def _is_same(mapping: dict[Any, Any], contents: dict[Any, Any]) -> bool:
    """True if these are the same objects under the same names, in the same order."""
    return (
        len(mapping) == len(contents)
        and all(map(is_, mapping.values(), contents.values()))
        and all(map(is_, mapping, contents))
    )


def _looked_into(values: Iterable[Any]) -> list[Any]:
    """The values that may hold something that changes."""
    return [value for value in values if _is_looked_into(type(value))]  # type: ignore[arg-type]  # a class is hashable


@functools.cache
def _is_looked_into(kind: type) -> bool:
    """True of objects of this class."""
    if issubclass(kind, _CONTAINERS):
        return True
    is_plain = kind is SimpleNamespace or issubclass(kind, torch.nn.Module) or kind.__module__.startswith(_OWN)
    return (
        is_plain and not issubclass(kind, type) and not kind.__name__.endswith(_OF_OTHERS) and kind.__dictoffset__ != 0
    )
