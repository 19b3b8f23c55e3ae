"""Marks of a finding's page: on what was judged wrong, not on what merely differs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from reports.pages import _side
from repro.traces.excerpt import Excerpt, excerpts
from repro.traces.finding import Cell
from repro.traces.trace import End, RecordedArray, Termination, Trace
from tests.builders.sample_record import stale_found

LOGITS = Excerpt(
    step=1, name="logits", row=0, column=0, width=3, graph=("0.1", "0.5", "0.9"), eager=("0.100001", "0.7", "0.9")
)
TOKENS = Excerpt(step=1, name="tokens", row=0, column=0, width=3, graph=("3", "4", "-1"), eager=("3", "5", "-1"))


def wrong(buffer: str, column: int) -> Cell:
    return Cell(step=1, buffer=buffer, row=0, column=column, got="1", want="2")


@pytest.mark.parametrize(
    ("excerpt", "oracle", "cell", "marked"),
    [
        (LOGITS, "slot0_padding", wrong("req_pool_indices", 0), []),
        (LOGITS, "graph_equals_eager", wrong("logits", 1), [1]),
        (LOGITS, "graph_equals_eager", wrong("topk_p", 1), []),
        (TOKENS, "graph_equals_eager", wrong("parents", 0), [1]),
        (TOKENS, "slot0_padding", wrong("req_pool_indices", 0), []),
        (replace(TOKENS, name="req_pool_indices"), "slot0_padding", wrong("req_pool_indices", 0), [1]),
        (LOGITS, "ended", None, []),
    ],
)
def test_what_was_judged_is_marked(excerpt: Excerpt, oracle: str, cell: Cell | None, marked: list[int]) -> None:
    side = _side(excerpt, replace(stale_found(), oracle=oracle, cell=cell))
    for values in (side.graph, side.eager):
        assert [place for place, (_, is_marked) in enumerate(values) if is_marked] == marked
    assert side.differ == (2 if excerpt is LOGITS else 1)


def test_the_wrong_value_is_shown_whatever_differs_before_it() -> None:
    graph, eager = np.zeros((2, 100)), np.zeros((2, 100))
    graph[0, 3], graph[1, 80] = 1e-6, 9.0
    seen = tuple(
        RecordedArray(step=0, path=path, name="logits", array=a) for path, a in (("graph", graph), ("eager", eager))
    )
    trace = Trace(ended=End(how=Termination.DONE), seen=seen)
    first, *_ = excerpts(trace, Cell(step=0, buffer="logits", row=1, column=80, got="9", want="0"))
    assert first.row == 1 and "9" in first.graph
