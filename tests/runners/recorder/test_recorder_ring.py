"""Rings of calls: what they keep when they wrap around, are damaged, or are cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.cases.batches import BadEvidence
from repro.commands import recorded
from runners.recorder import ring
from runners.recorder.ring import BadRing, Ring
from tests.builders.recordings import written


def test_a_ring_keeps_the_last_calls(tmp_path: Path) -> None:
    content = ring.read(written(tmp_path, 20).read_bytes())
    assert [call.number for call in content.calls] == list(range(13, 21))
    assert [call.lengths for call in content.calls] == [(number,) for number in range(13, 21)]
    assert {call.state for call in content.calls} == {ring.LEFT} and content.lost == 0


def test_a_call_that_was_overwritten_is_not_said_to_have_ended(tmp_path: Path) -> None:
    writer = Ring(tmp_path / "calls.ring", calls=4, rows=4)
    writer.say({"runners": {}})
    for _ in range(6):
        writer.enter(0, 1, 0, 1, 0, 0, [1], [1])
    writer.leave(2, ring.RAISED)
    assert {call.state for call in ring.read(writer.path.read_bytes()).calls} == {ring.ENTERED}


def test_a_call_of_more_requests_than_a_slot_has_is_cut(tmp_path: Path) -> None:
    writer = Ring(tmp_path / "calls.ring", calls=4, rows=4)
    writer.say({"runners": {}})
    writer.enter(0, 1, 0, 6, 8, 0, range(6), range(6))
    (call,) = ring.read(writer.path.read_bytes()).calls
    assert (call.requests, call.lengths, call.slots) == (6, (0, 1, 2, 3), (0, 1, 2, 3)) and call.flags & ring.CUT


def test_a_call_that_is_damaged_is_lost_and_the_others_are_kept(tmp_path: Path) -> None:
    path = written(tmp_path, 8)
    content = bytearray(path.read_bytes())
    size = ring.slot_size(4)
    content[-size * 3 + 20] ^= 1
    damaged = ring.read(bytes(content))
    assert damaged.lost == 1 and len(damaged.calls) == 7


def test_facts_that_were_being_written_do_not_take_the_ones_before_with_them(tmp_path: Path) -> None:
    writer = Ring(tmp_path / "calls.ring", calls=4, rows=4)
    for state in ("first", "second", "third"):
        writer.say({"state": state})
    content = bytearray(writer.path.read_bytes())
    place = content.index(b'{"state": "third"')
    content[place + 3] ^= 1
    assert ring.read(bytes(content)).facts == {"state": "second"}


def test_a_ring_that_is_cut_is_refused_wherever(tmp_path: Path) -> None:
    content = written(tmp_path, 20).read_bytes()
    for end in range(0, len(content), len(content) // 50):
        with pytest.raises(BadRing):
            ring.read(content[:end])


def test_a_ring_with_a_changed_byte_is_read_or_refused(tmp_path: Path) -> None:
    path = written(tmp_path, 20)
    content = path.read_bytes()
    places = [*range(64), *range(4096, len(content), 997)]
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 0xFF
        path.write_bytes(bytes(changed))
        try:
            recorded.batches(recorded.read(path), "draft")
        except BadEvidence as error:
            assert len(str(error).splitlines()) == 1
