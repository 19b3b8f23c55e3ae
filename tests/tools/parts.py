"""The seconds of named parts of what runs, each without the parts within it."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# What lies in no part.
REST = "other"


class Parts:
    """Mutable: seconds gather, of the thread that made it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self._open = [REST]
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since = clock()

    def taken(self) -> Mapping[str, float]:
        """The seconds of each part since this was last asked."""
        self._turn()
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """While entered, time is this part's."""
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time is this part's."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            with self.part(name):
                return function(*args, **kwargs)

        return timed

    def _turn(self) -> None:
        """Add the time since the last turn to the open part."""
        now = self._clock()
        self._seconds[self._open[-1]] += now - self._since
        self._since = now
