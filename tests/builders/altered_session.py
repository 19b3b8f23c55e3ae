"""runners.sessions.open, able to change one input of a request and nothing else, as tests/builders/altered.py says.
Whatever a changed input does not change, it does not reach."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from repro.cases.case import Setup, Target
from runners.recording.observer import RunCase, Watch
from runners.sessions import open
from tests.builders.altered import PARTS, ROWS, SHIFT, Array

_FAR = 7919  # any constant
# The modules from which the contents of a batch come, where that is not the runner's own family alone.
_FAMILIES = {"draft_v1": ("draft",), "cpu_decode": ("cpu_decode", "decode"), "verify": ("verify", "draft")}


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """The same as open_session of runners.sessions.open. Tells a model's sizes as fact `sizes`."""
    rows, parts = ROWS[setup.runner], PARTS[setup.runner]
    model: Any = importlib.import_module("runners.releases.model")
    fill_weights = model.fill_weights

    def measured(of: Any) -> None:
        fill_weights(of)
        watch.fact("sizes", json.dumps({name: list(weight.shape) for name, weight in of.named_parameters()}))

    model.fill_weights = measured
    for module in _sources(setup.runner):
        for name in {"floats_each", "integers_each", "window"} & vars(module).keys():
            setattr(module, name, _altering(getattr(module, name), parts))
    inputs_class = importlib.import_module("runners.sessions.inputs").Inputs
    original = inputs_class._given

    def altered(inputs: Any) -> dict[str, Array]:
        arrays: dict[str, Array] = original(inputs)
        for row, request in enumerate(inputs.requests):
            name = _part(request.data, parts)
            if name in arrays:
                arrays[name][row] = rows[name](arrays[name][row].copy(), inputs.captured.table)
        return arrays

    inputs_class._given = altered
    return open.open_session(setup, target, watch)


def _sources(runner: str) -> list[Any]:
    """The modules that make the contents of batches and of the KV cache."""
    names = [f"runners.releases.adapters.{name}.family" for name in _FAMILIES.get(runner, (runner,))]
    return [importlib.import_module(name) for name in (*names, "runners.sessions.memory")]


def _part(data: int, parts: Sequence[str]) -> str:
    number = data >> SHIFT
    return parts[number - 1] if number else ""


def _altering(payload: Callable[..., Any], parts: Sequence[str]) -> Callable[..., Any]:
    """A source of contents that knows no more than the lower part of `data`, but for the prefix that is changed."""

    def known(data: int, name: str) -> int:
        return data % (1 << SHIFT) + _FAR * (_part(data, parts) == name)

    def altered(data: int | list[int], name: str, *rest: Any) -> Any:
        return payload(
            [known(item, name) for item in data] if isinstance(data, list) else known(data, name), name, *rest
        )

    return altered
