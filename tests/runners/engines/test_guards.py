"""Guard bands around what is made while they are up, whose contents stay what they were."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from runners.engines import guards
from runners.engines.guards import BAND, Guards, band_bytes
from runners.engines.without_device import remember_cores

pytestmark = pytest.mark.emulated


@pytest.mark.parametrize("apart", ["", "cuda", "cpu"])
def test_what_is_made_has_its_contents_and_whole_bands(apart: str) -> None:
    with Guards(lambda: False, apart=apart) as up:
        made = {"full": torch.full((2, 3), 7), "ones": torch.ones(4, dtype=torch.bool), "empty": torch.empty(5)}
        made["empty"].zero_()
    assert made["full"].tolist() == [[7] * 3] * 2 and made["ones"].all()
    [bands] = up.bands(made)
    read = bands.read().numpy()
    assert read.size == 2 * BAND * (8 + 1 + 4)
    assert bands.broken(read) == {}
    assert {tensor.storage_offset() for tensor in made.values()} == {0 if apart == "cpu" else BAND}
    bands.slices[1 + 2 * bands.names.index("empty")][:1] = 0
    broken = bands.broken(bands.read().numpy())
    assert {name for name, both in broken.items() if (both != guards.untouched(both.size)).any()} == {"empty"}


def test_what_stands_apart_lives_as_long_as_it_is_referred_to_and_no_longer() -> None:
    with Guards(lambda: False, apart="cpu") as up:
        made = torch.arange(6).to(torch.float32), torch.full((3,), 2.5), torch.empty(4, dtype=torch.float8_e4m3fn)
        view = made[1].view(3, 1)[1:]
    whole = next(iter(up._flats.values()))
    reference = StorageWeakRef(whole.untyped_storage())
    up.bands({})
    del whole, made
    assert view.tolist() == [[2.5]] * 2 and not reference.expired()
    del view
    assert reference.expired()


def test_a_function_is_traced_once_for_what_stands_apart_and_what_does_not() -> None:
    traces: list[object] = []

    def backend(graph: Any, inputs: object) -> Any:
        traces.append(graph)
        return graph.forward

    function = torch.compile(lambda scores: scores * 2, dynamic=True, backend=backend)
    with Guards(lambda: False, apart="cpu"):
        made = torch.zeros((4, 8))
    for tensor in (made, torch.zeros((4, 8)), made[:3]):
        function(tensor)
    assert len(traces) == 1


def test_pinned_memory_stays_pinned_and_a_workspace_of_it_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned memory is asked for on a GPU; here the question is noted."""
    calls: list[bool] = []
    new_empty = torch.Tensor.new_empty

    def empty(*size: int, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return plain(*size, **kwargs)

    def noted(like: torch.Tensor, *size: int, pin_memory: bool) -> torch.Tensor:
        calls.append(pin_memory)
        return new_empty(like, *size)

    plain = torch.empty
    monkeypatch.setattr(torch.Tensor, "new_empty", noted)
    monkeypatch.setattr(guards, "_FACTORIES", {empty})
    up = Guards(lambda: False)
    small = up.__torch_function__(empty, (), (4,), {"pin_memory": True})
    large = up.__torch_function__(empty, (), (1 << 20,), {"pin_memory": True, "dtype": torch.uint8})
    up.__torch_function__(empty, (), (4,), {})
    assert calls == [True, False]
    assert band_bytes(small.untyped_storage()) and not band_bytes(large.untyped_storage())


def test_a_vast_workspace_stays_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_VAST", 1 << 12)
    copied: list[int] = []
    copy = torch.Tensor.copy_

    def noted(into: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        copied.append(into.numel())
        return copy(into, source)

    monkeypatch.setattr(torch.Tensor, "copy_", noted)
    with Guards(lambda: False) as up:
        made = {"vast": torch.empty(1 << 13, dtype=torch.uint8), "zeros": torch.zeros(1 << 12, dtype=torch.uint8)}
        torch.empty(1 << 11, dtype=torch.uint8)
    assert copied == [1 << 12, 1 << 11]
    assert not made["zeros"].any()
    [bands] = up.bands(made)
    assert bands.broken(bands.read().numpy()) == {}


def test_sglang_asks_for_the_cores_of_the_host_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def parse() -> list[int]:
        calls.append(1)
        return [0, 0, 0, 0]

    common: Any = SimpleNamespace(parse_lscpu_topology=parse)
    monkeypatch.setitem(sys.modules, "sglang.srt.utils.common", common)
    remember_cores()
    assert [common.parse_lscpu_topology() for _ in range(2)] == [[0, 0, 0, 0]] * 2
    assert calls == [1]
