"""Choices that hang on rounding, when two targets are compared: the reference's doubt, and what was drafted before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from repro.fidelity.compare import CHOICES, DRAFTED
from repro.traces.trace import RecordedArray, Trace
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
        told = replace(
            TRACE, seen=(*TRACE.seen, RecordedArray(step=1, path="reference", name="tokens.bound", array=bound))
        )
        assert of_kind(compared(told, other), CHOICES).items() >= found.items()


def test_a_call_whose_tokens_were_drafted_otherwise_is_another_call() -> None:
    def given(tokens: list[int], trace: Trace) -> Trace:
        count = len(CASE.steps[1].requests)
        array = np.array([tokens] * count, dtype=np.int64)
        array[0] = 5
        return replace(trace, seen=(*trace.seen, RecordedArray(step=1, path="input", name="tokens", array=array)))

    other = both_paths(1, "tokens", put((2, 0), 99))(TRACE)
    agreement = compared(given([1, 2], TRACE), given([1, 3], other))
    assert outputs(agreement) == []
    assert of_kind(agreement, DRAFTED) == {"agree": 2, "not recorded": 2 * (len(CASE.steps[1].requests) - 1)}
    assert len(outputs(compared(given([1, 2], TRACE), given([1, 2], other)))) == 2


@pytest.mark.parametrize("wrong", [None, 2, 1])
def test_choices_that_are_right_on_both_targets_are_a_tie(wrong: int | None) -> None:
    """The reference follows each target's own choice as far as rounding explains it, but in row `wrong`."""

    def told(trace: Trace) -> Trace:
        mine = []
        for name in ("tokens", "parents", "scores_index"):
            choice = trace.get(1, "eager", name)
            assert choice is not None
            choice = choice.copy()
            if wrong is not None:
                choice[wrong, 0] += 1
            for more, array in (("", choice), (".bound", np.zeros(choice.shape))):
                mine.append(RecordedArray(step=1, path="reference", name=name + more, array=array))
        return replace(trace, seen=(*trace.seen, *mine))

    other = both_paths(1, "tokens", put((2, 0), 99))(TRACE)
    agreement = compared(told(TRACE), told(other))
    assert of_kind(agreement, CHOICES).items() >= {("differ" if wrong == 2 else "tie", 2)}
    assert of_kind(compared(told(TRACE), other), CHOICES)["differ"] == 2
