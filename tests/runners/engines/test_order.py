"""The order of streams: what waits for what, on tensors whose kernels and copies are values by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.cpu
import triton.language as tl

from runners.engines import order as ordering
from runners.engines.order import Order
from runners.engines.standins.verify import verify_tree_greedy
from runners.engines.triton.stored import stored
from runners.engines.without_device import copied_to_host, hosted

pytestmark = pytest.mark.emulated

FIRST, SECOND = torch.cpu.Stream(), torch.cpu.Stream()


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Order:
    """All is asked for by sglang."""
    monkeypatch.setattr(ordering, "_place", lambda: "sglang")
    return Order()


def races(order: Order, scene: Callable[[torch.Tensor], None]) -> list[str]:
    """The kinds of races in a scene with a tensor of a device, which the first stream has values."""
    source = torch.ones(4)
    order.device_holds(source)
    with hosted(), order.watched():
        with torch.cpu.stream(FIRST):
            values = source + 1
        scene(values)
    return [race.kind for race in order.races.values()]


def read_by_second(values: torch.Tensor) -> None:
    with torch.cpu.stream(SECOND):
        values.sum()


def test_a_read_must_wait_for_the_write(order: Order) -> None:
    assert races(order, read_by_second) == [ordering.EARLY]


def test_a_race_says_who_asked_for_the_later_access(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "_SGLANG", "/tests/runners/engines/")
    assert races(order, read_by_second) == [ordering.EARLY]
    (race,) = order.races.values()
    assert [place.partition(":")[0] for place in race.callers[:1]] == ["test_order.py races"]


def test_a_wait_for_the_stream_or_its_event_orders_a_read(order: Order) -> None:
    def by_stream(values: torch.Tensor) -> None:
        SECOND.wait_stream(FIRST)
        read_by_second(values)

    def by_event(values: torch.Tensor) -> None:
        event = torch.cpu.Event()
        event.record(FIRST)
        SECOND.wait_event(event)
        read_by_second(values)

    assert races(order, by_stream) == []
    assert races(order, by_event) == []


def test_an_event_that_was_recorded_before_orders_nothing(order: Order) -> None:
    def scene(values: torch.Tensor) -> None:
        event = torch.cpu.Event()
        event.record(FIRST)
        with torch.cpu.stream(FIRST):
            values.add_(1)
        SECOND.wait_event(event)
        read_by_second(values)

    assert races(order, scene) == [ordering.EARLY]


def test_the_host_waits_for_nothing_that_a_stand_in_reads_as_a_kernel(order: Order) -> None:
    def scene(values: torch.Tensor) -> None:
        with torch.cpu.stream(FIRST):
            root = values[:1].long().view(1, 1) - 2
            verify_tree_greedy(torch.zeros(1), root.clone(), torch.zeros(1), root, root, root - 1, root - 1, root)
        read_by_second(values)

    assert races(order, scene) == [ordering.EARLY]


def test_a_write_must_wait_for_reads(order: Order) -> None:
    def scene(values: torch.Tensor) -> None:
        SECOND.wait_stream(FIRST)
        read_by_second(values)
        with torch.cpu.stream(FIRST):
            values.zero_()

    assert races(order, scene) == [ordering.LATE]


def test_the_host_reads_a_copy_when_it_is_there(order: Order) -> None:
    def early(values: torch.Tensor) -> None:
        with torch.cpu.stream(FIRST):
            copy = copied_to_host(values)
        copy.tolist()

    def waits(values: torch.Tensor) -> None:
        with torch.cpu.stream(FIRST):
            copy = values.to("cpu", non_blocking=True)
            event = torch.cpu.Event()
            event.record()
        event.synchronize()
        copy.tolist()

    def asks(values: torch.Tensor) -> None:
        with torch.cpu.stream(FIRST):
            copy = values.to("cpu", non_blocking=True)
            event = torch.cpu.Event()
            event.record()
        assert event.query()
        copy.tolist()

    def blocks(values: torch.Tensor) -> None:
        with torch.cpu.stream(FIRST):
            copy = values.cpu()
        with torch.cpu.stream(SECOND):
            copy.add_(1)
        copy.tolist()

    assert races(order, waits) == []
    assert races(order, asks) == []
    assert races(order, blocks) == []
    assert races(order, early) == [ordering.EARLY]


def test_what_waits_for_the_host_comes_behind_what_the_host_waited_for(order: Order) -> None:
    def scene(values: torch.Tensor) -> None:
        with torch.cpu.stream(FIRST):
            values.tolist()
        read_by_second(values)

    assert races(order, scene) == []


def moves(source, count, target, marks, width: tl.constexpr):  # type: ignore[no-untyped-def]  # as Triton wants it
    row = source + tl.load(count)
    place = target
    for _ in range(width):
        handed_on(place, tl.load(row))  # type: ignore[no-untyped-call]  # Triton kernels have no types
        place += 1
    tl.atomic_add(marks + tl.load(target), 1)


def handed_on(into, value):  # type: ignore[no-untyped-def]  # Triton kernels have no types
    tl.store(into, value)


def test_a_kernel_writes_what_its_stores_are_made_of() -> None:
    assert stored(moves) == {"target", "marks"}
