"""Results in which two targets need not agree: what hangs on rounding, what was drafted before, and what is
undefined."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from repro.fidelity.compare import CHOICES, DRAFTED, OUTPUT, OVERALL
from repro.fidelity.observation import Observation
from repro.traces.finding import Status, Verdict
from repro.traces.trace import RecordedArray, Trace
from tests.builders.fidelity_traces import TRACE, agreement_of, compared, seen, with_scores
from tests.builders.toy_traces import changed, put
from tests.repro.fidelity.test_fidelity import both_paths, of_kind, outputs
from tests.repro.test_repro_main import CASE

pytestmark = pytest.mark.slow


def test_a_tree_of_which_the_reference_is_not_sure_is_a_tie() -> None:
    other = both_paths(1, "tokens", put((2, 0), 99))(TRACE)
    tokens = TRACE.get(1, "eager", "tokens")
    assert tokens is not None
    for row, kinds in ((2, {"tie": 2}), (1, {"differ": 2})):
        bound = np.zeros(tokens.shape)
        bound[row, 0] = np.inf
        changed = replace(
            TRACE, seen=(*TRACE.seen, RecordedArray(step=1, path="reference", name="tokens.bound", array=bound))
        )
        assert of_kind(compared(changed, other), CHOICES).items() >= kinds.items()


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


@pytest.mark.parametrize(("bound", "way"), [(np.inf, "tie"), (10.0, "tie"), (8.0, "differ")])
def test_values_that_the_reference_grants_to_both_targets_are_a_tie(bound: float, way: str) -> None:
    """Far apart for two targets, and each as near to what is right as rounding explains."""

    def told(trace: Trace) -> Trace:
        scores = trace.get(0, "eager", "scores")
        assert scores is not None
        right = np.zeros(scores.shape)
        parts = {"": right, ".bound": right + bound, ".norm": np.full((len(right), 1), np.inf)}
        mine = [RecordedArray(step=0, path="reference", name=f"scores{part}", array=a) for part, a in parts.items()]
        return replace(trace, seen=(*trace.seen, *mine))

    agreement = agreement_of()
    rows = agreement.add(seen(told(with_scores(TRACE))), seen(told(with_scores(TRACE, 0, put((0, 1), 9.0)))))
    assert [row.kind for row in rows if row.kind == OUTPUT] == [OUTPUT] * 2 * (way == "differ")
    assert of_kind(agreement, OUTPUT)[way] == 2


def failing(oracle: str) -> Observation:
    """The toy's trace as a target would show it on which this oracle fails."""
    plain = seen(TRACE)
    failure = Verdict(oracle=oracle, status=Status.FAIL, where="load outside x in kernel")
    others = tuple(verdict for verdict in plain.verdicts if verdict.oracle != oracle)
    return replace(plain, verdicts=(*others, failure), overall=Status.FAIL)


@pytest.mark.parametrize(("oracle", "way"), [("memory", "agree"), ("ended", "differ"), ("planned", "differ")])
def test_an_oracle_that_one_engine_alone_has_decides_nothing_between_them(oracle: str, way: str) -> None:
    agreement = agreement_of()
    rows = agreement.add(seen(TRACE), failing(oracle))
    assert of_kind(agreement, OVERALL) == {way: 1}
    assert of_kind(agreement, oracle) == {"not recorded" if oracle == "memory" else "differ": 1}
    assert {row.kind for row in rows} == ({oracle, OVERALL} if way == "differ" else set())


def test_an_oracle_that_was_asked_on_one_target_alone() -> None:
    agreement, plain = agreement_of(), seen(TRACE)
    fewer = replace(plain, verdicts=tuple(v for v in plain.verdicts if v.oracle != "slot0_padding"))
    (differing,) = agreement.add(plain, fewer)
    assert (differing.kind, differing.detail) == ("slot0_padding", "PASS on here/toy, nothing on there/toy")


@pytest.mark.parametrize("oracle", ["memory", "kv_writes"])
def test_what_a_kernel_does_outside_its_memory_is_undefined(oracle: str) -> None:
    """Other failures leave what is as well known as ever."""
    changes = (both_paths(0, "tokens", put((0, 0), 99)), lambda trace: with_scores(trace, 0, put((0, 1), 9.0)))
    other = seen(changes[1](changes[0](TRACE)))
    agreement = agreement_of()
    rows = agreement.add(failing(oracle), replace(other, verdicts=failing(oracle).verdicts))
    ways = of_kind(agreement, CHOICES)
    assert bool(rows) is (oracle != "memory")
    assert ways["undefined" if oracle == "memory" else "differ"] == 2


@pytest.mark.parametrize("sides", [(0,), (0, 1)])
def test_rows_of_a_graph_that_are_wrong_on_both_targets_are_not_compared(sides: tuple[int, ...]) -> None:
    """Garbage is another one on each. If it is right on one of them, they disagree."""
    wrong = [
        changed(TRACE, 0, "graph", "tokens", put((0, 0), 90 + side)) if side in sides else TRACE for side in (0, 1)
    ]
    agreement = compared(*wrong)
    assert bool(outputs(agreement)) is (len(sides) == 1)
    if len(sides) == 2:
        assert of_kind(agreement, OUTPUT) == {"undefined": 1}
