"""Rounds in which weights are updated while a scheduler serves: texts behind an update are those of the new weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles import logits, progress, text
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Request, Step, Target, problems
from repro.cases.release_list import NEWEST
from repro.cases.updates import UPDATE, version_of
from repro.traces.finding import Status
from repro.traces.trace import Trace
from runners.processes.pool import Pool
from tests.builders.only_verdict import only, wheres
from tests.builders.planted import planted
from tests.runners.releases.test_round import CHAIN, SMALL, STEPS, TREE, served

TARGET = Target(NEWEST, "emulated")
LATER = Request(slot=1, seq_len=9, data=1, further=9)
# A prompt comes before an update, right behind it, later, and when the first weights are there again.
UPDATING = (
    STEPS[0],
    Step(requests=(LATER, replace(LATER, slot=2, data=5)), wait=1, happens=UPDATE),
    Step(requests=(LATER,), wait=2),
    Step(requests=(LATER,), wait=1, happens=UPDATE),
)
SETUPS = {
    "a chain": CHAIN,
    "a tree, its graphs' results a round late, and prompts that begin alike": replace(TREE, overlap=True, radix=True),
    "another draft model": replace(CHAIN, algorithm="EAGLE3", sampled=True),
    "a table": replace(CHAIN, algorithm="NGRAM", num_steps=1),
    "half precision": replace(CHAIN, dtype="float16", page_size=4, chunk=8),
}
UPDATER = "sglang/srt/model_executor/model_runner_components/weight_updater.py"
MANAGER = "sglang/srt/managers/scheduler_components/weight_updater.py"
LOADS = ("WeightUpdater.update_weights_from_tensor", "self.get_model().load_weights(named_tensors)")
DRAFTED = (logits.ORACLE, logits.DRAFTED)
# Changes of the newest release, and what each is seen by.
PLANTS = {
    "parameters get other memory, which graphs do not read": (
        UPDATER,
        *LOADS,
        "[setattr(each, 'data', each.data.clone()) for each in self.get_model().parameters()], " + LOADS[1],
        (text.ORACLE, text.TOKEN),
    ),
    "the draft is not updated": (
        MANAGER,
        "SchedulerWeightUpdaterManager._select_runners",
        '"draft" in',
        "False and",
        DRAFTED,
    ),
    "the draft has a copy of the target's embeddings": (
        "sglang/srt/speculative/eagle_worker_v2.py",
        "EagleDraftWorker.init_lm_head",
        "# Share the embedding and lm_head",
        "embed = type(embed)(embed.data.clone(), requires_grad=False)",
        DRAFTED,
    ),
    "the cache is not flushed": (
        MANAGER,
        "SchedulerWeightUpdaterManager.flush_cache_after_weight_update",
        "recv_req.flush_cache",
        "False",
        (text.ORACLE, text.TOKEN),
    ),
    "an update is refused": (
        MANAGER,
        "SchedulerWeightUpdaterManager.update_weights_from_tensor",
        "if self._session is None",
        "if True",
        (progress.ORACLE, progress.REFUSED),
    ),
}


def test_only_setups_whose_weights_are_known_may_have_one() -> None:
    case = Case(setup=CHAIN, steps=UPDATING)
    assert problems(case) == []
    assert [version_of(UPDATING, number) for number in range(4)] == [0, 1, 1, 0]
    refused: dict[str, dict[str, Any]] = {
        "with adapters": {"enable_lora": True},
        "beside another rank": {"tp_size": 2, "vocab_size": 256},
        "where a draft has embeddings of its own": {"nan_logits": "draft"},
    }
    for words, fields in refused.items():
        assert any(
            f"weights are not updated {words}" in each
            for each in problems(replace(case, setup=replace(CHAIN, **fields)))
        )


def test_a_refused_update_is_a_failure() -> None:
    done = served(**{"served.update": [True]})
    assert only(progress.judge, SMALL, done).status is Status.PASS
    refused = replace(served(**{"served.update": [False]}), facts={"update refused in step 0": "no session is open"})
    verdict = only(progress.judge, SMALL, refused)
    assert (verdict.status, verdict.where) == (Status.FAIL, progress.REFUSED)
    assert "no session is open" in verdict.detail


@pytest.mark.emulated
@pytest.mark.parametrize("name", SETUPS)
def test_texts_behind_an_update_are_those_of_other_weights(name: str, newest: Pool) -> None:
    trace = newest.run(case := Case(setup=SETUPS[name], steps=UPDATING))
    verdicts = judge_all(case, trace)
    assert overall(verdicts) is Status.PASS, [str(v) for v in verdicts if v.status is not Status.PASS]
    first, second, third, last = (text_of(trace, step) for step in range(4))
    assert second == third != last == first


def text_of(trace: Trace, step: int) -> list[int]:
    """The text of the step's first request."""
    (tokens,) = (each.array for each in trace.seen if (each.step, each.path, each.name) == (step, "served", "tokens"))
    return [int(token) for token in np.asarray(tokens)[0]][: 1 + LATER.further]


@pytest.mark.emulated
def test_a_case_begins_with_the_first_weights(newest: Pool) -> None:
    """The case before it ends with the weights of an update."""
    setup = replace(CHAIN, disagreement=20)
    plain, updated = Case(setup=setup, steps=STEPS), Case(setup=setup, steps=UPDATING[:3])
    alone = newest.run(plain)
    assert overall(judge_all(updated, newest.run(updated))) is Status.PASS
    again = newest.run(plain)
    assert overall(judge_all(plain, again)) is Status.PASS
    assert text_of(again, 0) == text_of(alone, 0)


@pytest.mark.emulated
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str, newest: Pool) -> None:
    file, function, old, new, (oracle, where) = PLANTS[name]
    newest.change(planted(TARGET, file, function, old, new))
    case = Case(setup=replace(CHAIN, radix=True), steps=UPDATING)
    seen = wheres(judge_all(case, newest.run(case)))
    assert where in seen.get(oracle, ()), seen
