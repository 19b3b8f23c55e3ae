"""The cases that a mutant is tried on, those that reach most first: full buckets, then what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice

from fuzz.draw.rounds import different
from fuzz.draw.states import is_drawn
from fuzz.draw.strategies import cases
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import (
    HIDDEN,
    Case,
    Request,
    Setup,
    Step,
    accepted_max,
    problems,
    seq_len_max,
    setup_problems,
)
from repro.cases.codec import digest
from repro.cases.families import FAMILY_FACTS, families, fitted
from repro.cases.options import OPTIONS
from repro.cases.rows.serving import pool_least
from repro.cases.runner_facts import RUNNER_FACTS
from repro.cases.setup import SPARE_POSITIONS
from repro.cases.updates import UPDATE, update_problems

CASES_MAX = 40
# Of each setup, before any setup has more; and how many are drawn for it besides those that are written here.
FIRST, DRAWN = 3, 2
# A long context, in which attention's loops over blocks of 512 tokens run twice.
LONG = 640
# The tokens behind the first that a served request asks for, some rounds of drafts; and iterations between arrivals.
FURTHER, WAIT = 6, 2
# The same where requests are to be retracted, aborted and joined by others.
SERVED = 14


def plan(
    runner: str,
    backend: str,
    seeds: Iterable[Case] = (),
    count: int = CASES_MAX,
    fits: Callable[[Setup], bool] = lambda setup: True,
) -> list[Case]:
    """So many cases at most, of setups that fit. seeds: stored ones, of which this runner's and backend's take part."""
    every = [(list(written(setup)), setup) for setup in setups(runner, backend) if fits(setup)]
    of_pair = (case for case in seeds if (case.setup.runner, case.setup.backend) == (runner, backend))
    stored = [case for case in of_pair if fits(case.setup)]
    # In turn: were a setup's own together, the last setups would have none among so many.
    first = (case for turn in range(FIRST) for own_cases, _ in every for case in own_cases[turn : turn + 1])
    rest = (chain(own_cases[FIRST:], drawn(setup)) for own_cases, setup in every)
    ordered = chain(first, stored, *rest)
    unique = {digest(case): case for case in ordered if not problems(case)}
    return list(islice(unique.values(), count))


def setups(runner: str, backend: str) -> list[Setup]:
    """Small ones that differ from each other in everything that a runner of this kind may differ in."""
    domain, kernels = RUNNER_FACTS[runner], BACKEND_FACTS[backend]
    # With as many slots as the largest bucket has rows, what is sized by one must do for the other.
    small = Setup(runner=runner, backend=backend, topk=1, num_steps=1, num_draft_tokens=2, capture_bs=(2, 4), slots=6)
    page = min(kernels.page_sizes, default=1)
    small = replace(small, dtype=kernels.drawn_dtypes[0], head_dim=kernels.drawn_head_dims[0], page_size=page)
    chosen = _sizes(small)
    first = chosen[0]
    if domain.capped and backend == "triton":
        # More heads to a key head than a block of attention's kernels has rows.
        chosen.append(replace(first, logit_cap=5, num_heads=20, num_kv_heads=1, hidden_size=40))
        chosen.append(replace(first, deterministic=True))
    if domain.quantises and kernels.quantises:
        chosen.append(replace(first, dtype="float16", kv_dtype="fp8_e4m3", head_dim=32))
    if domain.rank_tokens is not None:
        chosen.append(replace(first, dp_attention=True))
    if domain.windowed:
        _insert_windows(chosen)
    if domain.speculative:
        chosen += _options_of_drafting(small)
    odd = 24 if kernels.head_dims is None else first.head_dim
    behind = replace(first, num_heads=4, head_dim=odd)
    if domain.overhangs:
        # Drafts up to the end of the last row of the request table, where a row is a power of two too short for them.
        behind = replace(behind, overhang=4 + SPARE_POSITIONS, slots=behind.max_bs)
        behind = _drafting(behind, 3 if domain.branches else 1, 3, 4)
    chosen += [
        # Two heads to each of two key heads; and each less than a kernel's block: what lies behind one is the next.
        replace(first, padded=not domain.falls_back, num_heads=4),
        behind,
    ]
    chosen.insert(1, _alone(small))
    if domain.serves:
        chosen[1:1] = _serving(first)
    chosen += _of_families(first)
    # An option that nothing above has.
    chosen += [replace(first, **o.smallest) for o in OPTIONS if o.sets_apart and not any(map(o.is_set, chosen))]
    return [setup for setup in dict.fromkeys(chosen) if not setup_problems(setup) and is_drawn(setup)]


def _of_families(first: Setup) -> Iterator[Setup]:
    for name in families(first.runner, first.backend):
        chain = first.backend in FAMILY_FACTS[name].chains and RUNNER_FACTS[first.runner].speculative
        # As many slots as rows, as what is sized by one must do for the other.
        setup = replace(_drafting(first, 1, 3, 4) if chain else first, family=name, slots=first.max_bs)
        setup = fitted(setup)
        yield setup
        if FAMILY_FACTS[name].recurrent and first.topk > 1 and not chain:
            # Without links between tokens, which trees of recurrent layers have.
            yield fitted(_drafting(setup, 1, 3, 4))


def _serving(first: Setup) -> Iterator[Setup]:
    """Both event loops with what a scheduler may do beside rounds: prompts from the tree cache and in chunks, a pool so
    small that requests are retracted, drafts that are refused, what requests ask for besides their text."""
    asking = replace(first, disagreement=30, radix=True, logprobs=True, logprob_start_len=0, sampled=True)
    yield replace(asking, overlap=True, plan_stream=BACKEND_FACTS[first.backend].plans_ahead)
    short = _drafting(replace(asking, page_size=4, chunk=8, capture_bs=(1, 3), slots=4), 1, 3, 4)
    short = replace(short, pool=pool_least(short) + 8 * short.page_size)
    yield short
    yield replace(short, overlap=True, radix=False, returns_hidden=True)


def _sizes(small: Setup) -> list[Setup]:
    """The small one, pages, a long context, and the trees that differ in their kernels."""
    domain, kernels = RUNNER_FACTS[small.runner], BACKEND_FACTS[small.backend]
    branches, page = domain.branches and not kernels.chains, max(4, small.page_size)
    paged = replace(small, page_size=page, capture_bs=(1, 3), num_heads=4, hidden_size=48, kv_splits=2, slots=3)
    if small.backend == "triton":
        # A KV row of 32 bytes: less than one tile of the kernel that copies rows.
        paged = replace(paged, dtype="float16", num_kv_heads=1)
    long = replace(small, context_len=LONG, capture_bs=(2,), slots=3, vocab_size=600, kv_splits=8)
    if kernels.head_dims is None:
        long = replace(long, head_dim=24)  # less than a kernel's block
    if not domain.speculative:
        return [small, paged, long]
    paged_short = replace(paged, context_len=96)
    chosen = [
        # So many steps that parents are named by a step behind the second.
        _drafting(small, *((2, 4, 5) if branches else (1, 3, 4))),
        # Of three steps two are attended to, so that a branch's second draft on a page is read, too.
        _drafting(paged_short, *((3, 3, 7) if branches else (1, 2, 3))),
        _drafting(long, 2 if branches else 1, 3, 4),
    ]
    if branches and not domain.trees:
        chosen.insert(1, _drafting(replace(small, capture_bs=(1, 4), slots=4), 1, 3, 4))
        # A chain on pages: kernels that branches have others for.
        chosen.append(_drafting(paged_short, 1, 2, 3))
    if domain.light:
        # Trees as small as their longest chain, all of which may be accepted and end within a page.
        chosen.append(_drafting(paged_short, 2, 2, 3))
        # So many tokens on the last page that copies of it are more than one launch moves.
        chosen.append(_drafting(replace(small, page_size=64, capture_bs=(2,), slots=2, context_len=LONG), 5, 2, 7))
    if wide := _wide(small, small.backend):
        chosen.append(wide)
    return chosen


def _insert_windows(chosen: list[Setup]) -> None:
    """A target's window as a chain: in trees Triton's kernel measures windows by place (docs/findings), which hides
    more."""
    first = chosen[0]
    domain, kernels = RUNNER_FACTS[first.runner], BACKEND_FACTS[first.backend]
    of_target = domain.windowed == "target"
    chain = of_target and domain.speculative
    width = 2 if domain.speculative else 7  # less than a tree has tokens, where there is one
    window = replace(first, slots=4, window=width, swa=of_target, returns_hidden=domain.asks_hidden)
    if chain:
        window = _drafting(window, 1, 3, 4)
    elif not of_target and not kernels.drafts_in_windows:
        window = _drafting(window, 2, 1, 3)
    chosen.insert(1, window)
    if of_target:
        # Over a pool that does not know of the window.
        chosen.insert(4, replace(window, swa=False, returns_hidden=False))
    if chain and kernels.draws_caps:
        chosen.append(replace(window, swa=False, returns_hidden=False, deterministic=True))
    if chain and kernels.reads_pages:
        # Its kernels take trees in windows in a way of their own, and measure them by depth.
        chosen.insert(2, _drafting(window, 2, 3, 5))


def _options_of_drafting(small: Setup) -> Iterator[Setup]:
    """The other algorithms, and the options that only draft models have."""
    domain = RUNNER_FACTS[small.runner]
    for name in domain.algorithms[1:]:
        other = fitted(replace(small, capture_bs=(3,), slots=4, algorithm=name))
        drafts = _drafting(other, 2 if domain.branches else 1, 3, 4)
        yield _apart(drafts) if domain.drafts_apart and name == "EAGLE3" else drafts
        if domain.mrope and name == "EAGLE3":
            yield replace(drafts, capture_bs=(1, 3), mrope=True)
    if domain.rejects:
        yield _drafting(replace(small, capture_bs=(1, 3), slots=4, rejection=True), 1, 3, 4)
    if domain.adapts:
        yield _drafting(replace(small, capture_bs=(1, 3), slots=4, adaptive=5), 1, 3, 4)
    if domain.num_steps_min == 1 and not domain.trees:
        yield from [_drafting(small, 2, 1, 3), small] if domain.branches else [small]


def _apart(setup: Setup) -> Setup:
    """With a draft model whose every size is another than the target's."""
    dims = [dim for dim in BACKEND_FACTS[setup.backend].drawn_head_dims if dim != setup.head_dim]
    head_dim = dims[0] if dims else 0
    return replace(setup, draft_hidden_size=48, draft_num_heads=4, draft_num_kv_heads=1, draft_head_dim=head_dim)


def _alone(small: Setup) -> Setup:
    """A bucket of one, whose memory is less than kernels take at once, and in which no row is padded: what a mask lets
    through is foreign, or the reserved slot's."""
    domain = RUNNER_FACTS[small.runner]
    alone = replace(small, capture_bs=(1,), slots=1)
    if not domain.speculative:
        return alone
    return _drafting(alone, *((2, max(2, domain.num_steps_min), 4) if domain.branches else (1, 2, 3)))


def _wide(small: Setup, backend: str) -> Setup | None:
    """More tokens a request than attention has in a block, and than a loop over KV slots takes at once, where all of
    them go through attention or are laid out together."""
    domain = RUNNER_FACTS[small.runner]
    attends = backend == "triton" and (domain.light or any(read.queries for read in domain.reads))
    lays_out = not domain.graph and not domain.light
    if not (domain.branches and (attends or lays_out)):
        return None
    if domain.light or lays_out:
        return _drafting(replace(small, capture_bs=(2,), slots=2, context_len=256), 5, 4, 70)
    # So many that some tokens see nothing of a block between two that they see something of.
    return _drafting(replace(small, capture_bs=(1,), slots=1, context_len=256), 10, 3, 160)


def _drafting(setup: Setup, topk: int, num_steps: int, num_draft_tokens: int) -> Setup:
    return replace(setup, topk=topk, num_steps=num_steps, num_draft_tokens=num_draft_tokens)


def written(setup: Setup) -> Iterator[Case]:
    """Everybody at the longest length with the largest bucket full, and a batch of one in what that leaves behind;
    with a window, requests that lie within it; batches that ask for hidden states, and one that no bucket holds, where
    there are such; an idle batch, behind it one without lengths on the host in other KV slots, and one without padding;
    batches that grow, shrink and take each other's slots;
    of two ranks one that is busier, and an idle one; batches of the shortest requests."""
    limit, full = seq_len_max(setup), setup.max_bs
    page, step = setup.page_size, partial(_step, setup)
    small = max(1, full - 1)
    if setup.disagreement:
        yield _happening(setup)
    yield Case(setup=setup, steps=(step(full, [limit]), step(1, [2], 1, 1), step(small, [5, 9, page], 2, 2)))
    if setup.window:
        # Requests that lie within the window: what is wrong with those beyond it does not hide what is wrong here.
        yield Case(setup=setup, steps=(step(full, [1, 2], 1, 3), step(small, [2, 1], 2, 4)))
    facts = RUNNER_FACTS[setup.runner]
    asking = [
        replace(step(1, [5], turn, turn), hidden=hidden) for turn, hidden in enumerate(HIDDEN) if facts.asks_hidden
    ]
    beyond = [step(setup.slots, [3, limit])] if facts.falls_back and full < setup.slots else []
    if asking or beyond:
        yield Case(setup=setup, steps=(*asking, *beyond, step(small, [limit, 2], 1, 3)))
    idle = (Step(requests=()),) if facts.idles else ()
    unlike = replace(step(small, [9, 4], 1, 1), mirrored=facts.host_lengths, layout=int(facts.relocates))
    yield Case(setup=setup, steps=(step(full, [limit, 6]), *idle, unlike, step(full, [limit, 3], 2, 2)))
    yield Case(
        setup=setup,
        steps=(step(1, [page + 1]), step(full, [3, page * 2, 7, 1], 1, 1), step(small, [limit, 4], 0, 2)),
    )
    if setup.dp_attention:
        busier = replace(step(1, [limit], 1, 2), elsewhere=full)
        yield Case(setup=setup, steps=(step(full, [5, limit]), busier, Step(requests=(), elsewhere=small)))
    yield Case(setup=setup, steps=(step(small, [1]), step(full, [1, 2], 2, 1), step(1, [limit], 3, 2)))


def _happening(setup: Setup) -> Case:
    """All that may happen to a scheduler while requests run: they are retracted, in an iteration without a prefill,
    the oldest is aborted, others come with the same first tokens, the cache is flushed when no request runs, and
    weights are updated where they may be."""
    limit, full, step = seq_len_max(setup), setup.max_bs, partial(_step, setup, further=SERVED)
    first, again = step(full, [limit, limit // 2]), step(full, [limit // 2 + 3, limit // 3])
    prefills = 2 * (-(-limit // setup.chunk) if setup.chunk else 1)  # of two requests, which a small pool has room for
    steps = (
        first,
        Step(requests=(), wait=prefills + WAIT, happens="retract"),
        replace(again, wait=WAIT, happens="abort"),
        replace(step(1, [limit // 3], 1, 1), wait=10 * WAIT, happens="flush"),
    )
    updated = () if any(update_problems(setup)) else (replace(step(1, [limit // 3], 1, 1), happens=UPDATE),)
    return Case(setup=setup, steps=(*steps, *updated))


def _step(
    setup: Setup, count: int, length: Sequence[int], first: int = 0, turn: int = 0, further: int = FURTHER
) -> Step:
    """So many requests in slots from this one on; their lengths in turn, their contents by the turn's number. Served
    ones ask for further tokens, so that rounds follow their prompts; those of a later turn arrive among these."""
    limit, most = seq_len_max(setup), accepted_max(setup)
    serves = RUNNER_FACTS[setup.runner].serves
    further = min(further, limit - 1) if serves else 0
    return Step(
        requests=tuple(
            Request(
                slot=1 + (first + row) % setup.slots,
                seq_len=min(limit - further, max(1, length[row % len(length)])),
                data=37 * (row + 1) + 101 * turn,
                accepted=(row + turn) % (most + 1) if most else 0,
                greedy=setup.rejection and (row + turn) % 3 == 1,
                further=further,
            )
            for row in range(count)
        ),
        wait=WAIT if serves and turn else 0,
    )


def drawn(setup: Setup) -> Iterator[Case]:
    """A few at random, the same ones each time."""
    yield from different(f"eagleeye mutate {setup}", cases(setup), DRAWN)
