"""The processes of this machine that `--workers N` asks for, as a cluster: one agent, with a slot for each."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic

from fuzz.cluster.agent import Agent
from fuzz.cluster.nodes import Answer, Doing, Event, Joined, W
from repro.cases.own_place import temporary_folder
from repro.commands.interrupts import held

HERE = "here"


class LocalProcesses(Generic[W]):
    """A Nodes. Mutable: threads put what the agent answers into a queue."""

    def __init__(self, agent: Agent, workers: int) -> None:
        self._agent, self._workers = agent, workers
        self._events: queue.SimpleQueue[Event[W] | OSError] = queue.SimpleQueue()
        self._in_background(self._start)

    def send(self, node: str, chunk: W, seconds: float | None) -> None:
        self._in_background(lambda: Answer(node=node, chunk=chunk, message=self._agent.run(chunk.to_json(), seconds)))

    def wait(self, seconds: float) -> Sequence[Event[W]]:
        """OSError if the processes do not start."""
        events: list[Event[W]] = []
        with suppress(queue.Empty):
            while True:
                event = self._events.get(timeout=0 if events else seconds)
                if isinstance(event, OSError):
                    raise event
                events.append(event)
        return [*events, Doing(node=HERE, slots=self._agent.doing())]

    def interrupt(self) -> None:
        self._agent.interrupt()

    def _start(self) -> Event[W] | OSError:
        """One that was killed meanwhile is started anew for its first chunk."""
        troubles = [ready.get("trouble") or ready.get("lacks") for ready in self._agent.start_all()]
        if all(troubles):
            return ChildProcessError(f"no worker starts: {troubles[0]}")
        return Joined(node=HERE, slots=self._workers)

    def _in_background(self, work: Callable[[], Event[W] | OSError]) -> None:
        def put() -> None:
            try:
                self._events.put(work())
            except OSError as error:  # a full disk; or the folder of the slots is gone, as all of it ends
                self._events.put(error)

        threading.Thread(target=put, daemon=True).start()


@contextmanager
def processes(job: Mapping[str, Any], devices: Sequence[str]) -> Iterator[LocalProcesses[Any]]:
    """One process for each of these devices, which are empty texts on engines without any. job: as on a cluster."""
    with temporary_folder("eagleeye-workers-") as folder:
        agent = Agent(job, len(devices), devices, folder)
        try:
            yield LocalProcesses(agent, len(devices))
        finally:
            with held():  # a second interrupt leaves no process either
                agent.close()
