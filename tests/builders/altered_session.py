"""runners.sessions.open, able to change one input of a request and nothing else: data with (n << SHIFT) added changes
PARTS[runner][n - 1]. Whatever a changed input does not change, it does not reach."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from repro.cases.case import Setup, Target
from runners.recording.observer import RunCase, Watch

Array = Any
# What becomes of a request's row, by the input's name; the second argument is req_to_token.
Rows = Mapping[str, Callable[[Array, Array], Array]]
OTHER_SLOT = 6  # one that no other request uses
SHIFT = 24
_FAR = 7919  # any constant

_MOVED: Rows = {
    "req_pool_indices": lambda row, _: np.full_like(row, OTHER_SLOT),
    "seq_lens": lambda row, _: row + 1,
}
_WRITTEN: Rows = {"out_cache_loc": lambda row, table: table[OTHER_SLOT, : row.size].reshape(row.shape)}
_DRAFTED: Rows = {
    "hidden_states": lambda row, _: row[::-1],
    "topk_index": lambda row, _: row ^ 1,
    "topk_p": lambda row, _: row[::-1],
}
# sglang lays a draft's kv_indices out by seq_lens and cuts them by positions, so the cut must stay inside.
_DRAFT: Rows = {**_DRAFTED, "positions": lambda row, _: row - 1, **_MOVED, **_WRITTEN}
_DECODE: Rows = {**_MOVED, **_WRITTEN, "input_ids": lambda row, _: row ^ 1, "positions": lambda row, _: row + 3}
_VERIFY: Rows = {**_MOVED, **_WRITTEN, "bonus_tokens": lambda row, _: row ^ 1, **_DRAFTED}
# The graph is not told extend_prefix_lens, and no kernel of these backends reads num_correct_drafts.
_EXTEND: Rows = {
    **_DECODE,
    "hidden_states": lambda row, _: row[::-1],
    "num_accept_tokens": lambda row, _: row % 3 + 1,
}
_FROZEN: Rows = {
    **_DRAFTED,
    **_MOVED,
    "bonus_tokens": lambda row, _: row ^ 1,
    "positions": lambda row, _: row - 1,
}
ROWS = {
    "draft": _DRAFT,
    "draft_v1": _DRAFT,
    "decode": _DECODE,
    "cpu_decode": _DECODE,
    "verify": _VERIFY,
    "draft_extend": _EXTEND,
    "frozen_kv_mtp": _FROZEN,
}
PREFIXES = {"frozen_kv_mtp": 4}  # tensors of a KV cache: keys and values of each layer
PARTS = {
    runner: (*rows, *(f"prefix{number}" for number in range(PREFIXES.get(runner, 2)))) for runner, rows in ROWS.items()
}
# The modules from which the contents of a batch come, where that is not the runner's own family alone.
_FAMILIES = {"draft_v1": ("draft",), "cpu_decode": ("cpu_decode", "decode"), "verify": ("verify", "draft")}


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """The same as open_session of runners.sessions.open, which is imported here only: the tests read PARTS in a process
    without torch. Tells a model's sizes as fact `sizes`."""
    rows, parts = ROWS[setup.runner], PARTS[setup.runner]
    session: Any
    model: Any
    session, model = (importlib.import_module(f"runners.{name}") for name in ("sessions.open", "releases.model"))
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
    opened: RunCase = session.open_session(setup, target, watch)
    return opened


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
