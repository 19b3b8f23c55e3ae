"""Rounds with requests that bring a bias of logits or stop tokens, on the newest release: texts are the target's with
that bias, and end with the first stop token, also in the middle of accepted drafts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles import text
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Request, Step, Target, problems
from repro.cases.release_list import NEWEST
from repro.cases.rows.requests import BIAS, OF_TARGET, biases, stop_tokens, text_end
from repro.cases.runner_facts import MARKOV
from repro.traces.finding import Status
from runners.processes.pool import Pool
from tests.builders.planted import planted
from tests.builders.tiers import few
from tests.runners.releases.test_round import CHAIN, HAPPENING, TREE
from tests.runners.releases.test_round_ranks import RANKED

TARGET = Target(NEWEST, "emulated")
ASKED: dict[str, Any] = {"logit_bias": True, "stop_token_ids": True}
STEPS = (
    Step(
        requests=(
            Request(slot=1, seq_len=9, data=1, further=9),
            Request(slot=2, seq_len=5, data=3, further=19),
            Request(slot=3, seq_len=5, data=3, further=12),
        )
    ),
    Step(requests=(Request(slot=1, seq_len=5, data=2, further=17),), wait=2),
    Step(requests=(Request(slot=1, seq_len=7, data=4, further=11),), wait=1),
)
CHAINED = replace(CHAIN, disagreement=0, overlap=True)
SETUPS = {
    "a chain of accepted drafts": CHAINED,
    "a tree": replace(TREE, logprobs=True),
    "grammars": replace(TREE, grammar=True, overlap=True),
    "a table": replace(TREE, algorithm="NGRAM", num_steps=1, overlap=True),
    "blocks": replace(CHAIN, algorithm="DFLASH", num_steps=1),
    "blocks with a head": replace(CHAIN, algorithm=MARKOV, num_steps=1, overlap=True),
    "a vocabulary that ranks share": replace(
        TREE, tp_size=2, vocab_size=256, num_heads=2, num_kv_heads=2, overlap=True
    ),
    "a group of ranks": RANKED,
    "requests that sample": replace(CHAIN, sampled=True, overlap=True),
}
# Setups whose text of the second request has none of its stop tokens.
WITHOUT_STOP = ("a table", "blocks", "blocks with a head")
# Changes of 0.5.23 that `text` sees.
PLANTS = {
    "a branch has another request's bias": (
        "sglang/srt/speculative/eagle_utils.py",
        "eagle_sample",
        "sampling_info.logit_bias, verify_input.draft_token_num, dim=0",
        "sampling_info.logit_bias.roll(1, 0), verify_input.draft_token_num, dim=0",
    ),
    "a bias stays where the request was": (
        "sglang/srt/sampling/sampling_batch_info.py",
        "SamplingBatchInfo.filter_batch",
        "self.logit_bias[keep_indices_device]",
        "self.logit_bias[: len(keep_indices)]",
    ),
    "accepted drafts behind a stop token stay": (
        "sglang/srt/managers/schedule_batch.py",
        "Req._check_token_based_finish",
        "self.finished_len = matched_pos + 1",
        "self.finished_len = len(self.output_ids)",
    ),
}


def test_a_third_of_requests_has_a_bias_and_another_third_ends_with_a_token() -> None:
    setup = replace(CHAIN, vocab_size=16, **ASKED)
    assert [sorted(biases(setup, 0, row)) for row in range(4)] == [[0, 4, 8, 12], [], [], [1, 5, 9, 13]]
    assert set(biases(setup, 1, 2).values()) == {BIAS}
    assert [sorted(stop_tokens(setup, 0, row)) for row in range(5)] == [[], [7, 15], [], [], [4, 12]]
    assert not biases(CHAIN, 0, 0) and not stop_tokens(CHAIN, 0, 1)
    assert text_end(setup, 0, 1, 8, [1, 7, 15]) == 2
    assert text_end(setup, 0, 1, 8, [1, 2]) == 9
    assert text_end(setup, 0, 0, 8, [1, 7]) == 9
    assert text_end(setup, 0, 1, 1, [1, 2, 3, 7]) == 2


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize(
    ("changes", "refusal"),
    [({"nan_logits": OF_TARGET}, "not numbers"), ({"runner": "verify"}, "has no scheduler")],
)
def test_some_setups_have_no_such_requests(name: str, changes: dict[str, Any], refusal: str) -> None:
    changed = replace(CHAIN, **{name: True} | changes)
    assert any(refusal in problem for problem in problems(Case(setup=changed, steps=STEPS)))


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", few(SETUPS, 1))
def test_texts_have_their_bias_and_end_with_their_token(name: str, newest: Pool) -> None:
    case = Case(setup=replace(SETUPS[name], **ASKED), steps=STEPS)
    assert problems(case) == []
    trace = newest.run(case)
    verdicts = judge_all(case, trace)
    assert overall(verdicts) is Status.PASS, verdicts
    if name in WITHOUT_STOP:
        return
    texts = trace.path(0, "served")["tokens"]
    last = int(np.greater_equal(texts[1], 0).sum()) - 1
    assert last < 19 and int(texts[1, last]) in stop_tokens(case.setup, 0, 1)


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_so_they_do_behind_retraction_abort_and_a_flush(newest: Pool) -> None:
    case = Case(setup=replace(CHAINED, **ASKED, radix=True), steps=HAPPENING)
    failed = {verdict.oracle for verdict in judge_all(case, newest.run(case)) if verdict.status is Status.FAIL}
    assert failed == set()


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str, newest: Pool) -> None:
    case = Case(setup=replace(CHAINED, **ASKED), steps=STEPS)
    newest.change(planted(TARGET, *PLANTS[name]))
    trace = newest.run(case)
    failed = {verdict.oracle for verdict in judge_all(case, trace) if verdict.status is Status.FAIL}
    assert text.ORACLE in failed, (failed, trace.ended)
