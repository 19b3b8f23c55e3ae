"""What a campaign goes on with where known issues explain a failing case, or a part of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fuzz.known import explain
from fuzz.triage import Hooks
from repro.cases.case import Case, Setup, Target
from repro.ledger.explain import Explained, Mended
from repro.shrinking.first_divergence import FirstDivergence
from repro.traces.finding import Status, Verdict
from repro.traces.trace import End, Termination, Trace
from tests.builders.sample_rows import CASE

TARGET, MENDED = Target("0.5.13", "emulated"), Target("/mended", "emulated")
STALE = Verdict(oracle="slot0_padding", status=Status.FAIL, where="padded rows of a")
HERE, THERE = (Trace(ended=End(how=Termination.DONE), facts={"where": where}) for where in ("here", "mended"))


class MendedWorker:
    """Runs cases where known issues are mended, and keeps which setups it was to expect."""

    def __init__(self) -> None:
        self.expected: list[Setup] = []

    def run(self, case: Case) -> Trace:
        return THERE

    def run_fresh(self, case: Case) -> Trace:
        return THERE

    def expect(self, setups: Any) -> None:
        self.expected += setups


def hooks_of_the_target() -> Hooks:
    def untouched(*arguments: object) -> Any:
        pytest.fail("the target as it is was asked")

    return Hooks(
        run=untouched,
        run_fresh=untouched,
        judge=lambda case, trace: (STALE,),
        overall=lambda verdicts: Status.FAIL,
        keep=lambda finding: "a.json",
        tell=lambda progress: None,
        clock=lambda: 0.0,
        send=untouched,
    )


def known_of(explained: Explained, worker: MendedWorker) -> Any:
    def worker_on(target: Target) -> MendedWorker:
        assert target == MENDED
        return worker

    def locate(on: Any, case: Case, verdict: Verdict) -> FirstDivergence:
        assert on is worker and verdict == STALE
        return FirstDivergence()

    explainer: Any = SimpleNamespace(explain=lambda case, target, failures: explained)
    return explain(explainer, worker_on, locate, TARGET, hooks_of_the_target(), CASE, [STALE])


@pytest.mark.parametrize(
    "explained",
    [
        Explained(mended=Mended(target=MENDED, names=("#1",))),
        Explained(left=(STALE,), mended=Mended(target=MENDED, names=("#1",)), doubt="it could not be run"),
        Explained(left=(STALE,)),
    ],
    ids=["nothing left", "a doubt", "nothing mends it"],
)
def test_a_failure_is_triaged_as_it_was_seen(explained: Explained) -> None:
    known = known_of(explained, MendedWorker())
    assert (known.left, known.hooks) == (explained.left, None)


def test_what_is_left_is_triaged_where_the_rest_is_mended() -> None:
    worker = MendedWorker()
    known = known_of(Explained(left=(STALE,), mended=Mended(target=MENDED, names=("#1",))), worker)
    assert known.left == (STALE,) and known.hooks is not None
    assert known.hooks.run(CASE) is known.hooks.run_fresh(CASE) is THERE
    known.hooks.expect([CASE.setup])
    assert worker.expected == [CASE.setup]
    # Cases sent ahead would be run on the target as it is.
    known.hooks.send(CASE)
    assert known.hooks.locate is not None and known.hooks.locate(CASE, STALE) == FirstDivergence()
    assert known.hooks.keep is not None and known.hooks.judge(CASE, HERE) == (STALE,)
