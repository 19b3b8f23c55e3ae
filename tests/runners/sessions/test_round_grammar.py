"""Rounds with requests that have a grammar, on the newest release: texts are the target's among the tokens that it
allows, and end where it does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from oracles import order, progress, text
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Request, Step, Target, problems
from repro.cases.release_list import NEWEST
from repro.cases.rows.requests import OF_TARGET, has_grammar, text_tokens
from repro.cases.runner_facts import MARKOV
from repro.traces.finding import Status
from runners.processes.pool import Pool
from tests.builders.planted import planted
from tests.builders.tiers import few
from tests.runners.releases.test_round import CHAIN, HAPPENING, TREE
from tests.runners.releases.test_round_ranks import RANKED

TARGET = Target(NEWEST, "emulated")
STEPS = (
    Step(requests=(Request(slot=1, seq_len=9, data=1, further=9), Request(slot=2, seq_len=5, data=3, further=8))),
    Step(requests=(Request(slot=1, seq_len=5, data=2, further=7),), wait=2),
    Step(requests=(Request(slot=1, seq_len=7, data=4, further=11),), wait=1),
)
SETUPS = {
    "a tree": replace(TREE, overlap=True, logprobs=True),
    "a chain": CHAIN,
    "a table": replace(TREE, algorithm="NGRAM", num_steps=1),
    "a table with sliding slots": replace(TREE, algorithm="NGRAM", num_steps=1, window=64, swa=True, overlap=True),
    "blocks": replace(CHAIN, algorithm="DFLASH", num_steps=1),
    "blocks with a head": replace(CHAIN, algorithm=MARKOV, num_steps=1, overlap=True),
    "a vocabulary that ranks share": replace(
        TREE, tp_size=2, vocab_size=256, num_heads=2, num_kv_heads=2, overlap=True
    ),
    "a group of ranks": RANKED,
    "requests that sample": replace(CHAIN, sampled=True, overlap=True),
    "recurrent states": replace(
        CHAIN, family="qwen3_next", algorithm="NEXTN", dtype="float16", hidden_size=64, head_dim=32, overlap=True
    ),
}
SPEC_UTILS = "sglang/srt/speculative/spec_utils.py"
# Changes of 0.5.23, and the oracle that sees each.
PLANTS = {
    "a grammar is behind by a round": (SPEC_UTILS, "build_grammar_vocab_mask", "barrier()", "pass", text.ORACLE),
    "a branch leaves its tokens to the next one": (
        SPEC_UTILS,
        "traverse_tree",
        "grammar.rollback(1)",
        "grammar.rollback(1 - curr % 2)",
        progress.ORACLE,
    ),
    "a tree is read before its copy has come": (
        SPEC_UTILS,
        "GrammarTree.resolve",
        "self._done.synchronize()",
        "pass",
        order.ORACLE,
    ),
}


def test_every_other_request_has_a_grammar_and_half_of_them_end() -> None:
    setup = replace(CHAIN, grammar=True)
    assert [[has_grammar(setup, step, row) for row in range(3)] for step in range(2)] == [
        [True, False, True],
        [False, True, False],
    ]
    assert [text_tokens(setup, 0, row, 8) for row in range(3)] == [5, 9, 9]
    assert text_tokens(CHAIN, 0, 0, 8) == 9


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"nan_logits": OF_TARGET}, "leaves no right token"),
        ({"runner": "verify"}, "has no scheduler"),
    ],
)
def test_some_setups_have_no_grammar(changes: dict[str, Any], refusal: str) -> None:
    changed = replace(CHAIN, **{"grammar": True} | changes)
    assert any(refusal in problem for problem in problems(Case(setup=changed, steps=STEPS)))


@pytest.mark.emulated
def test_bits_are_those_of_allowed_tokens() -> None:
    from runners.releases.options.grammar import Matcher, allowed

    matcher, mask, text = Matcher(4), torch.full((2, 4), -1, dtype=torch.int32), [5, 9, 70]
    assert all(matcher.accept_token(token) for token in text)
    matcher.fill_next_token_bitmask(mask, 1)
    bits = [(int(mask[1, token // 32]) >> token % 32) & 1 for token in range(128)]
    assert bits == allowed(128, text).int().tolist() and 0 < sum(bits) < 128
    assert (mask[0] == -1).all()
    assert not matcher.accept_token(bits.index(0))
    matcher.rollback(1)
    assert all(matcher.accept_token(token) for token in text[2:]) and not matcher.is_terminated()
    assert matcher.accept_token(bits.index(1)) and matcher.is_terminated()


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", few(SETUPS, 1))
def test_texts_are_the_targets_among_what_is_allowed(name: str, newest: Pool) -> None:
    case = Case(setup=replace(SETUPS[name], grammar=True), steps=STEPS)
    assert problems(case) == []
    trace = newest.run(case)
    verdicts = judge_all(case, trace)
    assert overall(verdicts) is Status.PASS, verdicts
    lengths = [np.greater_equal(trace.path(step, "served")["tokens"], 0).sum(axis=1).tolist() for step in range(3)]
    assert lengths == [[5, 9], [8], [12]]


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_so_they_are_behind_retraction_abort_and_a_flush(newest: Pool) -> None:
    case = Case(setup=replace(CHAIN, grammar=True, overlap=True, radix=True), steps=HAPPENING)
    failed = {verdict.oracle for verdict in judge_all(case, newest.run(case)) if verdict.status is Status.FAIL}
    assert failed == set()


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str, newest: Pool) -> None:
    file, function, old, new, oracle = PLANTS[name]
    case = Case(setup=replace(TREE, grammar=True, overlap=True, disagreement=30), steps=STEPS)
    newest.change(planted(TARGET, file, function, old, new))
    trace = newest.run(case)
    failed = {verdict.oracle for verdict in judge_all(case, trace) if verdict.status is Status.FAIL}
    assert oracle in failed, (failed, trace.ended)
