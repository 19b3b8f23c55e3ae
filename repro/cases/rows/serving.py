"""The options of a setup that is driven at the level of the scheduler: rows of OPTIONS (repro/cases/options.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from repro.cases.families import family_facts
from repro.cases.layout import pool_tokens, row_pages
from repro.cases.option import HARNESS, Need, Option
from repro.cases.rows.adapters import NO_ADAPTERS
from repro.cases.rows.requests import SERVES
from repro.cases.runner_facts import MARKOV, RUNNER_FACTS
from repro.cases.setup import Setup

DISAGREEMENT_MAX = 1000
# How rounds' records name the caches of a target's sliding layers, where these have KV slots of their own.
SLIDING = "target_sliding"
# And how far rounding of a cache to eight bits moves a request's rows.
NOISE = "noise_"
# How they name the states of recurrent layers.
STATE = "state_"
# And the other rank's requests beside a launch.
ELSEWHERE = "elsewhere"
# And whether its batch counts as one of greedy requests alone: to 0.5.23 it does not when those that sampled have left.
GREEDY = "greedy"
# And which of its requests gave back their KV slots of sliding layers before it ran.
FREED = "freed"
# The number of such a request in records of rounds, as what the round gives it is dropped.
GONE = -1
PLAN_STREAM = "SGLANG_ENABLE_OVERLAP_PLAN_STREAM"
# More requests than arrive together.
_TOGETHER = 1000
# Between a runner and the number of draft steps of its graphs, in the names of an adaptive worker's; and that of the
# layer that has a graph of its own.
_AT_STEPS, _OF_LAYER = "@", "#"
# sglang's graphs of prefills: parts between calls of attention, or a batch's whole pass with all requests that it has
# room for; and none.
BREAKABLE, FULL, DISABLED = "breakable", "full", "disabled"
# The names of the graphs that draft a whole block, and of those of a prefill.
BLOCK, PREFILL = "block", "prefill"
# Tokens of the tiles that flashinfer splits prefills into under deterministic inference (scheduler.py, 0.5.23:1754).
_TILE = 4096
# Rounds for which KV slots are taken ahead: of two by every release; one more is to spare.
_AHEAD = 3


def pool_least(setup: Setup) -> int:
    """KV slots, in whole pages, with which a lone request of any length ends. With fewer it is aborted."""
    page = setup.page_size
    if setup.topk > 1 and page > 1:  # each branch on pages of its own
        drafts = setup.topk * -(-(page - 1 + setup.num_steps) // page)
    else:
        drafts = -(-max(setup.topk * setup.num_steps, setup.num_draft_tokens, setup.adaptive + 1) // page) + 1
    return (row_pages(setup) + _AHEAD * drafts) * page


def pool_of(setup: Setup) -> int:
    """KV slots of the pool: those that are named, else twice what all requests need."""
    return setup.pool or max(2 * pool_tokens(setup), pool_least(setup))


def prefill_buckets(setup: Setup) -> list[int]:
    """The sizes of prefill graphs, in tokens, rising; empty without any."""
    most = setup.prefill_max_bs * (setup.prefill_backend != DISABLED)
    return sorted({most, -(-most // 2), -(-most // 4)}) if most else []


def request_number(step: int, row: int) -> int:
    """The number of a request in records of rounds, by its place in the case."""
    return step * _TOGETHER + row


def block_tokens(setup: Setup) -> int:
    """Tokens of a block, the first of which is known."""
    return setup.num_draft_tokens - (setup.algorithm == MARKOV)


def graph_name(runner: str, steps: int) -> str:
    """The name of a runner of an adaptive worker's graphs for so many draft steps."""
    return f"{runner}{_AT_STEPS}{steps}"


def layer_name(runner: str, layer: int) -> str:
    """The name of the graphs of one layer."""
    return f"{runner}{_OF_LAYER}{layer}"


def runner_of(graphs: str) -> str:
    """The runner that graphs of this name are of. A block is drafted by a runner that is captured as a verify's."""
    runner = graphs.partition(_AT_STEPS)[0].partition(_OF_LAYER)[0]
    return "verify" if runner == BLOCK else runner


def launched(setup: Setup, graphs: str) -> Setup:
    """The setup of rounds as one of the runner whose graphs have this name. Windows of rounds are the target's."""
    runner, steps = runner_of(graphs), graphs.partition(_AT_STEPS)[2]
    facts, of_rounds = RUNNER_FACTS[runner], RUNNER_FACTS[setup.runner]
    if steps:
        setup = replace(setup, num_steps=int(steps), num_draft_tokens=int(steps) + 1, adaptive=0)
    is_targets = facts.windowed == of_rounds.windowed or (family_facts(setup).frozen and not facts.windowed)
    windows: dict[str, Any] = {} if is_targets and graphs != BLOCK else {"window": 0, "swa": False}
    if graphs == BLOCK:  # of a Llama, whatever its target is
        windows |= {"family": "", "num_draft_tokens": block_tokens(setup)}
        # A rank drafts by itself (_forward_is_dp_local, 0.5.23 decode_cuda_graph_runner.py:776).
        windows["dp_attention"] = setup.dp_attention and setup.algorithm != MARKOV
    of_requests: dict[str, Any] = {
        "returns_hidden": False,
        "rejection": setup.rejection and facts.rejects,
        "sampled": False,
        "heeds_eos": False,
        "images": False,
        "sanitizes": False,
        "grammar": False,
        "logit_bias": False,
        "stop_token_ids": False,
        "tp_size": 1,
        **NO_ADAPTERS,
    }
    of_rounds_alone = {"overlap": False, "pool": 0, "disagreement": 0, "prefill_max_bs": 0} | of_requests | windows
    of_rounds_alone["prefill_backend"] = BREAKABLE
    turned = setup.mrope or (family_facts(setup).sees and family_facts(setup).own_drafts)
    of_rounds_alone |= {"one_graph": setup.one_graph and facts.layered, "mrope": turned and facts.mrope}
    return replace(setup, runner=runner, **of_rounds_alone)


def samples(setup: Setup, row: int) -> bool:
    """True of a request, by its place in its step, that samples."""
    return (setup.sampled or setup.rejection) and row % 2 == int(setup.logprobs)


def asks_logprobs(setup: Setup, row: int) -> bool:
    """The same of one that asks for log-probabilities. Those of one that samples are of another temperature."""
    return setup.logprobs and row % 2 == 0 and not samples(setup, row)


def prompt_start(setup: Setup, row: int, length: int) -> int:
    """The first token of a prompt of this length from which its request asks for log-probabilities; -1: none."""
    return min(setup.logprob_start_len, length - 1) if asks_logprobs(setup, row) else -1


def asks_states(setup: Setup, row: int) -> bool:
    """True of a request, by its place in its step, that asks for hidden states."""
    return setup.returns_hidden and row % 2 == 0


def brings_image(setup: Setup, row: int) -> bool:
    """True if a request, by its place in its step, brings an image, where its prompt has room for it."""
    return setup.images and row % 2 == 0


ROWS: tuple[Option, ...] = (
    Option(
        field="overlap",
        name="disable_overlap_schedule",
        reversed=True,
        meaning="the event loop processes each round's results before the next round",
        if_set=(SERVES,),
        drawn=(True,),
        later=True,
        words="the overlap schedule",
    ),
    Option(
        field="plan_stream",
        name=PLAN_STREAM,
        part=HARNESS,
        meaning="verify and draft-extend are prepared on a stream of their own",
        if_set=(
            SERVES,
            Need(
                lambda s, r, b: b.plans_ahead,
                f"{PLAN_STREAM} is unsupported on {{s.backend}}: it has no update_verify_buffers_to_fill_after_draft",
            ),
        ),
        drawn=(True,),
        later=True,
        words="a stream for plans",
    ),
    Option(
        field="radix",
        name="disable_radix_cache",
        reversed=True,
        meaning="prompts share no prefix through the radix cache",
        if_set=(SERVES,),
        drawn=(True,),
        later=True,
        words="the radix cache",
    ),
    Option(
        field="chunk",
        name="chunked_prefill_size",
        meaning="prompt tokens that are prefilled at once, in whole pages; 0: all",
        bounds=(0, 1 << 24),
        if_set=(
            SERVES,
            Need(
                lambda s, r, b: s.chunk % s.page_size == 0,
                "chunked_prefill_size {s.chunk} is not a multiple of page_size",
            ),
            Need(
                lambda s, r, b: s.backend != "flashinfer" or not s.deterministic or s.chunk % _TILE == 0,
                f"under deterministic inference chunked_prefill_size over flashinfer is a multiple of {_TILE}",
            ),
        ),
        later=True,
        words="chunks of {0} tokens",
    ),
    Option(
        field="pool",
        name="max_total_tokens",
        meaning="KV slots of the pool; 0: twice the need of all requests",
        bounds=(0, 1 << 24),
        if_set=(
            SERVES,
            Need(
                lambda s, r, b: s.pool >= pool_least(s) and s.pool % s.page_size == 0,
                "max_total_tokens {s.pool} is too small for one request, or not a multiple of page_size",
            ),
        ),
        later=True,
        words="a pool of {0} KV slots",
    ),
    Option(
        field="disagreement",
        name="disagreement",
        part=HARNESS,
        meaning="how often drafts disagree with the target, in hundredths; 0: most drafts are accepted",
        bounds=(0, DISAGREEMENT_MAX),
        if_set=(SERVES,),
        drawn=(10, 30, 100, 300),
        later=True,
        words="drafts that disagree by {0} hundredths",
    ),
    Option(
        field="logprobs",
        name="return_logprob",
        part=HARNESS,
        meaning="every other request of a step, from the first on, asks for the log-probabilities of its tokens",
        if_set=(SERVES,),
        drawn=(True,),
        later=True,
        words="log-probabilities returned",
    ),
    Option(
        field="logprob_start_len",
        name="logprob_start_len",
        part=HARNESS,
        meaning="the first token of a prompt, its last at most, from which such a request asks for log-probabilities "
        "of its prompt, too; -1: of its text alone",
        bounds=(-1, 1 << 24),
        if_set=(
            SERVES,
            Need(lambda s, r, b: s.logprobs, "logprob_start_len without return_logprob asks for nothing"),
        ),
        drawn=(0, 3),
        later=True,
        example={"logprobs": True, "logprob_start_len": 0},
        words="log-probabilities of prompts from token {0} on",
    ),
    Option(
        field="prefill_max_bs",
        name="cuda_graph_max_bs_prefill",
        meaning="the largest graph of a prefill, in tokens, beside one of its half and one of its quarter; 0: no graph",
        bounds=(0, 1 << 12),
        if_set=(
            SERVES,
            Need(lambda s, r, b: not family_facts(s).eager_prefills, "{s.family} models have no prefill graphs here"),
        ),
        drawn=(16, 32),
        later=True,
        words="prefill graphs of up to {0} tokens",
    ),
    Option(
        field="prefill_backend",
        name="cuda_graph_backend_prefill",
        meaning="how prefill graphs are made: breakable, in parts between calls of attention; full, of a whole pass, "
        "with room for as many requests as the largest bucket has; disabled, not at all",
        choices=(BREAKABLE, FULL, DISABLED),
        if_set=(
            SERVES,
            Need(
                lambda s, r, b: s.prefill_backend != FULL or b.captures_prefills,
                "{s.backend} has no metadata for full prefill graphs",
            ),
            Need(
                lambda s, r, b: s.prefill_backend != FULL or not family_facts(s).latent,
                "{s.family} models have no full prefill graphs here",
            ),
        ),
        drawn=(FULL,),
        later=True,
        example={"prefill_max_bs": 16, "prefill_backend": FULL},
        words="{0} prefill graphs",
    ),
    Option(
        field="sampled",
        name="sampled",
        part=HARNESS,
        meaning="every other request of a step samples, so coldly that its text is the greedy one: from the first on, "
        "or from the second where the first asks for log-probabilities",
        if_set=(SERVES,),
        drawn=(True,),
        later=True,
        words="requests that sample",
    ),
    Option(
        field="heeds_eos",
        name="ignore_eos",
        part=HARNESS,
        reversed=True,
        meaning="requests say that no token ends them, and sglang admits them by all tokens that they ask for; "
        "otherwise by a part of these, and in a full pool it retracts some",
        if_set=(SERVES,),
        drawn=(True,),
        later=True,
        words="requests that a token may end",
    ),
    Option(
        field="images",
        name="images",
        part=HARNESS,
        meaning="every other request of a step, from the first on, brings an image if its prompt has room for it: "
        "embeddings in place of up to ten tokens', at positions whose axes differ",
        if_set=(
            SERVES,
            Need(lambda s, r, b: family_facts(s).sees, "these models take no images"),
        ),
        drawn=(True,),
        later=True,
        words="prompts with images",
    ),
)
