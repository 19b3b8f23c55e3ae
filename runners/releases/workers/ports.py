"""The port at which the workers of a process meet. Nothing of sglang is imported here."""

from __future__ import annotations

import contextlib
import functools
import socket

from runners.recording.observer import HarnessError

# Where a process looks for a port of its own, and how far apart two that were forked one after the other begin.
_PORTS, _STRIDE = range(15000, 32000), 5


@functools.cache
def own_port(process: int) -> int:
    """A port that no process listens on now, one for both workers of a process, which join one group; another one after
    a fork. Processes begin to look at different ports, below those that the system gives away by itself: of many that
    start together no two find the same one free."""
    for port in range(_PORTS.start + process * _STRIDE % len(_PORTS), _PORTS.stop):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise HarnessError("no port is free")


def forget_port() -> None:
    """Take another one for the next group of this process: the system keeps the last one's for a while."""
    own_port.cache_clear()
