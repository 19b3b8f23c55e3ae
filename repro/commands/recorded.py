"""The batches of a recording: the last calls of one graph runner of a live server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from repro.cases.batches import BadEvidence, Batch, Row
from repro.cases.bounded_file import read_bytes
from repro.cases.runner_facts import RUNNER_FACTS
from repro.cases.server_args import Argument
from runners.recorder import ring
from runners.recorder.rows import SINCE, adapted

_BYTES_MAX = 1 << 28
# Runners whose lengths count the tokens that the call adds, as many for each request as it has in the call.
_ADDED = frozenset({"draft_extend", "multi_layer"})


class Runner(NamedTuple):
    """A runner of a recording: its name here, buckets, and tokens of each request in a call."""

    name: str
    buckets: tuple[int, ...]
    width: int


class Recorded(NamedTuple):
    """runners: by their number in calls. calls: without those of runners that the facts do not name."""

    facts: Mapping[str, Any]
    runners: Mapping[int, Runner]
    calls: tuple[ring.Call, ...]
    lost: int


def read(path: Path) -> Recorded:
    """The recording in a file. BadEvidence if it is none, of a release without adapter, or without a call; OSError."""
    try:
        content = ring.read(read_bytes(path, _BYTES_MAX))
    except ring.BadRing as error:
        raise BadEvidence(str(error)) from error
    release = str(content.facts.get("release", ""))
    if not adapted(release):
        raise BadEvidence(f"a recording of sglang {release}, which has no adapter: the first release is {SINCE}")
    runners = dict(_runners(content.facts))
    calls = tuple(call for call in content.calls if call.runner in runners and _is_batch(call, runners[call.runner]))
    if not calls:
        raise BadEvidence("a recording without a call whose lengths are known; record while requests run")
    return Recorded(facts=content.facts, runners=runners, calls=calls, lost=content.lost)


def _is_batch(call: ring.Call, runner: Runner) -> bool:
    """False where lengths are unsaid. Without requests a rank is idle."""
    return bool(call.lengths) or (not call.requests and RUNNER_FACTS[runner.name].idles)


def _runners(facts: Mapping[str, Any]) -> Iterator[tuple[int, Runner]]:
    about = facts.get("runners")
    for number, entry in about.items() if isinstance(about, dict) else ():
        try:
            buckets = tuple(sorted({int(size) for size in entry["buckets"]}))
            runner = Runner(str(entry["name"]), buckets, int(entry["width"]))
            key = int(number)
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise BadEvidence(f"runner {number} is not described as eagleeye does; record it again") from error
        if runner.name in RUNNER_FACTS:
            yield key, runner


def flags(recorded: Recorded, runner: str, place: str) -> list[Argument]:
    """The server's settings, with the buckets of this runner."""
    settings = recorded.facts.get("settings")
    values = dict(settings) if isinstance(settings, dict) else {}
    buckets = [each.buckets for each in recorded.runners.values() if each.name == runner and each.buckets]
    if buckets:
        values["cuda_graph_bs_decode"] = list(buckets[0])
        for name in ("cuda_graph_bs", "cuda_graph_max_bs", "cuda_graph_max_bs_decode"):
            values.pop(name, None)
    return [Argument(name, value, place) for name, value in values.items() if isinstance(name, str)]


def failing(recorded: Recorded) -> str:
    """The runner whose call failed, was under way, or was the last one."""
    last = recorded.calls[-1]
    raised = [call for call in recorded.calls if call.state == ring.RAISED]
    return recorded.runners[(raised or [last])[-1].runner].name


def batches(recorded: Recorded, name: str) -> tuple[Batch, ...]:
    """The batches of this runner, up to the call that failed if one did. BadEvidence if there are none."""
    calls = [call for call in recorded.calls if recorded.runners[call.runner].name == name]
    raised = [place for place, call in enumerate(calls) if call.state == ring.RAISED]
    calls = calls[: raised[-1] + 1] if raised else calls
    if not calls:
        known = ", ".join(dict.fromkeys(recorded.runners[call.runner].name for call in recorded.calls))
        raise BadEvidence(f"no call of the {name} runner; there are calls of {known} (--runner)")
    return tuple(_batches(calls, recorded.runners))


def _batches(calls: Sequence[ring.Call], runners: Mapping[int, Runner]) -> Iterator[Batch]:
    rows = [list(each) for each in _rows(calls, runners)]
    grown: dict[str, int] = {}
    for place in reversed(range(len(calls))):
        width = runners[calls[place].runner].width
        now = {row.request: row.length for row in rows[place]}
        rows[place] = [replace(row, accepted=_accepted(row, grown, width)) for row in rows[place]]
        grown |= now
    for call, each in zip(calls, rows, strict=True):
        graph = bool(call.flags & ring.GRAPH)
        yield Batch(rows=tuple(each), place=f"call {call.number}", graph=graph, elsewhere=call.elsewhere)


def _rows(calls: Sequence[ring.Call], runners: Mapping[int, Runner]) -> Iterator[Iterator[Row]]:
    """The rows of each call. A slot whose length falls has gone to another request."""
    lives: dict[int, tuple[int, int]] = {}  # of a slot: requests that had it before, and the last length

    def row(place: int, length: int, slot: int) -> Row:
        if slot == ring.UNKNOWN:
            return Row(request=f"row {place}", length=length)
        life, before = lives.get(slot, (0, 0))
        life += length < before
        lives[slot] = (life, length)
        return Row(request=f"{slot}.{life}", length=length, slot=slot)

    for call in calls:
        runner = runners[call.runner]
        added = runner.width if runner.name in _ADDED else 0
        # Of what the scheduler counts the last token is not in the cache yet.
        added = 1 if call.flags & ring.COUNTED else added
        lengths = [max(1, length - added) for length in call.lengths]
        yield map(row, range(len(lengths)), lengths, call.slots)


def _accepted(row: Row, later: Mapping[str, int], width: int) -> int | None:
    """The drafts accepted before this call, which the length at the request's next call says; None: unsaid."""
    if row.request not in later:
        return None
    return min(max(0, later[row.request] - row.length - 1), width - 1)


def guessed(recorded: Recorded) -> Iterator[str]:
    calls = recorded.calls
    if any(not call.flags & ring.LENGTHS for call in calls):
        yield "lengths: of some calls by the tokens that requests had so far, a round late under overlap"
    if any(not call.flags & ring.SLOTS for call in calls):
        yield "requests: of some calls by their rows, as their slots are unsaid"


def missing(recorded: Recorded) -> Iterator[str]:
    if recorded.lost:
        yield f"{recorded.lost} calls that were not whole when the recording was made"
    if any(call.flags & ring.CUT for call in recorded.calls):
        yield f"requests of a call behind the {ring.ROWS}th"


def ending(recorded: Recorded) -> str:
    """The failure that was recorded, in words; empty if there is none."""
    failure = recorded.facts.get("failure")
    if not isinstance(failure, dict):
        last = recorded.calls[-1]
        under_way = last.state == ring.ENTERED
        return f"call {last.number} of {recorded.runners[last.runner].name} was under way" if under_way else ""
    return f"{failure.get('error')}: {failure.get('text')} at {failure.get('place')}"
