"""Hypothesis strategies for setups and for sequences of calls; what comes out satisfies problems() == [].

Nothing is filtered: every choice is drawn from what the choices before it leave possible.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from fuzz.draw import arrivals
from fuzz.draw.moves import Hand, Requests, falls_back, next_batch, requests_elsewhere
from fuzz.draw.states import is_drawn, is_invariant
from fuzz.draw.swarm import BROAD, EVERYTHING, WIDE, Size, Swarm
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import (
    HIDDEN,
    Case,
    Request,
    Setup,
    Step,
    accepted_max,
    seq_len_max,
)
from repro.cases.families import FAMILY_FACTS, FamilyFacts, facts_of, families, family_facts
from repro.cases.options import KV_DTYPE_ABOVE, OPTION, OPTIONS, PAGE_SIZES
from repro.cases.runner_facts import FROM_TABLE, LATENT, OF_OTHER_WORKERS, RUNNER_FACTS, WITHOUT_STEPS, RunnerFacts
from repro.cases.setup import DRAFT_SIZES, SPARE_POSITIONS, overhang_max

# One block of 2,048 and some, which is what loops over hidden states go by.
BROAD_HIDDEN_SIZES = (2304, 2560)
CONTEXT_MIN = 32
ROOM = 8  # tokens of prefix for which every setup leaves room, where its size allows
BUCKETS_MAX, BUCKETS_COMPILED_MAX = 4, 2
DRAFT_TOKENS_MAX = 32
WIDE_TOKENS_MAX = 100
SPARE_SLOTS_MAX = 4
# A split has 32 tokens or more: requests longer than two of them are divided as sglang does by itself, since what a sum
# over splits drops shows from the third on.
TWO_SPLITS, SPLITS_OF_LONG = 2 * 32, (1, 8)
# On or off by themselves; the others decide on what else is drawn.
_SWITCHES = tuple(o for o in OPTIONS if o.is_switch and o.field not in ("deterministic", "rejection"))
# One in so many setups has a draft model of other sizes, where that is possible.
DRAFTS_APART = 4
# Draws of pages that a request can fill for each draw of any fitting page.
FILLED = 3
PAGES_OF_FAMILY = 3  # in a context, where a family of models has one page size
LIGHT_CONTEXT = 9 * 256  # a page of prefix and one for each of eight branches, of the largest size


def setups(runner: str = "draft", backend: str = "triton", swarm: Swarm = EVERYTHING) -> st.SearchStrategy[Setup]:
    """Setups of this runner and backend, within the swarm's size."""
    return _setups(runner, backend, swarm)


def cases(setup: Setup, swarm: Swarm = EVERYTHING) -> st.SearchStrategy[Case]:
    """Cases on this setup: 1 to swarm.calls_max calls, each made from the one before by one of the swarm's moves."""
    return arrivals.arrivals(setup, swarm) if RUNNER_FACTS[setup.runner].serves else _cases(setup, swarm)


def fullest(setup: Setup) -> Case:
    """The case that a setup begins with: the largest bucket full of the longest requests, twice around a short one; and
    where there are slots for it, a batch that no bucket holds, between two that one does."""
    if RUNNER_FACTS[setup.runner].serves:
        return arrivals.fullest(setup)
    longest, most = seq_len_max(setup), setup.max_bs
    accepted = accepted_max(setup)

    def batch(count: int, length: int, first: int = 1) -> Step:
        slots = range(first, first + count)
        return Step(requests=tuple(Request(slot=n, seq_len=length, data=n, accepted=accepted) for n in slots))

    beyond = [batch(most + 1, 1)] if falls_back(setup) else []
    return Case(setup=setup, steps=(batch(most, longest), batch(1, 1, setup.slots), *beyond, batch(most, longest)))


@st.composite
def _setups(draw: st.DrawFn, runner: str, backend: str, swarm: Swarm) -> Setup:
    domain = RUNNER_FACTS[runner]
    size = replace(swarm.size, context_len=LIGHT_CONTEXT) if domain.light and swarm.paged else swarm.size
    rejecting = "rejection" in swarm.options and domain.rejects
    adapting = "adaptive" in swarm.options and domain.adapts
    in_chains = rejecting or adapting or _only_chains(runner, backend, swarm)
    steps_max = min(size.num_steps, domain.num_steps_max) if domain.speculative else 1
    topk = draw(st.integers(2, size.topk)) if domain.trees or not in_chains else 1
    num_steps, draft_tokens = _tree(draw, topk, _steps(swarm, domain.num_steps_min, steps_max), size)
    capture_bs = draw(_buckets(size.max_bs, swarm.sparse, BUCKETS_COMPILED_MAX if domain.compiled else BUCKETS_MAX))
    heads = draw(st.integers(1, size.num_heads))
    algorithm, family, facts = _drafter(draw, runner, backend, swarm)
    topk, num_steps, draft_tokens, paged = _shape_of(draw, algorithm, backend, (topk, num_steps, draft_tokens), swarm)
    capped = domain.capped and BACKEND_FACTS[backend].draws_caps
    plain, fitting = facts.plain, facts.dtypes_of(runner)  # neither windows nor caps are known for others
    dtypes = [name for name in BACKEND_FACTS[backend].drawn_dtypes if name in fitting or not fitting]
    windows = num_steps == 1 or _drafts_in_windows(runner, backend, algorithm)
    windowed = facts.sliding or (domain.windowed and windows and "window" in swarm.options and plain)
    window = draw(_values("window")) if windowed else 0
    adapting &= plain and not (window and domain.windowed == "draft" and not BACKEND_FACTS[backend].starts_in_windows)
    others = [steps for steps in range(1, min(steps_max + 1, domain.num_steps_max) + 1) if steps != num_steps]
    quantises = domain.quantises and BACKEND_FACTS[backend].quantises and "kv_dtype" in swarm.options and plain
    kv_dtype, above = (draw(_values("kv_dtype")), KV_DTYPE_ABOVE) if quantises else ("", 0)
    page_size, context_len = draw(_pages(runner, backend, topk, num_steps, draft_tokens, size, paged, facts.page_size))
    setup = Setup(
        runner=runner,
        backend=backend,
        topk=topk,
        num_steps=num_steps,
        num_draft_tokens=draft_tokens,
        capture_bs=capture_bs,
        slots=capture_bs[-1] + draw(st.integers(int(swarm.crowded and domain.falls_back), SPARE_SLOTS_MAX)),
        page_size=page_size,
        context_len=context_len,
        vocab_size=draw(_values("vocab_size")),
        # A Llama configuration wants the hidden size to be a multiple of the number of heads.
        hidden_size=draw(st.sampled_from([n for n in _hidden_sizes(size, facts) if n % heads == 0])),
        num_heads=heads,
        num_kv_heads=draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0])),
        head_dim=draw(st.sampled_from([n for n in BACKEND_FACTS[backend].drawn_head_dims if n > above])),
        dtype=draw(st.sampled_from(dtypes)),
        kv_splits=draw(st.sampled_from(SPLITS_OF_LONG) if context_len > TWO_SPLITS else _values("kv_splits")),
        algorithm=algorithm,
        window=window,
        swa=facts.sliding or (bool(window) and domain.windowed == "target" and "swa" in swarm.options),
        logit_cap=draw(_values("logit_cap")) if capped and "logit_cap" in swarm.options and plain else 0,
        overhang=draft_tokens + SPARE_POSITIONS if "overhang" in swarm.options and domain.overhangs else 0,
        mirrored=domain.host_lengths or not swarm.unmirrored,
        rejection=rejecting and algorithm not in ("EAGLE3", *OF_OTHER_WORKERS) and not facts.frozen,
        deterministic="deterministic" in swarm.options and is_invariant(runner, backend) and plain,
        adaptive=draw(st.sampled_from(others)) if adapting and algorithm not in OF_OTHER_WORKERS else 0,
        kv_dtype=kv_dtype,
        family=family,
    )
    setup = _switched(replace(setup, overhang=min(setup.overhang, overhang_max(setup))), swarm)
    if not is_drawn(setup):
        setup = replace(setup, window=0, swa=False, rejection=False, family="" if facts.sliding else family)
    return draw(arrivals.served(setup)) if domain.serves else _with_draft(draw, setup, swarm)


def _drafts_in_windows(runner: str, backend: str, algorithm: str) -> bool:
    """True if several draft steps are drawn with windows of the target, or of the draft model where it has them."""
    kernels = BACKEND_FACTS[backend]
    if algorithm == "STANDALONE":
        return kernels.starts_in_windows
    return RUNNER_FACTS[runner].windowed == "target" or kernels.drafts_in_windows


def _with_draft(draw: st.DrawFn, setup: Setup, swarm: Swarm) -> Setup:
    """The setup, in some draws with a draft model of other sizes, where it may have that."""
    apart = RUNNER_FACTS[setup.runner].drafts_apart and not family_facts(setup).own_drafts
    if not apart or (draw(st.integers(1, DRAFTS_APART)) > 1 and not swarm.options & DRAFT_SIZES.keys()):
        return setup
    kernels, above = BACKEND_FACTS[setup.backend], KV_DTYPE_ABOVE if setup.kv_dtype else 0
    heads = draw(st.sampled_from([n for n in OPTION["draft_num_heads"].drawn if setup.hidden_size % n == 0]))
    widths = [n for n in OPTION["draft_hidden_size"].drawn if n % heads == 0] if setup.algorithm == "EAGLE3" else [0]
    return replace(
        setup,
        draft_hidden_size=draw(st.sampled_from(widths)),
        draft_num_heads=heads,
        draft_num_kv_heads=draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0])),
        draft_head_dim=draw(st.sampled_from([n for n in kernels.drawn_head_dims if n > above])),
    )


def _switched(setup: Setup, swarm: Swarm) -> Setup:
    """The setup with those options of the swarm that nothing is drawn for: on where they may be."""
    for option in _SWITCHES:
        if option.field in swarm.options:
            switched = replace(setup, **option.smallest)
            setup = setup if any(option.problems(switched)) else switched
    return setup


def _tree(draw: st.DrawFn, topk: int, steps: tuple[int, int], size: Size) -> tuple[int, int]:
    """The number of draft steps, of at least and at most so many, and that of tokens to verify."""
    num_steps = draw(st.integers(*steps))
    if topk == 1:
        return num_steps, num_steps + 1
    candidates = topk + (num_steps - 1) * topk**2  # besides the root
    return num_steps, draw(st.integers(2, min(candidates + 1, WIDE_TOKENS_MAX if size is WIDE else DRAFT_TOKENS_MAX)))


def _shape_of(
    draw: st.DrawFn, algorithm: str, backend: str, tree: tuple[int, int, int], swarm: Swarm
) -> tuple[int, int, int, bool]:
    """Branches, draft steps and draft tokens, and whether pages may have several tokens. tree: those of an algorithm
    with draft steps; others draft a block in one step, or have trees from a table."""
    if algorithm not in WITHOUT_STEPS:
        return *tree, swarm.paged
    topk = tree[0] if algorithm in FROM_TABLE else 1
    return topk, 1, draw(_values("num_draft_tokens")), swarm.paged and (topk == 1 or backend == "flashinfer")


def _drafter(draw: st.DrawFn, runner: str, backend: str, swarm: Swarm) -> tuple[str, str, FamilyFacts]:
    """The algorithm, the family of models, and the facts of both."""
    algorithm = swarm.algorithm or draw(st.sampled_from(_algorithms(RUNNER_FACTS[runner], backend)))
    names = _families(runner, backend, swarm)
    family = draw(st.sampled_from(names)) if names else ""
    facts = facts_of(family, algorithm)
    return algorithm if algorithm in facts.algorithms else facts.algorithms[0], family, facts


def _families(runner: str, backend: str, swarm: Swarm) -> tuple[str, ...]:
    """The families that the swarm's setups may name."""
    names = families(runner, backend) if "family" in swarm.options else ()
    return tuple(name for name in names if swarm.family in ("", name))


def _only_chains(runner: str, backend: str, swarm: Swarm) -> bool:
    """True if the swarm's setups have topk 1, as its runner or one of its families does."""
    domain = RUNNER_FACTS[runner]
    if not (swarm.branching and domain.speculative and domain.branches) or BACKEND_FACTS[backend].chains:
        return True
    return any(backend in FAMILY_FACTS[name].chains for name in _families(runner, backend, swarm))


def _values(name: str) -> st.SearchStrategy[Any]:
    """The values that are drawn for an option."""
    return st.sampled_from(OPTION[name].drawn)


def _steps(swarm: Swarm, fewest: int, most: int) -> tuple[int, int]:
    """The fewest and the most draft steps."""
    match swarm.single:
        case True:
            return fewest, fewest
        case False:
            return min(most, max(fewest, 2)), most
        case None:
            return fewest, most


def _hidden_sizes(size: Size, facts: FamilyFacts) -> tuple[int, ...]:
    if size is BROAD:
        return BROAD_HIDDEN_SIZES
    return facts.hidden_sizes or tuple(n for n in OPTION["hidden_size"].drawn if n <= size.hidden_size)


def _algorithms(domain: RunnerFacts, backend: str) -> tuple[str, ...]:
    """The runner's first algorithm, whose models are the simplest, and as often one of the others."""
    first, *others = (name for name in domain.algorithms if BACKEND_FACTS[backend].latent or name not in LATENT)
    return (*[first] * max(1, len(others)), *others)


@st.composite
def _buckets(draw: st.DrawFn, max_bs: int, sparse: bool, most: int) -> tuple[int, ...]:
    """1 to `most` rising bucket sizes up to max_bs: 1, 2, 3, ... or, where sparse, with at least one size left out."""
    if not sparse:
        return tuple(range(1, draw(st.integers(1, min(most, max_bs))) + 1))
    largest = max(draw(st.integers(2, max_bs)), draw(st.integers(2, max_bs)))
    below = draw(st.permutations(range(1, largest)))
    return (*sorted(below[: draw(st.integers(0, min(most - 1, largest - 2)))]), largest)


@st.composite
def _pages(
    draw: st.DrawFn,
    runner: str,
    backend: str,
    topk: int,
    num_steps: int,
    draft_tokens: int,
    size: Size,
    paged: bool,
    only: int,
) -> tuple[int, int]:
    """A page size and a context length in which a prefix of one token and its drafts fit; mostly one of a page, too.
    only: the one page size that there is; 0: any."""
    if only:
        return only, draw(st.integers(only + 1, PAGES_OF_FAMILY * only))
    sizes = BACKEND_FACTS[backend].page_sizes or (PAGE_SIZES if paged else (1,))
    shapes = {page: _shape(runner, topk, num_steps, draft_tokens, page) for page in sizes}
    room = RUNNER_FACTS[runner].room
    # One-token pages fit in any size: 1 + 8 branches of 6 steps are 49 tokens.
    fits = {page: room(shape, 1) for page, shape in shapes.items() if page > 1 and room(shape, 1) <= size.context_len}
    # A prefix that ends late in its page needs the most room.
    fills = {page: max(room(shapes[page], n) for n in (1, page - 1, page)) for page in fits}
    ending = [page for page, need in fills.items() if need <= size.context_len]
    page_size = draw(st.sampled_from([*ending * FILLED, *fits] or [sizes[0]]))
    need = max(room(shapes[page_size], 1) + ROOM, fills[page_size] if page_size in ending else 0)
    return page_size, draw(st.integers(min(size.context_len, max(CONTEXT_MIN, need)), size.context_len))


def _shape(runner: str, topk: int, num_steps: int, draft_tokens: int, page_size: int) -> Setup:
    """The part of a setup that says how much room a request needs."""
    return Setup(
        runner=runner,
        topk=topk,
        num_steps=num_steps,
        num_draft_tokens=draft_tokens,
        capture_bs=(1,),
        slots=1,
        page_size=page_size,
    )


# Requests of a case: more are more bytes than Hypothesis lets an example have (BYTES in fuzz/draw/rounds.py).
REQUESTS_MAX = 640


@st.composite
def _cases(draw: st.DrawFn, setup: Setup, swarm: Swarm) -> Case:
    hand = Hand(draw=draw, setup=setup, swarm=swarm, limit=seq_len_max(setup))
    # Single calls are rare: stale state needs at least two.
    most = min(swarm.calls_max, max(2, REQUESTS_MAX // setup.slots))
    calls = hand.pick([n for n in (1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6) if n <= most])
    batch: Requests = ()
    steps = []
    for _ in range(calls):
        batch = next_batch(hand, batch)
        batch = _sampled(hand, batch) if setup.rejection else batch
        layout = hand.number(0, 2) if swarm.relocating and RUNNER_FACTS[setup.runner].relocates else 0
        asks = "returns_hidden" in swarm.options and RUNNER_FACTS[setup.runner].asks_hidden
        hidden = hand.pick(HIDDEN) if asks else ""
        mirrored, elsewhere = _mirrored(hand), requests_elsewhere(hand) if setup.dp_attention else 0
        steps.append(Step(requests=batch, mirrored=mirrored, layout=layout, hidden=hidden, elsewhere=elsewhere))
    return Case(setup=setup, steps=tuple(steps))


def _sampled(hand: Hand, batch: Requests) -> Requests:
    """The requests of random drafts: all are greedy, none, or some."""
    match hand.number(0, 2):
        case 0:
            return tuple(replace(request, greedy=hand.number(0, 1) == 1) for request in batch)
        case every:
            return tuple(replace(request, greedy=every == 1) for request in batch)


def _mirrored(hand: Hand) -> bool:
    """True for half of the calls, where some come without lengths on the host."""
    sometimes = hand.swarm.halfway and not RUNNER_FACTS[hand.setup.runner].host_lengths
    return not sometimes or hand.number(0, 1) == 0
