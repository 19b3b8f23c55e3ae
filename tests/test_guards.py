"""Guard bands around what is made while they are up, whose contents stay what they were."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runners.engines import guards
from runners.engines.guards import BAND, Guards
from runners.engines.without_device import remember_cores

pytestmark = pytest.mark.emulated


def test_what_is_made_has_its_contents_and_whole_bands() -> None:
    with Guards(lambda: False) as up:
        made = {"full": torch.full((2, 3), 7), "ones": torch.ones(4, dtype=torch.bool), "empty": torch.empty(5)}
        made["empty"].zero_()
    assert made["full"].tolist() == [[7] * 3] * 2 and made["ones"].all()
    [bands] = up.bands(made)
    read = bands.read().numpy()
    assert read.size == 2 * BAND * (8 + 1 + 4)
    assert bands.broken(read) == {}
    made["empty"].as_strided((1,), (1,), BAND + 5).fill_(0)
    broken = bands.broken(bands.read().numpy())
    assert {name for name, both in broken.items() if (both != guards.untouched(both.size)).any()} == {"empty"}


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
    asked: list[int] = []

    def parse() -> list[int]:
        asked.append(1)
        return [0, 0, 0, 0]

    common: Any = SimpleNamespace(parse_lscpu_topology=parse)
    monkeypatch.setitem(sys.modules, "sglang.srt.utils.common", common)
    remember_cores()
    assert [common.parse_lscpu_topology() for _ in range(2)] == [[0, 0, 0, 0]] * 2
    assert asked == [1]
