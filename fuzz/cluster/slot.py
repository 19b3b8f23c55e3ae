"""A slot of a node: one eagleeye process that does one chunk after the other.

It talks to the node's agent (fuzz/cluster/agent.py) in lines of JSON: hears its job, then chunks; says ready, what it
is doing, and a result for each. It ends when the agent does. What a chunk means is for what its job opens: parts of a
campaign (campaign_work.py), or pieces of commands (piece.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import IO, Any

from repro.commands.cli import BadInput
from repro.commands.interrupts import held, interrupt, let_in

PACKAGES = ("fuzz", "oracles", "repro", "runners")

# Does a chunk, given as JSON: its result. The number: seconds after which no further case is begun.
Do = Callable[[Mapping[str, Any], float | None], dict[str, Any]]


class Slot:
    """Mutable: an interrupt ends the chunk under way, and all that come after it. next: the chunk that likely comes
    after the one under way, as JSON, where the agent has said so."""

    def __init__(self, hear: IO[str], say: IO[str]) -> None:
        self._hear, self._say = hear, say
        self._heard: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.stopped = False
        self.next: Mapping[str, Any] | None = None

    def serve(self, open_work: Callable[[Mapping[str, Any], Slot], contextlib.AbstractContextManager[Do]]) -> None:
        """Work until the agent is gone or says stop. open_work: what does the chunks of a job, for as long as the slot
        lives; BadInput if this node lacks what it needs."""
        # Ray's workers, and so whatever they start, hold SIGINT back.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupted)
        threading.Thread(target=self._listen, daemon=True).start()
        job = self._heard.get()
        if job is None:
            return
        with contextlib.suppress(BrokenPipeError, KeyboardInterrupt), held(), contextlib.ExitStack() as stack:
            try:
                do = stack.enter_context(open_work(job, self))
            except BadInput as error:
                self.tell(say="ready", lacks=str(error))
                return
            self.tell(say="ready", code=code_version())
            while (message := self._heard.get()) is not None:
                self.tell(say="result", **do(message["chunk"], message["seconds"]))

    def _listen(self) -> None:
        """Pass on what is heard, and interrupt the work once the other end is gone."""
        with contextlib.suppress(ValueError):
            for text in self._hear:
                message = json.loads(text)
                self.next = message.get("next")  # what comes instead of a chunk that was said to come takes that back
                if "next" not in message:
                    self._heard.put(message)
        self._heard.put(None)
        os.kill(os.getpid(), signal.SIGINT)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if not self.stopped:
            self.stopped = True
            interrupt(number, frame)

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        """Within it, an interrupt raises. KeyboardInterrupt at once if there has been one."""
        with let_in():
            if self.stopped:
                raise KeyboardInterrupt
            yield

    def tell(self, **message: Any) -> None:
        """BrokenPipeError if the agent is gone."""
        self._say.write(json.dumps(message) + "\n")
        self._say.flush()


def code_version() -> str:
    """A digest of this checkout, and of the Hypothesis that draws its cases: two nodes that differ would not
    mean the same by a chunk."""
    project = Path(__file__).resolve().parent.parent.parent
    total = hashlib.sha256()
    for path in _sources(project):
        total.update(f"{path.relative_to(project)}\0".encode() + path.read_bytes())
    return f"{total.hexdigest()[:16]}, Hypothesis {metadata.version('hypothesis')}"


def _sources(project: Path) -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((project / package).rglob("*.py"))
