"""The ways by which sglang holds memory: from runner, workers and modules to a tensor, by attributes and items."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MethodType, SimpleNamespace
from typing import Any

import torch

from repro.cases.attribute_names import LAST_CALL

_OWN = ("sglang.", "flashinfer.", "runners.engines.standins.")
_ITEM, _ATTRIBUTE = "[", "."
Hop = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Way:
    """The way to a tensor. hops: from the mapping of all roots on; each by an item's key, or by an attribute's name.
    The first is a root's name, or a module's."""

    hops: tuple[Hop, ...]

    def end(self, roots: Mapping[str, Any]) -> Any:
        """The object that is there now; None if the way leads nowhere."""
        (_, first), *hops = self.hops
        try:
            value: Any = roots[first] if first in roots else vars(sys.modules[first])
            for kind, key in hops:
                value = value[key] if kind == _ITEM else getattr(value, key)
        except (AttributeError, KeyError, IndexError, TypeError):
            return None
        return value

    def __str__(self) -> str:
        first, *hops = self.hops
        return str(first[1]) + "".join(f"[{key}]" if kind == _ITEM else f".{key}" for kind, key in hops)


def ways(
    roots: Mapping[str, Any], storages: Collection[int], *, last_call: bool, past: Collection[Any] = ()
) -> dict[int, Way]:
    """The shortest way to each of these storages, by the address of its C++ object; those that no way leads to are left
    out. last_call: by attributes about the last call as well, which the next call replaces. past: objects that no way
    leads through."""
    to: dict[int, Way] = {}
    seen = {id(each) for each in past}
    # Breadth first. An entry holds an object, its parent's number and the hop from there.
    entries: list[tuple[Any, int, Hop]] = [(roots, -1, ("", ""))]
    waiting = deque([0])
    while waiting and len(to) < len(storages):
        number = waiting.popleft()
        value = entries[number][0]
        if isinstance(value, torch.Tensor):
            storage = storage_of(value)
            if storage in storages and storage not in to:
                to[storage] = _way(entries, number)
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        for hop, part in _parts(value):
            if hop[0] == _ATTRIBUTE and hop[1] in LAST_CALL and not last_call:
                continue
            if isinstance(part, torch.Tensor) or _is_looked_into(type(part)):  # type: ignore[arg-type]  # a class is hashable
                waiting.append(len(entries))
                entries.append((part, number, hop))
    return to


def roots_with_modules(roots: Mapping[str, Any]) -> dict[str, Any]:
    """The same, and what modules of sglang's hold."""
    modules = {name: vars(module) for name, module in sys.modules.items() if name.startswith(_OWN[:2])}
    return {**roots, **modules}


def storage_of(value: Any) -> int:
    """The address of the C++ object of a tensor's storage; 0 of what has none."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return 0
    number: int = value.untyped_storage()._cdata
    return number


def _way(entries: list[tuple[Any, int, Hop]], number: int) -> Way:
    hops = []
    while number:
        _, number, hop = entries[number]
        hops.append(hop)
    return Way(tuple(reversed(hops)))


def _parts(value: Any) -> Iterator[tuple[Hop, Any]]:
    if isinstance(value, dict):
        # Not by its class's own items(): mappings of Transformers import hundreds of modules there.
        yield from (((_ITEM, key), part) for key, part in list(dict.items(value)))
    elif isinstance(value, list | tuple | deque):
        yield from (((_ITEM, place), part) for place, part in enumerate(value))
    elif isinstance(value, MethodType):
        yield (_ATTRIBUTE, "__self__"), value.__self__
    else:
        yield from (((_ATTRIBUTE, name), part) for name, part in list(getattr(value, "__dict__", {}).items()))
        for kind in type(value).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name):
                    yield (_ATTRIBUTE, name), getattr(value, name)


@functools.cache
def _is_looked_into(kind: type) -> bool:
    """True of objects of this class."""
    if issubclass(kind, dict | list | tuple | deque | MethodType | SimpleNamespace | torch.nn.Module):
        return True
    return kind.__module__.startswith(_OWN) and not issubclass(kind, type)
