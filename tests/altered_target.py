"""runners.session for the target's runners, able to change one input of a request and nothing else: data with
(n << SHIFT) added changes PARTS[runner][n - 1]. Whatever a changed input does not change, it does not reach."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from repro.case import Setup, Target
from runners.watch import RunCase, Watch

Array = Any
OTHER_SLOT = 6
SHIFT = 24
_FAR = 7919  # any constant

# What becomes of a request's row; at a slot that no other request uses.
_BOTH: dict[str, Callable[[Array, Array], Array]] = {
    "req_pool_indices": lambda row, _: np.full_like(row, OTHER_SLOT),
    # sglang lays a draft's kv_indices out by seq_lens and cuts them by positions, so the cut must stay inside.
    "seq_lens": lambda row, _: row + 1,
    "out_cache_loc": lambda row, table: table[OTHER_SLOT, : row.size].reshape(row.shape),
}
_DECODE = _BOTH | {"input_ids": lambda row, _: row ^ 1, "positions": lambda row, _: row + 3}
_VERIFY = _BOTH | {
    "bonus_tokens": lambda row, _: row ^ 1,
    "topk_index": lambda row, _: row ^ 1,
    "topk_p": lambda row, _: row[::-1],
    "hidden_states": lambda row, _: row[::-1],
}
_ROWS = {"decode": _DECODE, "verify": _VERIFY}
PARTS = {runner: (*rows, "prefix0", "prefix1") for runner, rows in _ROWS.items()}


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """As of runners.session, which is imported here only: the tests read PARTS in a process without torch."""
    session = importlib.import_module("runners.session")
    decode, verify, draft = (
        importlib.import_module(f"runners.releases.{name}.family") for name in ("decode", "verify", "draft")
    )
    memory = importlib.import_module("runners.sessions.memory")
    parts = PARTS[setup.runner]
    sources = ((decode, "integers"), (verify, "integers"), (draft, "integers"), (draft, "floats"), (memory, "window"))
    for module, name in sources:
        setattr(module, name, _altering(getattr(module, name), parts))
    step_class = importlib.import_module("runners.sessions.step").Step
    given = step_class._given

    def altered(step: Any) -> dict[str, Array]:
        arrays: dict[str, Array] = given(step)
        for row, request in enumerate(step.requests):
            name = _part(request.data, parts)
            if name in arrays:
                arrays[name][row] = _ROWS[setup.runner][name](arrays[name][row].copy(), step.captured.table)
        return arrays

    step_class._given = altered
    opened: RunCase = session.open_session(setup, target, watch)
    return opened


def _part(data: int, parts: tuple[str, ...]) -> str:
    number = data >> SHIFT
    return parts[number - 1] if number else ""


def _altering(payload: Callable[..., Any], parts: tuple[str, ...]) -> Callable[..., Any]:
    """A source of contents that knows no more than the lower part of `data`, but for the prefix that is changed."""

    def altered(data: int, name: str, *rest: Any) -> Any:
        return payload(data % (1 << SHIFT) + _FAR * (_part(data, parts) == name), name, *rest)

    return altered
