"""The store over which the process group of a session is made: in memory, as no other process joins it.

A port would have to be free on the whole host, and another campaign may take it before sglang listens there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from torch import distributed

_SCHEME = "eagleeye"
# What sglang is given for a port; it binds none where the way to a store is named.
NO_PORT = 0


def in_memory() -> int:
    """From here on sglang's process groups meet in this process. The port to give sglang."""
    _known()
    os.environ["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] = f"{_SCHEME}://"
    return NO_PORT


@functools.cache
def _known() -> None:
    """Once a process and those that are forked from it: PyTorch keeps the scheme."""
    distributed.register_rendezvous_handler(_SCHEME, _alone)


def _alone(url: str, **_: Any) -> Iterator[tuple[distributed.Store, int, int]]:
    """A store, the rank and the number of ranks, as PyTorch asks for them. url: of sglang's place among them."""
    place = {name: int(number) for name, number in parse_qsl(urlsplit(url).query)}
    yield distributed.HashStore(), place.get("rank", 0), place.get("world_size", 1)
