"""A command over the nodes of a cluster: its pieces go out, and what each wrote comes back, in their order. Nothing is
run here, and what a piece wrote is read by the command that it belongs to.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.cluster.dispatcher import Dispatcher
from fuzz.cluster.nodes import LOCAL, Answer, Nodes
from fuzz.cluster.piece import Piece
from fuzz.cluster.slot import code_version
from repro.cases.case import Target
from repro.cases.places import log_line
from repro.commands.cli import BadInput, complain
from repro.commands.interrupts import held

PROJECT = Path(__file__).resolve().parent.parent.parent
# Of our own environment what means something to a worker wherever it runs.
CARRIED = ("EAGLEEYE_PROBES", "EAGLEEYE_REFERENCE", "EAGLEEYE_LIVENESS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of a piece. result: what it wrote, read as JSON. kept: texts of files, by their names."""

    piece: Piece
    result: Any
    kept: Mapping[str, str]


class Fan:
    """Mutable: several lots of pieces may be done, one after the other. say: one line for a person. clock: seconds,
    rising."""

    def __init__(self, nodes: Nodes[Piece], say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._alone = ""
        self._fresh: deque[Piece] = deque()
        self._dispatcher = Dispatcher(nodes, lambda: self._fresh.popleft() if self._fresh else None, say, clock)
        self._done: dict[str, Done] = {}

    @property
    def slots(self) -> int:
        """The most that there were at a time."""
        return self._dispatcher.most_slots

    @property
    def errors(self) -> list[str]:
        """The work that could not be done, and why: the command's exit code is then 3, and never a finding."""
        return [*self._dispatcher.given_up(), *([self._alone] if self._alone else [])]

    @property
    def losses(self) -> str:
        """The work that was lost and done again; empty if none was."""
        return "; ".join(f"{why}: {count}" for why, count in self._dispatcher.schedule.lost.most_common())

    def work(self, pieces: Iterable[Piece]) -> Iterator[Done]:
        """Have these done, and give what comes back in their order, each as soon as those before it are there. What is
        given up is left out, and is an error; after an interrupt, what is there is given, and KeyboardInterrupt raised.
        """
        waiting = deque(dict.fromkeys(pieces))
        self._fresh.extend(waiting)
        try:
            while self._fresh or not self._dispatcher.schedule.idle:
                while self._dispatcher.send():
                    pass
                if trouble := self._dispatcher.trouble():
                    self._alone = trouble
                    break
                for answer in self._dispatcher.hear():
                    with held():  # what came back is done, whenever an interrupt comes
                        self._answered(answer)
                while waiting and waiting[0].id in self._done:
                    yield self._done.pop(waiting.popleft().id)
        except KeyboardInterrupt:
            yield from self._rest(waiting)
            raise
        yield from self._rest(waiting)

    def _rest(self, waiting: Iterable[Piece]) -> Iterator[Done]:
        """The results behind a missing one. Unsent pieces are not sent any more."""
        self._fresh.clear()
        self._dispatcher.schedule.forget_waiting()
        yield from (self._done.pop(piece.id) for piece in waiting if piece.id in self._done)

    def _answered(self, answer: Answer[Piece]) -> None:
        message, piece, schedule = answer.message, answer.chunk, self._dispatcher.schedule
        if "lost" in message or "code" not in message:
            schedule.lose(answer.node, piece, str(message.get("lost", "not begun")))
            return
        try:
            result = json.loads(message["result"])
        except (ValueError, TypeError):
            schedule.lose(answer.node, piece, message.get("complained") or "it wrote no result")
            return
        if isinstance(result, dict) and result.get("exit_code", 0) is None:  # written as it grows, and not ended
            schedule.lose(answer.node, piece, message.get("complained") or "it did not come to its end")
            return
        if schedule.finish(answer.node, piece):
            self._done[piece.id] = Done(piece=piece, result=result, kept=message["kept"])


@contextmanager
def fan_out(
    place: str, slots: int | None, targets: Sequence[Target], environment: Mapping[str, str] | None = None
) -> Iterator[Fan]:
    """The nodes of this cluster, for pieces on these targets; a node that lacks one takes no part. environment: of the
    pieces. BadInput if there is no such cluster, or no Ray."""
    job = {
        **job_on({target.engine for target in targets}, environment),
        "targets": [str(target) for target in targets],
    }
    with connected(place, job, slots) as nodes:
        fan = Fan(nodes, _aside, time.monotonic)
        try:
            yield fan
        finally:
            if fan.losses:
                _aside(f"lost and done again: {fan.losses}")
            for error in fan.errors:
                complain(error)


def _aside(text: str) -> None:
    print(log_line(text), file=sys.stderr, flush=True)


def job_on(engines: Iterable[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The part of a job that every agent gets, whatever the work."""
    carried = {name: os.environ[name] for name in CARRIED if name in os.environ}
    return {
        "campaign": uuid.uuid4().hex[:8],
        "checkout": str(PROJECT),
        "code": code_version(),
        "cuda": "cuda" in engines,
        "environment": {**carried, **(environment or {})},
    }


def connected(place: str, job: Mapping[str, Any], slots: int | None) -> contextlib.AbstractContextManager[Nodes[Any]]:
    """BadInput if there is no such cluster, or no Ray, or if it would have no GPUs and is to."""
    if place.startswith(LOCAL) and job["cuda"]:
        raise BadInput(
            f"--cluster {place} has no GPUs: start Ray on this host (ray start --head), and give --cluster auto"
        )
    try:
        # Only here: most have no Ray.
        from fuzz.cluster import on_ray
    except ImportError as error:
        raise BadInput(f"--cluster needs Ray: pip install 'eagleeye[ray]' ({error})") from error
    return on_ray.connected(place, job, slots)
