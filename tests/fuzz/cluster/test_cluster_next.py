"""The next work of a cluster's slot: promised by its agent, heard while it works, and opened ahead."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import pytest

from fuzz.cluster import agent as agents
from fuzz.cluster.agent import Agent
from fuzz.cluster.campaign_work import CampaignWork
from fuzz.cluster.chunk import Chunk
from fuzz.cluster.slot import Slot
from repro.cases.case import Case
from tests.builders.campaign_world import PLAN, World
from tests.builders.waiting import comes

WHOLE = Chunk(plan=replace(PLAN, cases=None), cases_per_setup=3, first=0, last=2)
THEN = replace(WHOLE, first=2, last=5)


class Worker:
    """A slot that works until it may end. Mutable."""

    def __init__(self, job: Mapping[str, Any], folder: Any, device: str) -> None:
        self.free = True
        self.next: Mapping[str, Any] | None = None
        self.did: list[str] = []
        self.seconds: float | None = None
        self.may_end = threading.Semaphore(0)

    def run(self, chunk: Mapping[str, Any], seconds: float | None) -> dict[str, Any]:
        self.seconds = seconds
        self.did.append(chunk["name"])
        self.may_end.acquire()
        return {}


def _as_many(seen: Sequence[object], count: int) -> bool:
    return len(seen) == count


def _promised(slots: Sequence[Worker], chunks: Sequence[object]) -> bool:
    return [slot.next for slot in slots] == chunks


def test_what_waits_is_promised_a_slot_and_done_there_whatever_waited_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "_Slot", Worker)
    agent = Agent({"campaign": "next", "cuda": False}, 2, folder=tmp_path)
    first, second = agent._slots
    assert isinstance(first, Worker) and isinstance(second, Worker)
    for number, name in enumerate("abcde"):
        chunk = {"name": name}
        promised = [chunk if name == "c" else first.next, chunk if name == "d" else second.next]
        threading.Thread(target=agent.run, args=(chunk, None), daemon=True).start()
        assert comes(partial(_as_many, first.did, 1)) and comes(partial(_as_many, second.did, min(number, 1)))
        assert comes(partial(_promised, [first, second], promised))
    second.may_end.release()
    assert comes(lambda: second.did == ["b", "d"]) and first.did == ["a"]
    for count in (3, 4):  # the others go where there is room: their turn is nobody's
        second.may_end.release()
        assert comes(partial(_as_many, second.did, count))
    assert (sorted(second.did), first.did, first.next) == (["b", "c", "d", "e"], ["a"], None)


def test_what_waits_loses_time_only_once_a_chunk_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_Slot", Worker)
    now, questions = 100.0, list[float]()

    def monotonic() -> float:
        questions.append(now)
        return now

    monkeypatch.setattr(agents, "time", SimpleNamespace(monotonic=monotonic))
    agent = Agent({"campaign": "time", "cuda": False}, 1, folder=tmp_path)
    (slot,) = agent._slots
    assert isinstance(slot, Worker)
    for name, times in (("a", 2), ("b", 3), ("c", 4)):  # once as it is asked, once as it begins
        threading.Thread(target=agent.run, args=({"name": name}, 50.0), daemon=True).start()
        assert comes(partial(_as_many, questions, times))
    for passed, seconds in ((30.0, 50.0), (7.0, 43.0)):
        now += passed
        count = len(slot.did)
        slot.may_end.release()
        assert comes(partial(_as_many, slot.did, count + 1)) and slot.seconds == seconds


def test_what_is_heard_of_the_next_chunk_waits_for_nothing_and_is_over_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []
    lines = [{"chunk": {"name": "a"}}, {"next": {"name": "b"}}, {"chunk": {"name": "b"}}, {"next": {"name": "c"}}]

    def read() -> Iterator[str]:
        for line in lines:
            yield json.dumps(line)
            heard.append(slot.next)

    slot = Slot(cast(IO[str], read()), io.StringIO())
    monkeypatch.setattr(os, "kill", lambda pid, number: None)  # nobody is there any more
    slot._listen()
    assert heard == [None, {"name": "b"}, None, {"name": "c"}]
    assert [slot._heard.get() for _ in range(3)] == [{"chunk": {"name": "a"}}, {"chunk": {"name": "b"}}, None]


def test_sessions_of_the_next_chunk_open_ahead_and_its_cases_are_the_same() -> None:
    slot = Slot(io.StringIO(), io.StringIO())
    world, foreseen = World(fails=lambda case: []), list[Sequence[Sequence[Case]]]()
    work = CampaignWork(slot=slot, hooks=replace(world.hooks(), foresee=foreseen.append), run="")
    slot.next = json.loads(json.dumps(THEN.to_json()))
    assert work.do(WHOLE.to_json(), None)["campaign"]["cases"] == 6
    firsts = [cases[0] for cases in foreseen[0]]
    slot.next = None
    work.do(THEN.to_json(), None)
    ran = [*WHOLE.rounds(), *THEN.rounds()]
    assert world.ran == ran and len(ran) == 15
    assert firsts == [ran[place] for place in (3, 6, 9, 12)]
    assert [cases[0] for cases in foreseen[-2]] == [ran[12]], "another chunk was taken back"
