"""Cases of a runner that serves: groups of requests that arrive at a scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from fuzz.draw.moves import DATA_MAX, SHORT, Hand, requests_elsewhere
from fuzz.draw.swarm import Swarm
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import HAPPENINGS, Case, Request, Setup, Step, seq_len_max, setup_problems
from repro.cases.families import DSA, family_facts
from repro.cases.options import OPTION
from repro.cases.rows.adapters import ADAPTERS, TRITON
from repro.cases.rows.requests import OF_TARGET
from repro.cases.rows.serving import BREAKABLE, FULL, pool_least, pool_of, prefill_buckets
from repro.cases.runner_facts import FROM_TABLE, IN_BLOCKS, MARKOV
from repro.cases.sharing import SHARERS, VOCABULARY_STEP, groups_of
from repro.cases.updates import UPDATE, update_problems

# A case costs by its tokens: so many requests, and of each so many tokens besides the first.
GROUPS_MAX, REQUESTS_MAX, FURTHER_MAX = 4, 8, 24
# A chunk of prompts, in tokens.
CHUNK = 16
# One in so many setups of DFLASH in another type than bfloat16 has batches that no graph holds: all releases die there
# (model_runner.py, 0.5.23:1772). DSPARK's drafts make their embeddings themselves, since 0.5.17.
BEYOND_GRAPHS = 4
# One in so many setups of a draft that reads the target's KV cache has the normal loop: 0.5.19 to 0.5.23 die there with
# the first request (round-frozen-kv-without-overlap), so that nothing else is met.
WITHOUT_OVERLAP = 4
# One in so many setups with recurrent layers, or with KV slots of sliding layers over flashinfer, has full prefill
# graphs: releases die there before the first request (round-full-prefill-captured-too-early), and nothing else is met.
CAPTURED_TOO_EARLY = 8
# One in so many setups is of a rank that shares its heads with another one.
SHARED = 4
# One in so many setups has adapters of weights, where it may.
ADAPTED = 8
# One in so many setups of a model that takes images has none.
WITHOUT_IMAGES = 4
# One in so many setups has requests with a grammar, a bias or stop tokens.
OF_SOME_REQUESTS = {"grammar": 5, "logit_bias": 5, "stop_token_ids": 4}
# One in so many groups behind the first comes with an update of weights, for which earlier requests must have ended.
UPDATING = 8
WAITS = (0, 1, 1, 2, 3, 6)


@st.composite
def served(draw: st.DrawFn, setup: Setup) -> Setup:
    """The setup with a pool, an agreement of draft and target, one of the event loops, and perhaps another rank."""
    page, least = setup.page_size, pool_least(setup)
    facts = family_facts(setup)
    # Beside another rank blocks are drafted without a graph, where embeddings in another type than bfloat16 die.
    ranks = facts.gathers and (setup.algorithm not in IN_BLOCKS - {MARKOV} or setup.dtype == "bfloat16")
    ranks = ranks and setup.algorithm not in FROM_TABLE  # as sglang refuses it
    captured = not facts.eager_prefills
    logprobs = draw(st.booleans())
    between = least + page * draw(st.integers(0, pool_of(setup) // page))
    drawn = replace(
        setup,
        pool=draw(st.sampled_from((0, 0, least, between))),
        disagreement=draw(st.sampled_from((0, *OPTION["disagreement"].drawn))),
        overlap=draw(st.integers(1, WITHOUT_OVERLAP)) > 1 if facts.frozen else draw(st.booleans()),
        plan_stream=draw(st.booleans()) and BACKEND_FACTS[setup.backend].plans_ahead,
        radix=draw(st.booleans()),
        logprobs=logprobs,
        logprob_start_len=draw(st.sampled_from((-1, *OPTION["logprob_start_len"].drawn))) if logprobs else -1,
        prefill_max_bs=draw(st.sampled_from((0, 0, *OPTION["prefill_max_bs"].drawn))) * captured,
        returns_hidden=draw(st.booleans()),
        sampled=draw(st.booleans()),
        chunk=page * draw(st.sampled_from((0, 0, 1, max(1, CHUNK // page)))),
        dp_attention=setup.dp_attention or (ranks and draw(st.sampled_from((False, False, True)))),
        heeds_eos=draw(st.booleans()),
    )
    if prefill_buckets(drawn) and BACKEND_FACTS[setup.backend].captures_prefills and not facts.latent:
        early = facts.recurrent or (setup.swa and setup.backend == "flashinfer")
        full = draw(st.integers(1, CAPTURED_TOO_EARLY)) == 1 if early else draw(st.booleans())
        drawn = replace(drawn, prefill_backend=FULL if full else BREAKABLE)
    drawn = draw(_shared(drawn))
    if facts.sees:
        mrope = draw(st.booleans()) and not facts.own_drafts  # a next-token layer has its target's positions
        drawn = replace(drawn, images=draw(st.integers(1, WITHOUT_IMAGES)) > 1, mrope=mrope)
    if setup.family == DSA:
        drawn = draw(_choosing(drawn))
    drawn = draw(_adapted(drawn))
    if setup.algorithm not in IN_BLOCKS:
        return draw(_with_requests(drawn))
    # A worker that drafts blocks lets hidden states go in every release, where it does not refuse the request.
    drawn = replace(drawn, returns_hidden=False)
    within = setup.dtype != "bfloat16" and draw(st.integers(1, BEYOND_GRAPHS)) > 1 and setup.algorithm != MARKOV
    return draw(_with_requests(replace(drawn, slots=setup.max_bs, padded=True) if within else drawn))


@st.composite
def _shared(draw: st.DrawFn, setup: Setup) -> Setup:
    """The setup, in some draws as one of the two ranks of a group, where it may be."""
    if draw(st.integers(1, SHARED)) > 1:
        return setup
    heads = setup.num_heads * (1 + setup.num_heads % SHARERS)
    kept = setup.num_kv_heads if setup.num_kv_heads == 1 else heads * setup.num_kv_heads // setup.num_heads
    step = VOCABULARY_STEP * SHARERS
    vocabulary = -(-setup.vocab_size // step) * step
    ranks = SHARERS * groups_of(setup)
    even = tuple(sorted({bs + bs % SHARERS for bs in setup.capture_bs})) if setup.dp_attention else setup.capture_bs
    slots = max(setup.slots, even[-1])
    shared = replace(
        setup,
        tp_size=ranks,
        num_heads=heads,
        num_kv_heads=kept,
        vocab_size=vocabulary,
        capture_bs=even,
        slots=slots,
    )
    return setup if setup_problems(shared) else shared


@st.composite
def _adapted(draw: st.DrawFn, setup: Setup) -> Setup:
    """The setup, in some draws with adapters of weights, where it may have them. Their kernels are Triton's, whose
    interpreter lacks a type."""
    lacks = setup.dtype in BACKEND_FACTS["triton"].emulation_lacks
    if lacks or draw(st.integers(1, ADAPTED)) > 1:
        return setup
    adapted = replace(
        setup,
        enable_lora=True,
        plan_stream=False,
        max_loras_per_batch=draw(st.sampled_from(OPTION["max_loras_per_batch"].drawn)),
        lora_backend=draw(st.sampled_from(OPTION["lora_backend"].choices)),
        lora_head=draw(st.booleans()) and not setup.family,
    )
    if setup.dp_attention:  # sglang keeps all adapters then, and has Triton's kernels alone
        adapted = replace(adapted, max_loras_per_batch=ADAPTERS + 1, lora_backend=TRITON)
    return setup if any(OPTION["enable_lora"].problems(adapted)) else adapted


@st.composite
def _choosing(draw: st.DrawFn, setup: Setup) -> Setup:
    """The setup with steps of a draft that share a choice of keys, or of few keys, or of both, in some draws. Hidden
    states that a draft hardly heeds leave its choice sure, where it has one."""
    shares, count = (
        draw(st.booleans()) and setup.num_steps > 1,
        draw(st.sampled_from((0, 0, *OPTION["index_topk"].drawn))),
    )
    if not count:
        return replace(setup, index_share=shares)
    disagreement = draw(st.sampled_from((0, setup.disagreement)))
    return replace(setup, index_share=shares, index_topk=count, disagreement=disagreement, logprob_start_len=-1)


@st.composite
def _with_requests(draw: st.DrawFn, setup: Setup) -> Setup:
    """The setup, in some draws with requests whose logits are not numbers, or with a grammar, a bias or stop tokens,
    where it may have them."""
    which = draw(st.sampled_from(("", "", "", *OPTION["nan_logits"].drawn)))
    sanitizes = draw(st.booleans()) or (which == OF_TARGET and setup.sampled)
    changed = replace(setup, nan_logits=which, sanitizes=bool(which) and sanitizes)
    if not any(OPTION["nan_logits"].problems(changed)):
        setup = changed
    for name, share in OF_SOME_REQUESTS.items():
        chosen: dict[str, Any] = {name: draw(st.integers(1, share)) == 1}
        changed = replace(setup, **chosen)
        if not any(OPTION[name].problems(changed)):
            setup = changed
    return setup


@st.composite
def arrivals(draw: st.DrawFn, setup: Setup, swarm: Swarm) -> Case:
    """One to GROUPS_MAX groups, as far apart as some rounds take."""
    hand = Hand(draw=draw, setup=setup, swarm=swarm, limit=seq_len_max(setup))
    steps: list[Step] = []
    left, ranked = REQUESTS_MAX, setup.dp_attention
    groups = hand.number(1, GROUPS_MAX)
    for number in range(groups):
        happens = _happening(hand) if number else ""
        # An iteration that prefills retracts nothing.
        alone = happens == "retract" and hand.pick((True, True, False))
        alone |= ranked and hand.pick((False, False, True))  # they come to the other rank alone
        owed = left == REQUESTS_MAX and number + 1 == groups
        count = 0 if alone and not owed else hand.number(1, min(setup.slots, left))
        left -= count
        requests = tuple(_request(hand, slot) for slot in range(1, count + 1))
        wait, elsewhere = hand.pick(WAITS) if number else 0, requests_elsewhere(hand) if ranked else 0
        steps.append(Step(requests=requests, wait=wait, happens=happens, elsewhere=elsewhere))
        if not left:
            break
    return Case(setup=setup, steps=tuple(steps))


def _happening(hand: Hand) -> str:
    if hand.number(1, UPDATING) == 1 and not any(update_problems(hand.setup)):
        return UPDATE
    return hand.pick(("", "", "", *(each for each in HAPPENINGS if each != UPDATE)))


def fullest(setup: Setup) -> Case:
    """The largest bucket full of long requests, and a short one that comes while they run."""
    longest = seq_len_max(setup)
    further = min(FURTHER_MAX, longest - 1)
    slots = range(1, setup.max_bs + 1)
    long = tuple(Request(slot=n, seq_len=longest - further, data=n, further=further) for n in slots)
    short = Request(slot=1, seq_len=1, data=setup.max_bs + 1, further=min(SHORT, longest - 1))
    return Case(setup=setup, steps=(Step(requests=long), Step(requests=(short,), wait=2)))


def _request(hand: Hand, slot: int) -> Request:
    page, limit = hand.setup.page_size, hand.limit
    kind = hand.pick(("one", "short", "any", "any", "page", "long"))
    match kind:
        case "one":
            length = 1
        case "short":
            length = hand.number(1, min(SHORT, limit))
        case "page":
            length = min(limit, max(1, page * hand.number(1, max(1, limit // page)) + hand.number(-1, 1)))
        case "long":
            length = hand.number(max(1, limit - FURTHER_MAX), limit)
        case _:
            length = hand.number(1, limit)
    most = min(FURTHER_MAX, limit - length)
    further = hand.pick((0, hand.number(0, most), hand.number(0, most), most))
    # Prompts of the same data begin alike.
    data = hand.pick((1, hand.number(0, DATA_MAX))) if hand.setup.radix else hand.number(0, DATA_MAX)
    return Request(slot=slot, seq_len=length, data=data, further=further)
