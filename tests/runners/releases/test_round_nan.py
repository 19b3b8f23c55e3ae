"""Rounds beside requests whose logits are not numbers, on the newest release: other texts are the target's, and so is
that of a request whose draft model alone gives none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles import kv_rows, logits, text
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Setup, problems
from repro.cases.release_list import NEWEST
from repro.cases.rows.requests import OF_DRAFT, OF_TARGET, lacks_numbers
from repro.traces.finding import Status
from runners.processes.pool import Pool
from runners.releases.options import nan_logits
from tests.builders.only_verdict import only
from tests.builders.tiers import few
from tests.runners.releases.test_round import CHAIN, FIRST, HAPPENING, SECOND, SMALL, STEPS, TREE, served

SETUPS = {
    "a chain": replace(CHAIN, nan_logits=OF_TARGET),
    "a chain whose draft alone has none": replace(CHAIN, nan_logits=OF_DRAFT, radix=True, overlap=True),
    "random drafts": replace(CHAIN, nan_logits=OF_DRAFT, rejection=True),
    "a tree": replace(TREE, nan_logits=OF_DRAFT),
    "requests that sample": replace(CHAIN, nan_logits=OF_TARGET, sampled=True, sanitizes=True),
    "recurrent states": replace(
        CHAIN,
        nan_logits=OF_TARGET,
        family="qwen3_next",
        algorithm="NEXTN",
        dtype="float16",
        hidden_size=64,
        head_dim=32,
    ),
    "a table": replace(TREE, nan_logits=OF_TARGET, algorithm="NGRAM", num_steps=1),
}


def test_every_other_request_lacks_numbers() -> None:
    setup = replace(CHAIN, nan_logits=OF_TARGET)
    assert [[lacks_numbers(setup, step, row) for row in range(3)] for step in range(2)] == [
        [False, True, False],
        [True, False, True],
    ]
    assert not lacks_numbers(CHAIN, 0, 1)


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({}, set(range(1, 6))),
        ({"nan_logits": OF_DRAFT}, set(range(1, 6))),
        ({"algorithm": "NGRAM", "num_steps": 1}, {0}),
        ({"radix": True}, {0}),
        ({"radix": True, "nan_logits": OF_DRAFT}, {1}),
    ],
)
def test_others_are_given_nothing_before_the_token(changes: dict[str, Any], places: set[int]) -> None:
    setup = replace(CHAIN, **{"nan_logits": OF_TARGET} | changes)
    lacking = [place for place in range(8) if place % 2]
    prompts = [np.arange(1, 7) for _ in range(16)]
    for data, prompt in enumerate(prompts):
        nan_logits.put_into(prompt, setup, 0, lacking[data % 4], data)
    assert {prompt.tolist().index(nan_logits.token_of(setup)) for prompt in prompts} == places
    lone = np.arange(1, 2)
    nan_logits.put_into(lone, setup, 0, 1, 0)
    assert lone.tolist() == [nan_logits.token_of(setup)]


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"sampled": True}, "PyTorch samples from no probabilities"),
        ({"sampled": True, "sanitizes": True}, ""),
        ({"rejection": True, "sanitizes": True}, "random drafts draw other numbers"),
        ({"nan_logits": OF_DRAFT, "algorithm": "NGRAM", "num_steps": 1}, "no embeddings of their own"),
    ],
)
def test_some_setups_cannot_lack_numbers(changes: dict[str, object], refusal: str) -> None:
    changed: Setup = replace(CHAIN, **{"nan_logits": OF_TARGET} | changes)  # type: ignore[arg-type]  # by name
    found_problems = problems(replace(SMALL, setup=changed))
    assert refusal in " ".join(found_problems) and bool(found_problems) is bool(refusal)


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", few(SETUPS, 1))
def test_other_texts_are_the_targets(name: str, newest: Pool) -> None:
    steps = (
        tuple(replace(step, requests=step.requests[:1]) for step in HAPPENING) if SETUPS[name].rejection else HAPPENING
    )
    case = Case(setup=SETUPS[name], steps=steps)
    trace = newest.run(case)
    verdicts = judge_all(case, trace)
    assert overall(verdicts) is Status.PASS, verdicts
    without = np.concatenate([seen.array for seen in trace.seen if seen.name == "without_numbers"])
    assert without.any() is np.bool_(SETUPS[name].nan_logits == OF_TARGET)
    counts = np.concatenate([seen.array for seen in trace.seen if seen.name == "not_numbers"])
    assert (counts > 0).any() == (SETUPS[name].nan_logits == OF_TARGET and not SETUPS[name].sanitizes)


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_no_rank_prefers_a_token_to_those_that_are_not_numbers(newest: Pool) -> None:
    setup = replace(SETUPS["a chain"], sanitizes=True, tp_size=2, vocab_size=256, num_heads=2, num_kv_heads=2)
    case = Case(setup=setup, steps=STEPS)
    trace = newest.run(case)
    verdicts = judge_all(case, trace)
    assert overall(verdicts) is Status.PASS, verdicts
    assert any(seen.array.any() for seen in trace.seen if seen.name == "without_numbers")


@pytest.mark.parametrize(
    ("token", "ranks", "where"),
    [
        (SECOND, 1, ""),
        (CHAIN.vocab_size, 1, text.BEYOND),
        (CHAIN.vocab_size - 1, 2, ""),
        (CHAIN.vocab_size, 2, text.BEYOND),
    ],
)
def test_a_text_without_right_tokens_is_of_the_vocabulary(token: int, ranks: int, where: str) -> None:
    arrays = {"tokens": [[FIRST, token, 3]], "best": [[-1, -1, -1]], "without_numbers": [True]}
    trace = served(**{f"served.{name}": values for name, values in arrays.items()})
    case = replace(SMALL, setup=replace(CHAIN, tp_size=ranks))
    assert only(text.judge, case, trace).where == (where or "no text")


@pytest.mark.parametrize(("count", "where"), [(0, ""), (3, logits.UNSANITIZED)])
def test_sanitized_logits_are_numbers(count: int, where: str) -> None:
    case = replace(SMALL, setup=replace(CHAIN, sanitizes=True))
    trace = served(**{"served.not_numbers": [count], "served.without_numbers": [False]})
    assert only(logits.judge, case, trace).where == where


def test_draft_rows_of_a_request_without_numbers_are_not_judged() -> None:
    rounds = {"requests": [0], "new_seq_lens": [3], "draft_k0": [[1.0, 2.0, 3.0]], "target_k0": [[1.0, 2.0, 3.0]]}
    afresh = {"requests": [0], "lengths": [4], "cached": [0], "draft_k0": [[1.0, np.nan, 3.0, 0.0]]}
    afresh |= {"target_k0": [[1.0, 2.0, 3.0, 0.0]], "lacking": [True]}
    arrays = {f"round_graph.{name}": values for name, values in rounds.items()}
    trace = served(**arrays)
    seen = [replace(each, step=0) for each in trace.seen]
    extra = served(**{f"afresh.{name}": values for name, values in afresh.items()}).seen
    trace = replace(trace, seen=(*seen, *(replace(each, step=-1) for each in extra if each.path == "afresh")))
    assert {verdict.status for verdict in kv_rows.judge(SMALL, trace)} == {Status.PASS}
