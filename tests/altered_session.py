"""runners.sessions.open, able to change one input of a request and nothing else: data with (n << SHIFT) added changes
PARTS[n - 1]. Whatever a changed input does not change, it does not reach."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from repro.cases.case import Setup, Target
from runners.recording.observer import RunCase, Watch

Array = Any
Rows = Mapping[str, Callable[[Array, Array], Array]]
OTHER_SLOT = 6
SHIFT = 24
_FAR = 7919  # any constant

# What becomes of a request's row; at a slot that no other request uses.
_ROWS: Rows = {
    "hidden_states": lambda row, _: row[::-1],
    "topk_index": lambda row, _: row ^ 1,
    "topk_p": lambda row, _: row[::-1],
    # sglang lays kv_indices out by seq_lens and cuts them by positions, so the cut must stay inside.
    "positions": lambda row, _: row - 1,
    "seq_lens": lambda row, _: row + 1,
    "req_pool_indices": lambda row, _: np.full_like(row, OTHER_SLOT),
    "out_cache_loc": lambda row, table: table[OTHER_SLOT, : row.size],
}
PARTS = (*_ROWS, "prefix0", "prefix1")


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    return open_altered("draft", _ROWS, PARTS, setup, target, watch)


def open_altered(
    families: str | Sequence[str], rows: Rows, parts: Sequence[str], setup: Setup, target: Target, watch: Watch
) -> RunCase:
    """As of runners.sessions.open, which is imported here only: the tests read PARTS in a process without torch.
    families: of the runners from which the contents of a batch come. Tells a model's sizes as fact `sizes`."""
    session, model = (importlib.import_module(f"runners.{name}") for name in ("sessions.open", "releases.model"))
    fill_weights = model.fill_weights

    def measured(of: Any) -> None:
        fill_weights(of)
        watch.fact("sizes", json.dumps({name: list(weight.shape) for name, weight in of.named_parameters()}))

    model.fill_weights = measured
    named = [families] if isinstance(families, str) else families
    modules = [importlib.import_module(f"runners.releases.{name}.family") for name in named]
    for module in (*modules, importlib.import_module("runners.sessions.memory")):
        for name in {"floats_each", "integers_each", "window"} & vars(module).keys():
            setattr(module, name, _altering(getattr(module, name), parts))
    step_class = importlib.import_module("runners.sessions.step").Step
    given = step_class._given

    def altered(step: Any) -> dict[str, Array]:
        arrays: dict[str, Array] = given(step)
        for row, request in enumerate(step.requests):
            name = _part(request.data, parts)
            if name in arrays:
                arrays[name][row] = rows[name](arrays[name][row].copy(), step.captured.table)
        return arrays

    step_class._given = altered
    opened: RunCase = session.open_session(setup, target, watch)
    return opened


def _part(data: int, parts: Sequence[str]) -> str:
    number = data >> SHIFT
    return parts[number - 1] if number else ""


def _altering(payload: Callable[..., Any], parts: Sequence[str]) -> Callable[..., Any]:
    """A source of contents that knows no more than the lower part of `data`, but for the prefix that is changed."""

    def known(data: int, name: str) -> int:
        return data % (1 << SHIFT) + _FAR * (_part(data, parts) == name)

    def altered(data: int | list[int], name: str, *rest: Any) -> Any:
        return payload([known(one, name) for one in data] if isinstance(data, list) else known(data, name), name, *rest)

    return altered
