"""KV slots and request slots that are freed when they are free already, with both places. The pool's own lists say what
is free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from repro.traces.paths import Recorded
from runners.engines.places import in_sglang
from runners.recording.observer import Watch
from runners.releases.adapters.round.scheduler import free_pages

# Methods that free KV slots, and such that free pages by their numbers; others call these.
_BY_SLOT, _BY_PAGE = "free", "free_page_ids"
_GROUP_END = "free_group_end"  # frees what was put off until then
_UNKNOWN = "an earlier case"


@dataclass(slots=True)
class Frees:
    """Looks at frees while entered. Mutable: it counts them, and knows where each page and request slot was freed last
    and which pages wait for the end of a group of frees."""

    scheduler: Any
    watch: Watch
    count: int = 0
    places: set[str] = field(default_factory=set)
    _pages: dict[int, str] = field(default_factory=dict)
    _rows: dict[int, str] = field(default_factory=dict)
    _waiting: set[int] = field(default_factory=set)
    _under_way: bool = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While entered; then the number of frees is recorded."""
        allocator = self.scheduler.token_to_kv_pool_allocator
        with ExitStack() as stack:
            for name, size in ((_BY_SLOT, allocator.page_size), (_BY_PAGE, 1), (_GROUP_END, 0)):
                if hasattr(allocator, name):
                    stack.enter_context(_replaced(allocator, name, self._freeing(getattr(allocator, name), size)))
            requests = self.scheduler.req_to_token_pool
            stack.enter_context(_replaced(requests, "free", self._freeing_rows(requests)))
            yield
        self.watch.see(-1, Recorded.FREED, "frees", np.asarray(self.count))

    def _freeing(self, frees: Callable[..., Any], size: int) -> Callable[..., Any]:
        """size: KV slots by the number that is passed; 0: at the end of a group, where no number is."""

        def free(*args: Any, **kwargs: Any) -> Any:
            if self._under_way:
                return frees(*args, **kwargs)
            self._under_way = True
            try:
                if size:
                    self._look(args[0] if args else next(iter(kwargs.values())), size)
                else:
                    self._waiting.clear()
                return frees(*args, **kwargs)
            finally:
                self._under_way = False

        return free

    def _look(self, numbers: torch.Tensor, size: int) -> None:
        allocator = self.scheduler.token_to_kv_pool_allocator
        freed = Counter((numbers // size).tolist())
        place = in_sglang(but=("/allocator/",))
        free = self._waiting | set(free_pages(getattr(allocator, "full_attn_allocator", allocator)).tolist())
        for page, times in freed.items():
            if page in free or (size == 1 and times > 1):
                self._tell("KV slots", place, self._pages.get(page, _UNKNOWN) if page in free else place)
            self._pages[page] = place
        self.count += 1
        if _puts_off(allocator):
            self._waiting |= freed.keys()

    def _freeing_rows(self, requests: Any) -> Callable[..., Any]:
        frees = requests.free

        def free(*args: Any, **kwargs: Any) -> Any:
            before = Counter(requests.free_slots)
            result = frees(*args, **kwargs)
            place = in_sglang(but=("memory_pool.py",))
            for row in Counter(requests.free_slots) - before:
                if row in before:
                    self._tell("request slots", place, self._rows.get(row, _UNKNOWN))
                self._rows[row] = place
            self.count += 1
            return result

        return free

    def _tell(self, kind: str, again: str, first: str) -> None:
        """At once, as sglang may find itself inconsistent next."""
        name = f"{kind} at {again}"
        if name not in self.places:
            self.places.add(name)
            self.watch.see(-1, Recorded.FREED, name, np.frombuffer(first.encode(), np.uint8))


def _puts_off(allocator: Any) -> bool:
    """True in a group of frees; how that is said differs by release."""
    if hasattr(allocator, "is_not_in_free_group"):
        return not allocator.is_not_in_free_group
    return allocator.free_group is not None


@contextmanager
def _replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """While entered, an object's method is this function."""
    setattr(owner, name, function)
    try:
        yield
    finally:
        delattr(owner, name)
