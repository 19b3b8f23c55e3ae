"""Choices that hang on rounding, when two targets are compared: the reference's doubt, and what was drafted before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from repro.fidelity.compare import CHOICES, DRAFTED
from repro.traces.trace import Seen, Trace
from tests.builders.fidelity_traces import TRACE
from tests.builders.toy_traces import put
from tests.test_fidelity import both_paths, compared, of_kind, outputs
from tests.test_repro_main import CASE

pytestmark = pytest.mark.slow


def test_a_tree_of_which_the_reference_is_not_sure_is_a_tie() -> None:
    other = both_paths(1, "tokens", put((2, 0), 99))(TRACE)
    tokens = TRACE.get(1, "eager", "tokens")
    assert tokens is not None
    for row, found in ((2, {"tie": 2}), (1, {"differ": 2})):
        bound = np.zeros(tokens.shape)
        bound[row, 0] = np.inf
        told = replace(TRACE, seen=(*TRACE.seen, Seen(step=1, path="reference", name="tokens.bound", array=bound)))
        assert of_kind(compared(told, other), CHOICES).items() >= found.items()


def test_a_call_whose_tokens_were_drafted_otherwise_is_another_call() -> None:
    def given(tokens: list[int], trace: Trace) -> Trace:
        count = len(CASE.steps[1].requests)
        array = np.array([tokens] * count, dtype=np.int64)
        array[0] = 5
        return replace(trace, seen=(*trace.seen, Seen(step=1, path="input", name="tokens", array=array)))

    other = both_paths(1, "tokens", put((2, 0), 99))(TRACE)
    agreement = compared(given([1, 2], TRACE), given([1, 3], other))
    assert outputs(agreement) == []
    assert of_kind(agreement, DRAFTED) == {"agree": 2, "not recorded": 2 * (len(CASE.steps[1].requests) - 1)}
    assert len(outputs(compared(given([1, 2], TRACE), given([1, 2], other)))) == 2
