"""Questions of sglang's to the machine are asked once, and never of a device that must not be started."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from runners.releases.starting import machine

pytestmark = pytest.mark.emulated


def common(answer: Callable[[SimpleNamespace], float]) -> tuple[SimpleNamespace, list[float]]:
    """Utilities like sglang's, and what they have answered."""
    answers: list[float] = []

    def asks() -> float:
        answers.append(answer(module))
        return answers[-1]

    module = SimpleNamespace(get_nvgpu_memory_capacity=asks, _cuda_mem_fallback=lambda reason: 80.0)
    return module, answers


def test_it_is_asked_once() -> None:
    module, answers = common(lambda module: 141.0)
    machine.remember(module)
    assert answers == [141.0]
    assert module.get_nvgpu_memory_capacity() == module.get_nvgpu_memory_capacity() == 141.0
    assert answers == [141.0]


def test_the_device_answers_each_session_for_itself() -> None:
    module, answers = common(lambda module: module._cuda_mem_fallback("no such program"))
    machine.remember(module)
    assert answers == []
    assert module.get_nvgpu_memory_capacity() == module.get_nvgpu_memory_capacity() == 80.0
    assert answers == [80.0]


def test_a_release_that_does_not_ask_is_left_alone() -> None:
    module = SimpleNamespace()
    machine.remember(module)
    assert not vars(module)
