"""Drafts of rounds are those of a float64 pass of the draft model, whichever algorithm drafts, and not where a bug is
planted that graphs and passes without them have alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from oracles import logits, text
from oracles.catalogue import judge_all
from repro.cases.case import Case
from repro.cases.families import GDN
from repro.cases.release_list import NEWEST
from repro.traces.finding import Status
from repro.traces.trace import Array, Trace
from runners.processes.pool import Pool
from runners.releases.reference.drafts import Branching, Drafted, Layered
from runners.releases.reference.llama import Attend, Result, Tokens
from runners.releases.reference.rounding import Rounding
from tests.builders.only_verdict import only
from tests.runners.releases.test_round import CHAIN, HAPPENING, SMALL, STEPS, TREE, apart, served
from tests.runners.releases.test_round_layers import LAYERS
from tests.runners.releases.test_round_plants import Plant, assert_seen

DRAFTED = ((logits.ORACLE, logits.DRAFTED),)
WORKER, UTILS = "sglang/srt/speculative/eagle_worker_v2.py", "sglang/srt/speculative/spec_utils.py"
MOVED = replace(CHAIN, disagreement=30)
SETUPS = {
    "a chain": replace(MOVED, radix=True),
    "a tree": replace(TREE, disagreement=100),
    "EAGLE3, a tree": replace(TREE, algorithm="EAGLE3", disagreement=30, vocab_size=200),
    "STANDALONE, a tree": replace(TREE, algorithm="STANDALONE", disagreement=30),
    "NEXTN, a chain": replace(MOVED, algorithm="NEXTN"),
    "drawn at random, as cold as requests": replace(MOVED, rejection=True),
    "sliding layers, chunks": replace(MOVED, window=7, swa=True, chunk=16),
    "both numbers of steps": replace(MOVED, adaptive=1),
    "Qwen3-Next, a tree": replace(TREE, family=GDN, dtype="float16", disagreement=30),
    "a layer for each draft": replace(LAYERS, radix=True, page_size=4),
    "a tree in half precision": replace(TREE, dtype="float16", head_dim=64, backend="flashinfer", disagreement=30),
}


def _drafts(trace: Trace) -> list[Array]:
    return [seen.array for seen in trace.seen if (seen.path, seen.name) == ("served", "drafts")]


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", SETUPS)
def test_drafts_are_the_models(name: str, newest: Pool) -> None:
    setup = SETUPS[name]
    case = Case(setup=setup, steps=HAPPENING if setup.radix else apart(STEPS) if setup.rejection else STEPS)
    trace = newest.run(case)
    assert only(logits.judge, case, trace).status is Status.PASS, judge_all(case, trace)
    known = sum(int((~np.isnan(each)).sum()) for each in _drafts(trace))
    assert known > 50, "hardly any draft was judged"


# How likely each token is behind each other, in the mind of a draft model of five.
MIND = [
    [0.10, 0.50, 0.30, 0.06, 0.04],
    [0.04, 0.06, 0.20, 0.40, 0.30],
    [0.50, 0.05, 0.05, 0.10, 0.30],
    [0.30, 0.10, 0.40, 0.05, 0.15],
    [0.20, 0.20, 0.20, 0.30, 0.10],
]


def _of_mind(by: Rounding, tokens: Tokens, attend: Attend) -> Result:
    assert tokens.hidden is not None
    return by.rounded(by.exact(torch.tensor(MIND, dtype=torch.float64).log()[tokens.ids])), tokens.hidden


def _behind(topk: int, steps: int, tokens: Sequence[int], parents: Sequence[int]) -> list[float]:
    """Drafts behind the text 4, 0, of which the first is the root's."""
    drafter = Branching(model=_of_mind, topk=topk, steps=steps, named=torch.arange(5))
    by = Rounding(torch.float32, on_gpu=False, seed=1, samples=2)
    drafted = Drafted(start=1, tokens=(0, *tokens), parents=(-1, *parents))
    beyond = replace(drafted, start=2)  # than what is known of the text
    apart, noise = drafter.behind(by, np.array([4, 0]), torch.zeros(3, 1, 1).double(), [drafted, beyond])
    assert 0.0 < noise < 1e-6
    return [round(math.exp(-each), 6) for each in apart]


@pytest.mark.parametrize(
    ("tokens", "shares"),
    [
        ((1, 3, 2), [1, 1, 1]),
        ((2, 0, 1), [0.6, 1, 1]),  # a wrong token, and what is right behind it
        ((1, 3, 0), [1, 1, 0.75]),
        ((1, 9, 1), [1, 0, 1]),  # goes on as 0
        ((1, -1, 1), [1, 0, 1]),
    ],
)
def test_a_chain_is_judged_behind_its_own_tokens(tokens: Sequence[int], shares: list[float]) -> None:
    assert _behind(1, 0, tokens, (0, 1, 2)) == shares
    assert _behind(1, 0, tokens, (0, 1, -1))[2] == 0


@pytest.mark.parametrize(
    ("tokens", "parents", "shares"),
    [
        # Behind 0 come 1 (.5) and 2 (.3); then 3 (.2), 4 and 0 (.15); 3 goes on with 2 (.08) and 0.
        ((1, 2, 3), (0, 0, 1), [1, 1, 1]),
        ((1, 2, 4), (0, 0, 1), [1, 1, 0.75]),  # less likely than one that is left out
        ((1, 3, 4), (0, 1, 1), [1, 1, 0.75]),
        ((1, 2, 1), (0, 0, 1), [1, 1, 0.15]),
        ((1, 2, 2), (0, 0, 0), [1, 1, 0]),  # twice
        ((1, 2, 3), (0, 0, -1), [1, 1, 0.4]),  # for 1, which would be as likely with a share of 1
        ((1, 2, 7), (0, 0, 1), [1, 1, 0]),
        ((1, 3, 2), (0, 0, 2), [1, 0.2, 0.2]),  # behind a token that is not gone over,
    ],
)
def test_a_tree_has_the_likeliest(tokens: Sequence[int], parents: Sequence[int], shares: list[float]) -> None:
    assert _behind(2, 2, tokens, parents) == shares


def test_what_hangs_on_a_tie_is_not_known() -> None:
    # Of the tokens of the second step, 4 behind 1 and 0 behind 2 are as likely: which goes on in the second branch?
    assert math.isnan(_behind(2, 3, (1, 2, 3, 4, 2), (0, 0, 1, 1, 3))[-1])


PLANTS = {
    "tokens are shifted the other way in the draft's prefill": Plant(
        file=WORKER,
        function="EagleDraftWorker._draft_extend_for_prefill",
        old="torch.cat((input_ids[1:], tail_tokens[i].reshape(1)))",
        new="torch.cat((input_ids[:-1], tail_tokens[i].reshape(1)))",
        setup=MOVED,
        seen_by=DRAFTED,
    ),
    "hidden states of a prefill are those of another token": Plant(
        file=WORKER,
        function="EagleDraftWorker._draft_extend_for_prefill",
        old="hidden_states=target_hidden_states,",
        new="hidden_states=target_hidden_states.roll(1, 0),",
        setup=MOVED,
        seen_by=DRAFTED,
    ),
    "hidden states behind a verify are those of another token": Plant(
        file=WORKER,
        function="EagleDraftWorker._draft_extend_for_decode",
        old="hidden_states=batch_result.logits_output.hidden_states,",
        new="hidden_states=batch_result.logits_output.hidden_states.roll(1, 0),",
        setup=MOVED,
        seen_by=DRAFTED,
    ),
    "a draft step is at the position behind its own": Plant(
        file=WORKER,
        function="EagleDraftWorker.draft_forward",
        old="forward_batch.input_ids = input_ids\n",
        new="forward_batch.input_ids = input_ids\n                forward_batch.positions.add_(int(i == 0))\n",
        setup=MOVED,
        seen_by=DRAFTED,
    ),
    "a step begins with the hidden states of the step before": Plant(
        file=WORKER,
        function="EagleDraftWorker.draft_forward",
        old="hidden_states = logits_output.hidden_states\n",
        new="pass\n",
        setup=MOVED,
        seen_by=DRAFTED,
    ),
    "a branch goes on from another one's hidden states": Plant(
        file=UTILS,
        function="_select_top_k_tokens_later",
        old="hidden_states = hidden_states[selected_input_index]",
        new="pass",
        setup=replace(TREE, disagreement=100),
        seen_by=DRAFTED,
    ),
    "branches are chosen by their last token alone": Plant(
        file=UTILS,
        function="_select_top_k_tokens_later",
        old="expand_scores = scores.unsqueeze(2) * topk_p.view(-1, topk, topk)",
        new="expand_scores = topk_p.view(-1, topk, topk)",
        setup=TREE,
        seen_by=DRAFTED,
    ),
}


@pytest.mark.parametrize(
    ("drafts", "shares"),
    [
        # Behind 1, 3 (.4) is the likeliest, and behind 3 is 2 (.4); then behind 0 is 1, and behind 1 is 3.
        ((3, 2, 1, 3), [1, 1, 1, 1]),
        ((4, 3, 1, 3), [0.75, 1, 1, 1]),
        ((3, 0, 1, 9), [1, 0.75, 1, 0]),
    ],
)
def test_each_layer_is_judged_behind_the_drafts_of_those_before(drafts: Sequence[int], shares: list[float]) -> None:
    chains = [Drafted(start=start, tokens=tokens, parents=(-1, 0, 1)) for start, tokens in _chains(drafts)]
    by = Rounding(torch.float32, on_gpu=False, seed=1, samples=2)
    drafter = Layered(models=(_of_mind, _of_mind))
    apart, _ = drafter.behind(by, np.array([4, 1, 2, 0, 1]), torch.zeros(3, 4, 1).double(), chains)
    assert [round(math.exp(-apart[place]), 6) for place in (0, 2, 1, 3)] == shares


def _chains(drafts: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    return [(1, (1, *drafts[:2])), (3, (0, *drafts[2:]))]


# Seen by the same comparison as the other ones.
SEEN_ALIKE = PLANTS.keys() - {"a draft step is at the position behind its own"}


@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if name in SEEN_ALIKE else ()) for name in PLANTS]
)
def test_a_planted_bug_of_drafts_is_seen(name: str, newest: Pool) -> None:
    assert_seen(PLANTS[name], newest)


@pytest.mark.parametrize(
    ("ended", "count", "status"),
    [(text.FINISHED, 1, Status.FAIL), (text.ABORTED, 2, Status.FAIL), (text.ABORTED, 1, Status.UNKNOWN)],
)
def test_drafts_behind_another_prompt_are_not_judged(ended: int, count: int, status: Status) -> None:
    """sglang prefills another one for a request that is aborted while its grammar is compiled."""
    values: dict[str, object] = {"tokens": [[7] * count], "best": [[7] * count], "off": [[np.nan] * count]}
    values |= {"ended": [ended], "drafts": [[3.2]], "drafts_noise": [1e-3]}
    trace = served(**{f"served.{name}": rows for name, rows in values.items()})
    assert only(logits.judge, SMALL, trace).status is status
