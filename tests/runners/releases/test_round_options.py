"""Options of rounds that a target, its cache or its requests have, on the newest release: texts, log-probabilities and
hidden states are the target's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles import kv_rows, leaks, logits
from oracles.catalogue import judge_all, overall
from repro.cases import codec
from repro.cases.case import Case, Request, Setup, Step, Target, problems
from repro.cases.release_list import NEWEST
from repro.cases.rows.serving import FULL, NOISE, samples
from repro.traces.finding import Status
from repro.traces.paths import Recorded
from repro.traces.trace import Trace
from runners.processes.pool import Pool
from tests.builders.accepted import most_accepted
from tests.builders.only_verdict import only
from tests.builders.project import DATA
from tests.builders.tiers import few
from tests.runners.releases.test_round import CHAIN, SMALL, TREE, apart, recorded, served

TARGET = Target(NEWEST, "emulated")
STEPS = (
    Step(requests=(Request(slot=1, seq_len=19, data=1, further=20), Request(slot=2, seq_len=3, data=2, further=24))),
    # An iteration that prefills retracts nothing.
    Step(requests=(), wait=7, happens="retract"),
    Step(requests=(Request(slot=1, seq_len=5, data=3, further=4),), wait=1),
)
SETUPS = {
    "prefill graphs, and prompts beyond the largest of them": replace(
        CHAIN, prefill_max_bs=16, radix=True, disagreement=30, logprobs=True, logprob_start_len=0
    ),
    "a window, and layers with KV slots of their own": replace(
        CHAIN, window=7, swa=True, chunk=8, overlap=True, logprobs=True
    ),
    "full prefill graphs, with padded requests and prefixes": replace(
        CHAIN,
        backend="fa3",
        dtype="float16",
        head_dim=64,
        prefill_max_bs=64,
        prefill_backend=FULL,
        chunk=8,
        disagreement=30,
    ),
    "requests that sample, and hidden states": replace(
        TREE, sampled=True, returns_hidden=True, logprobs=True, overlap=True, disagreement=30
    ),
    "random drafts": replace(CHAIN, rejection=True, returns_hidden=True, disagreement=30),
    "a worker that changes its number of draft steps": replace(CHAIN, adaptive=1, overlap=True, disagreement=30),
    "keys and values of eight bits": replace(TREE, kv_dtype="fp8_e4m3", head_dim=32, disagreement=30),
}


@pytest.mark.parametrize(
    ("setup", "sampling"),
    [
        (CHAIN, []),
        (replace(CHAIN, rejection=True), [0, 2]),
        (replace(CHAIN, sampled=True), [0, 2]),
        (replace(CHAIN, rejection=True, logprobs=True), [1, 3]),
    ],
)
def test_every_other_request_samples(setup: Setup, sampling: list[int]) -> None:
    assert [row for row in range(4) if samples(setup, row)] == sampling


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", few(SETUPS, 1))
def test_texts_are_the_targets(name: str, newest: Pool) -> None:
    case = Case(setup=SETUPS[name], steps=apart(STEPS) if SETUPS[name].rejection else STEPS)
    trace = newest.run(case)
    assert overall(judge_all(case, trace)) is Status.PASS, judge_all(case, trace)
    assert int(trace.facts["retractions"]) > 0
    assert most_accepted(trace) > 1, "no draft was accepted"
    assert ("of prefill for" in trace.facts["launches"]) is bool(case.setup.prefill_max_bs)
    launched = {count.split()[2] for count in trace.facts["launches"].split(", ")}
    assert ({"draft@3", "verify@1", "verify@3", "draft_extend@1", "draft_extend@3"} <= launched) is bool(
        case.setup.adaptive
    ), launched
    names = {seen.name for seen in trace.seen if seen.path == "holdings"}
    assert (f"{leaks.FREE}{leaks.SLIDING}" in names) is case.setup.swa


def returned(values: list[float]) -> tuple[Case, Trace]:
    """A record in which a request of three tokens is returned these log-probabilities; -1, -2 and -3 are right."""
    trace = served(**{"served.returned": [values], "served.likely": [[-1.0, -2.0, -3.0]]})
    return replace(SMALL, setup=replace(CHAIN, logprobs=True)), trace


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ([-1.0, -2.00001, -3.0], ""),
        ([-1.0, -2.1, -3.0], logits.RETURNED),
        ([-1.0, -2.0, np.nan], logits.COUNT),
        ([-1.0, -2.0, -3.0, -4.0], logits.COUNT),
    ],
)
def test_log_probabilities_are_those_of_the_text(values: list[float], where: str) -> None:
    assert only(logits.judge, *returned(values)).where == where


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ([np.nan, -2.00001, -3.0], ""),
        ([np.nan, -2.1, -3.0], logits.PROMPT),
        ([np.nan, -2.0], logits.PROMPT_COUNT),
        ([], logits.PROMPT_COUNT),
        ([np.nan, -2.0, -3.0, -4.0], logits.PROMPT_COUNT),
    ],
)
def test_log_probabilities_are_those_of_the_prompt(values: list[float], where: str) -> None:
    """A prompt of four tokens, asked for from token 1 on, of which sglang returns none."""
    request = Request(slot=1, seq_len=4, data=1, further=2)
    asking = replace(CHAIN, logprobs=True, logprob_start_len=1)
    prompts = {"prompt": [values], "prompt_likely": [[-1.0, -2.0, -3.0]], "prompt_noise": [1e-6]}
    texts = {"returned": [[-1.0, -2.0, -3.0]], "likely": [[-1.0, -2.0, -3.0]]}
    trace = served(**{f"served.{name}": array for name, array in (prompts | texts).items()})
    assert only(logits.judge, Case(setup=asking, steps=(Step(requests=(request,)),)), trace).where == where


@pytest.mark.parametrize(
    ("distances", "where"),
    [
        ([1e-6, 1e-6, 2e-6], ""),
        ([1e-6, 1e-6], logits.STATES_COUNT),
        ([1e-6, np.nan, np.nan], logits.STATES_COUNT),
        ([1e-6, 1e-6, np.inf], logits.STATES),
        ([1e-6, 1.1e-5, 1e-6], logits.STATES),
    ],
)
def test_hidden_states_are_those_of_the_text(distances: list[float], where: str) -> None:
    trace = served(**{"served.states": [distances], "served.states_noise": [1e-6]})
    asking = replace(SMALL, setup=replace(CHAIN, returns_hidden=True))
    assert only(logits.judge, asking, trace).where == where


def test_refusals_of_options() -> None:
    refused: dict[str, Setup] = {
        "no scheduler": replace(CHAIN, runner="draft", logprobs=True),
        "needs heads above": replace(CHAIN, kv_dtype="fp8_e4m3"),
    }
    for words, setup in refused.items():
        assert any(words in text for text in problems(Case(setup=setup, steps=STEPS))), words


@pytest.mark.parametrize(
    ("noise", "status"), [(0.0, Status.FAIL), (0.2, Status.FAIL), (0.3, Status.PASS), (1.0, Status.UNKNOWN)]
)
def test_kv_rows_of_eight_bits_may_lie_as_far_off_as_rounding_moves_them(noise: float, status: Status) -> None:
    """A row 1.5 off, of rows up to 4 whose next number of eight bits is 0.5 away."""
    afresh = {
        "requests": [0],
        "lengths": [4],
        "cached": [0],
        "draft_k0": [[1.0, 2.0, 3.0, 4.0]],
        "noise_draft_k0": [noise],
    }
    graph = {"requests": [0], "new_seq_lens": [4], "draft_k0": [[1.0, 3.5, 3.0, 4.0]]}
    places = {"afresh": afresh, "round_graph": graph}
    values = {f"{path}.{name}": value for path, each in places.items() for name, value in each.items()}
    case = replace(SMALL, setup=replace(CHAIN, kv_dtype="fp8_e4m3"))
    assert only(kv_rows.judge, case, recorded(**values)).status is status


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(
    ("setup", "pool"),
    [
        (replace(CHAIN, disagreement=100), 140),
        (replace(CHAIN, radix=True, overlap=True), 135),
        (replace(TREE, page_size=4, disagreement=100), 200),
    ],
    ids=["chain", "overlap", "tree"],
)
def test_a_full_pool_retracts_of_itself(newest: Pool, setup: Setup, pool: int) -> None:
    requests = tuple(Request(slot=n, seq_len=9 + n, data=n, further=40 - n) for n in (1, 2, 3))
    retractions = {}
    for heeds in (False, True):
        case = Case(setup=replace(setup, pool=pool, heeds_eos=heeds), steps=(Step(requests=requests),))
        trace = newest.run(case)
        assert overall(judge_all(case, trace)) is Status.PASS, judge_all(case, trace)
        retractions[heeds] = int(trace.facts["retractions"])
    assert retractions[True]
    # A round of a tree takes more than sglang counts on.
    assert setup.topk > 1 or not retractions[False]


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_rows_of_a_verify_that_reads_a_rounded_prompt_are_judged_by_that_rounding(newest: Pool) -> None:
    # A prefill takes its own keys unrounded, a verify those of the prompt from the cache.
    case = codec.read(DATA / "round-eight-bits.json").case
    trace = newest.run(case)
    verdicts = judge_all(case, trace)
    assert not any(verdict.status is Status.FAIL for verdict in verdicts), verdicts
    assert any(seen.path == Recorded.AFRESH and seen.name.startswith(NOISE) for seen in trace.seen)
