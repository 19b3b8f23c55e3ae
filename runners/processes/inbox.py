"""Messages of sessions as they come: while the pool waits for one of them, what the others say is taken in as well, so
that they go on with what they were sent instead of waiting for room in their channels."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterable

from runners.processes.wire import Silence

# So much of one session is kept; what it says beyond that waits in its channel, and so does it.
_KEPT_MAX = 64 << 20
_CHUNK = 1 << 20


class Inbox:
    """Our end of the channel to a session, which is not to block. Mutable: holds what has come and was not read."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self._kept = bytearray()
        self._ended = False  # whether the other side has closed, or died

    def close(self) -> None:
        self.channel.close()

    def holds(self, text: bytes) -> bool:
        """True if this text is among what was not read yet."""
        return text in self._kept

    def clear(self) -> None:
        """Forget what was not read yet."""
        self._kept.clear()

    def wait(self, deadline: float, others: Iterable[Inbox] = ()) -> None:
        """Return once there is something to read, or nothing will come any more. Silence past the deadline. Meanwhile
        take in what others have."""
        inboxes = (self, *others)
        _take_in(inboxes, 0.0)
        while not (self._kept or self._ended):
            _take_in(inboxes, _left(deadline))

    def read(self, size: int, deadline: float) -> bytes:
        """So many bytes, or fewer where the other side has closed. Silence past the deadline."""
        while len(self._kept) < size and not self._ended:
            _take_in((self,), _left(deadline), most=size)
        with memoryview(self._kept) as kept:
            part = bytes(kept[:size])
        del self._kept[:size]
        return part

    def _takes(self, most: int) -> bool:
        return not self._ended and len(self._kept) < most

    def _take(self) -> None:
        """Take in what has come over a channel that is readable."""
        with contextlib.suppress(BlockingIOError):
            try:
                part = self.channel.recv(_CHUNK)
            except ConnectionResetError:
                # A socket says so when its peer died with bytes unread; for us that is the end, too.
                part = b""
            self._kept += part
            self._ended = not part


def _take_in(inboxes: Iterable[Inbox], seconds: float, most: int = _KEPT_MAX) -> None:
    """Take in what has come in those that hold less than `most` bytes, or what first comes within so long."""
    poll = select.poll()
    takers = {inbox.channel.fileno(): inbox for inbox in inboxes if inbox._takes(most)}
    for handle in takers:
        poll.register(handle, select.POLLIN)
    for handle, _ in poll.poll(1000 * seconds):
        takers[handle]._take()


def _left(deadline: float) -> float:
    """Seconds until then. Silence if it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise Silence
    return seconds
