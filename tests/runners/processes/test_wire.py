"""Frames: what is packed comes back, however it is cut on the way; anything else is refused, and only so."""

from __future__ import annotations

import io
import json
import os
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from repro.traces.device_errors import cuda_error
from repro.traces.trace import End, Termination
from runners.processes.causes import exit_name, tail
from runners.processes.frame_writer import Recorder
from runners.processes.trace_reader import Intake
from runners.processes.wire import (
    BadFrame,
    CutShort,
    Frame,
    Silence,
    arrays,
    form_of,
    pack,
    read_exactly,
    receive,
    write_all,
)
from runners.recording.packed import Entry, packed_layout

# A busy machine is no failure.
unhurried = settings(deadline=None)

HEADS = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=9), max_size=4)
PLAIN = st.sampled_from(["<f4", "<f8", "<f2", "<i4", "<i8", "|b1", "|u1"])


@unhurried
@given(HEADS, st.binary(max_size=50))
def test_a_frame_comes_back(head: dict[str, object], body: bytes) -> None:
    stream = io.BytesIO(pack(Frame(head=head, body=body)) * 2)
    assert receive(stream.read) == receive(stream.read) == Frame(head=head, body=body)
    assert receive(stream.read) is None


@unhurried
@given(st.data())
def test_a_part_of_a_frame_is_cut_short(data: st.DataObject) -> None:
    whole = pack(Frame(head={"events": [1]}, body=b"12345"))
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(CutShort):
        receive(io.BytesIO(whole[:cut]).read)


@unhurried
@given(st.binary(min_size=1, max_size=200), st.booleans())
def test_any_other_bytes_are_refused(stray: bytes, marked: bool) -> None:
    stream = io.BytesIO((b"eye1" if marked else b"") + stray)
    with pytest.raises(BadFrame):
        while receive(stream.read):
            pass


@unhurried
@given(st.recursive(st.none() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=4)))
def test_any_other_form_is_refused(value: object) -> None:
    with pytest.raises(BadFrame):
        form_of(value)


@pytest.mark.parametrize("dtype", ["O", "<U4", "V8", "<M8[s]", "<c8", "S3", "no such", "<i4,<i4"])
def test_only_plain_numbers_are_arrays(dtype: str) -> None:
    with pytest.raises(BadFrame):
        form_of([dtype, [2]])


@pytest.mark.parametrize("shape", [[-1], [2.0], [True], ["2"], [1 << 40], [1] * 17])
def test_a_shape_is_some_lengths(shape: list[object]) -> None:
    with pytest.raises(BadFrame):
        form_of(["<i4", shape])


@pytest.mark.parametrize("size", [0, 11, 13, 100])
def test_a_body_is_as_long_as_its_arrays(size: int) -> None:
    with pytest.raises(BadFrame):
        arrays([form_of(["<i4", [3]])], bytes(size))


@pytest.mark.slow
@unhurried
@given(st.lists(arrays_of.arrays(PLAIN, arrays_of.array_shapes(min_dims=0, max_side=4)), max_size=5))
def test_what_is_recorded_comes_in_as_it_was(recorded: list[np.ndarray]) -> None:
    reading, writing = os.pipe()
    try:
        watch = Recorder(writing)
        for number, array in enumerate(recorded):
            buffer = array.copy()
            watch.see(number, "graph", "tokens", buffer.T)
            buffer[...] = 0  # a copy is taken at once: the next replay overwrites what was seen
        watch.fact("release", "x")
        watch.ended(End(how=Termination.DONE, step=3, path="eager"))
        frame = receive(lambda size: read_exactly(reading, size, time.monotonic() + 5))
    finally:
        os.close(reading)
        os.close(writing)
    assert frame
    intake = Intake(facts={}, step=-1, path="build")
    assert not intake.take(frame)
    assert intake.ended == End(how=Termination.DONE, step=3, path="eager")
    trace = intake.trace(intake.ended)
    assert trace.facts == {"release": "x"}
    assert [seen.step for seen in trace.seen] == list(range(len(recorded)))
    for seen, array in zip(trace.seen, recorded, strict=True):
        assert seen.array.dtype == array.dtype
        assert seen.array.shape == array.T.shape
        np.testing.assert_array_equal(seen.array, array.T)


@pytest.mark.slow
@unhurried
@given(
    st.lists(
        st.tuples(arrays_of.arrays(PLAIN, arrays_of.array_shapes(min_dims=0, max_side=4)), st.booleans()), max_size=6
    )
)
def test_of_a_layout_what_is_recorded_comes_in(seen: list[tuple[np.ndarray, bool]]) -> None:
    """In its order; the rest can be looked at on this side only."""
    entries = [Entry("graph", str(n), array.dtype.str, array.shape, is_told) for n, (array, is_told) in enumerate(seen)]
    what, data = packed_layout(tuple(entries)), b"".join(array.tobytes() for array, _ in seen)
    reading, writing = os.pipe()
    try:
        watch = Recorder(writing)
        watch.see_all(3, what, data)
        watch.at(3, "eager")
        frame = receive(lambda size: read_exactly(reading, size, time.monotonic() + 5))
    finally:
        os.close(reading)
        os.close(writing)
    assert frame
    intake = Intake(facts={}, step=-1, path="build")
    assert intake.take(frame)
    trace = intake.trace(End(how=Termination.DONE))
    expected = [(n, array) for n, (array, tell) in enumerate(seen) if tell]
    assert [(got.step, got.path, got.name) for got in trace.seen] == [(3, "graph", str(n)) for n, _ in expected]
    for got, (_, array) in zip(trace.seen, expected, strict=True):
        assert got.array.dtype == array.dtype
        np.testing.assert_array_equal(got.array, array)
    for n, (array, _) in enumerate(seen):
        np.testing.assert_array_equal(what.array(data, "graph", str(n)), array)
    with pytest.raises(KeyError):
        what.array(data, "eager", "0")


@pytest.mark.exhaustive
def test_layouts_that_never_come_again_do_not_stay_in_memory() -> None:
    """Shrinking makes such layouts: nearly each run has others."""

    def take_in(numbers: range) -> int:
        for number in numbers:
            layout = [["graph", f"{number} {field}", ["<i4", [1, number]]] for field in range(50)]
            frame = Frame(head={"events": [["packed", 0, json.dumps(layout)]]}, body=bytes(4 * number * 50))
            Intake(facts={}, step=-1, path="build").take(frame)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = take_in(range(1000))
        assert take_in(range(1000, 2000)) < before + (1 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "event",
    [
        [],
        ["at", 0],
        ["at", "0", "graph"],
        ["see", 0, "graph", "tokens"],
        ["packed", 0, "graph"],
        ["packed", 0, []],
        ["packed", "0", "[]"],
        ["packed", 0, "5"],
        ["packed", 0, '[["graph", "tokens"]]'],
        ["packed", 0, '[["graph", 5, ["<i4", [1]]]]'],
        ["packed", 0, '[["graph", "tokens", ["<i4", [1]]]]'],
        ["spent", "graph", "long"],
        ["fact", "release", 5],
        ["ended", "well", 0, "graph", "", ""],
        ["ended", "done", 0, "graph", None, ""],
        "at",
        None,
        {"at": 0},
    ],
)
def test_an_event_that_makes_no_sense_is_refused(event: object) -> None:
    with pytest.raises(BadFrame):
        Intake(facts={}, step=-1, path="").take(Frame(head={"events": [event]}))


@pytest.mark.parametrize("head", [{}, {"events": None}, {"events": {"at": 1}}])
def test_a_frame_has_events(head: dict[str, object]) -> None:
    with pytest.raises(BadFrame):
        Intake(facts={}, step=-1, path="").take(Frame(head=head))


def test_reading_and_writing_keep_their_deadline() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        with pytest.raises(Silence):
            read_exactly(reading, 1, time.monotonic() + 0.02)
        with pytest.raises(Silence):
            write_all(writing, bytes(1 << 20), time.monotonic() + 0.02)
    finally:
        os.close(reading)
        os.close(writing)


ILLEGAL = "CUDA error: an illegal memory access"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported", ILLEGAL),
        ("Triton Error [CUDA]: an illegal memory access was encountered", ILLEGAL),
        ("Attention failed with CUDA Error: an illegal memory access was encountered (700) /src/a.cuh:44", ILLEGAL),
        (
            "x\n  what():  CUDA error: device-side assert triggered\nCompile with",
            "CUDA error: device-side assert triggered",
        ),
        ("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has", "CUDA error: out of memory"),
        ("CUDA error: out of memory\n", "CUDA error: out of memory"),
        ("RuntimeError: shapes do not match", ""),
        ("", ""),
    ],
)
def test_cuda_errors_have_one_name_each(text: str, name: str) -> None:
    assert cuda_error(text) == name


def test_exits_have_names() -> None:
    names = [exit_name(status) for status in (0, 7 << 8, 11, 6 | 0x80, 34)]
    assert names == ["exit 0", "exit 7", "SIGSEGV", "SIGABRT", "SIGRTMIN"]
    assert exit_name(50) == "signal 50"


@unhurried
@given(st.text("ab\n", max_size=60), st.integers(1, 40))
def test_a_tail_is_the_end(text: str, length: int) -> None:
    end = tail(text, length).removeprefix("...")
    assert text.endswith(end)
    assert len(end) <= length
    assert end == text or len(end) >= length // 2 - 1
