"""Attributes that methods read and nothing makes are found in bytecode, and no others are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from runners.sessions.unmade import absent, unmade

pytestmark = pytest.mark.emulated
Kind = type[Any]


def of_sglang(kind: Kind) -> Kind:
    kind.__module__ = "sglang.srt.speculative"
    return kind


def kept(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(*args: Any) -> Any:
        return method(*args)

    return wrapped


@of_sglang
class Base:
    kind = "a class's own"

    def __init__(self) -> None:
        self.made = 1

    def replaced(self) -> Any:
        return self.of_the_base_alone  # type: ignore[attr-defined]

    def late(self) -> None:
        self.made_later = 2

    @property
    def size(self) -> Any:
        return self.made + self.missing_in_a_property  # type: ignore[attr-defined]


@of_sglang
class Worker(Base):
    def __init__(self, backend: Any = None) -> None:
        super().__init__()
        self.backends = [backend]

    def replaced(self) -> Any:
        return self.made, self.made_later, self.kind, self.size, self.late

    @kept
    def reads(self) -> Any:
        return [self.missing_within for _ in self.backends], self.given  # type: ignore[attr-defined]

    def either(self, value: Any) -> Any:
        return value or self.read_by_nobody  # type: ignore[attr-defined]  # a plant: no class has it


@of_sglang
class Wise(Worker):
    def __getattr__(self, name: str) -> Any:
        return name


@of_sglang
class Backend:
    def plan(self) -> Any:
        return self.missing_call()  # type: ignore[attr-defined]


def test_what_nothing_makes_is_named_once() -> None:
    worker = Worker(Backend())
    vars(worker)["given"] = 3  # by whoever built it
    names = ["Backend.missing_call", "Worker.missing_in_a_property", "Worker.missing_within"]
    assert unmade({"worker": worker, "again": worker}) == names
    assert unmade({"worker": Worker()}) == ["Worker.given", *names[1:]]
    vars(worker)["missing_within"] = vars(worker)["missing_in_a_property"] = 0
    assert unmade({"worker": worker}) == names[:1]


def test_a_worker_lacks_what_another_method_should_have_made() -> None:
    worker = Worker()
    assert absent(worker) == ["Worker.made_later"]
    worker.late()
    assert absent(worker) == []


def test_what_makes_attributes_up_has_them_all() -> None:
    assert unmade({"worker": Wise()}) == []


def test_what_is_not_sglangs_is_not_looked_into() -> None:
    class Other(Backend):
        pass

    assert unmade({"other": Other(), "number": 3, "none": None}) == []
