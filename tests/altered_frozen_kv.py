"""runners.session for frozen-KV drafts, able to change one input of a request and nothing else: data with (n << SHIFT)
added changes PARTS[n - 1]."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from repro.case import Setup, Target
from runners.watch import RunCase, Watch
from tests.altered_session import OTHER_SLOT, SHIFT

Array = Any
_FAR = 7919  # any constant

_ROWS: dict[str, Callable[[Array], Array]] = {
    "bonus_tokens": lambda row: row ^ 1,
    "hidden_states": lambda row: row[::-1],
    "topk_index": lambda row: row ^ 1,
    "topk_p": lambda row: row[::-1],
    "positions": lambda row: row - 1,
    "seq_lens": lambda row: row + 1,
    "req_pool_indices": lambda row: np.full_like(row, OTHER_SLOT),
}
PARTS = (*_ROWS, *(f"prefix{number}" for number in range(4)))


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """As of runners.session, which is imported here only: the tests read PARTS in a process without torch."""
    session = importlib.import_module("runners.session")
    family = importlib.import_module("runners.releases.frozen_kv_mtp.family")
    memory = importlib.import_module("runners.sessions.memory")
    for module, name in ((family, "floats"), (family, "integers"), (memory, "window")):
        setattr(module, name, _altering(getattr(module, name)))
    step_class = importlib.import_module("runners.sessions.step").Step
    given = step_class._given

    def altered(step: Any) -> dict[str, Array]:
        arrays: dict[str, Array] = given(step)
        for row, request in enumerate(step.requests):
            name = _part(request.data)
            if name in arrays:
                arrays[name][row] = _ROWS[name](arrays[name][row].copy())
        return arrays

    step_class._given = altered
    opened: RunCase = session.open_session(setup, target, watch)
    return opened


def _part(data: int) -> str:
    number = data >> SHIFT
    return PARTS[number - 1] if number else ""


def _altering(payload: Callable[..., Any]) -> Callable[..., Any]:
    """A source of contents that knows no more than the lower part of `data`, but for the prefix that is changed."""

    def altered(data: int, name: str, *rest: Any) -> Any:
        return payload(data % (1 << SHIFT) + _FAR * (_part(data) == name), name, *rest)

    return altered
