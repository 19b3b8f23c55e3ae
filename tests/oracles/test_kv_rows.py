"""The distance that KV rows may have from those of a prefill, by the engine that multiplied them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oracles import kv_rows
from repro.traces.finding import Status
from tests.runners.releases.test_round import SMALL, recorded


@pytest.mark.parametrize(
    ("engine", "row", "fails"), [("emulated", 2.0001, True), ("cuda", 2.0001, False), ("cuda", 3.0, True)]
)
def test_kv_rows_of_float32_are_products_of_tensor_cores_on_a_gpu(engine: str, row: float, fails: bool) -> None:
    afresh = {"requests": [0], "lengths": [4], "cached": [0], "draft_k0": [[1.0, 2.0, 3.0, 4.0]]}
    graph = {"requests": [0], "new_seq_lens": [4], "draft_k0": [[1.0, row, 3.0, 0.0]]}
    places = {"afresh": afresh, "round_graph": graph}
    trace = recorded(**{f"{path}.{name}": value for path, each in places.items() for name, value in each.items()})
    verdicts = kv_rows.judge(SMALL, replace(trace, facts={"engine": engine}))
    assert {verdict.status for verdict in verdicts} == {Status.FAIL if fails else Status.PASS}
