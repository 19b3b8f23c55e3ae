"""States that a replay can depend on besides its buckets: how each is told, and how it is brought about.

Which of them a runner can be in over a backend, alone or two at once, is asked of the smallest setups and steps that
bring them about: those that are valid, that campaigns draw and that have a graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case, Request, Setup, Step, problems, seq_len_max
from repro.cases.families import family_facts
from repro.cases.option import Option
from repro.cases.options import OPTION, OPTIONS
from repro.cases.runner_facts import IN_BLOCKS, RUNNER_FACTS

# A step and the one before it.
Moment = tuple[Step, Step]
Pair = tuple[str, str]


def _as_it_is(setup: Setup, before: Step, after: Step) -> Moment:
    return before, after


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """holds: whether a step is in it, behind another step or none. fields: of the setups that have it. bring: a moment
    on such a setup that has it, made from any other; valid where that is. It may undo another state."""

    holds: Callable[[Setup, Step | None, Step], bool]
    fields: Mapping[str, Any] = field(default_factory=dict)
    bring: Callable[[Setup, Step, Step], Moment] = _as_it_is


def _of_setups(holds: Callable[[Setup], bool]) -> State:
    return State(holds=lambda setup, before, after: holds(setup))


def _of_option(option: Option) -> State:
    return State(holds=lambda setup, before, after: option.is_set(setup), fields=option.smallest)


def _batch(count: int, length: int) -> tuple[Request, ...]:
    return tuple(Request(slot=n, seq_len=length, data=n) for n in range(1, count + 1))


def _is_full(setup: Setup, before: Step | None, after: Step) -> bool:
    return [request.seq_len for request in after.requests] == [seq_len_max(setup)] * setup.max_bs


def _is_behind(setup: Setup, before: Step | None, after: Step) -> bool:
    """True if drafts reach behind the context."""
    room = RUNNER_FACTS[setup.runner].room
    return setup.overhang > 0 and any(room(setup, request.seq_len) > setup.context_len for request in after.requests)


def _longest_first(setup: Setup, before: Step, after: Step) -> Moment:
    first, *others = after.requests or _batch(1, 1)
    return before, replace(after, requests=(replace(first, seq_len=seq_len_max(setup)), *others))


def _is_mirrored(setup: Setup, step: Step) -> bool:
    return setup.mirrored and step.mirrored


def _other_hidden(setup: Setup, before: Step, after: Step) -> Moment:
    return replace(before, hidden="" if after.hidden else "last"), after


def _beyond(setup: Setup, before: Step, after: Step) -> Moment:
    if setup.dp_attention:
        return replace(before, elsewhere=setup.max_bs + 1), after
    return replace(before, requests=_batch(setup.max_bs + 1, 1)), after


# States of a setup, in the order in which a campaign reports the missing ones.
OF_SETUPS = {
    "a tree": _of_setups(lambda setup: setup.topk > 1),
    "pages of several tokens": _of_setups(lambda setup: setup.page_size > 1),
    "one draft step": _of_setups(lambda setup: setup.num_steps == 1 and RUNNER_FACTS[setup.runner].speculative),
    "EAGLE3": _of_setups(lambda setup: setup.algorithm == "EAGLE3"),
    "NEXTN": _of_setups(lambda setup: setup.algorithm == "NEXTN"),
    "STANDALONE": _of_setups(lambda setup: setup.algorithm == "STANDALONE"),
    "DFLASH": _of_setups(lambda setup: setup.algorithm == "DFLASH"),
    "DSPARK": _of_setups(lambda setup: setup.algorithm == "DSPARK"),
    "NGRAM": _of_setups(lambda setup: setup.algorithm == "NGRAM"),
    **{option.state: _of_option(option) for option in OPTIONS if option.state and not option.by_step},
}
# States of a step, or of the steps before it.
OF_STEPS = {
    "the largest bucket full of the longest requests": State(
        holds=_is_full,
        bring=lambda setup, before, after: (
            before,
            replace(after, requests=_batch(setup.max_bs, seq_len_max(setup)), elsewhere=0),
        ),
    ),
    "drafts behind the context": State(holds=_is_behind, fields=OPTION["overhang"].smallest, bring=_longest_first),
    "hidden states": State(
        holds=lambda setup, before, after: bool(after.hidden),
        fields=OPTION["returns_hidden"].smallest,
        bring=lambda setup, before, after: (before, replace(after, hidden="last")),
    ),
    "other hidden states": State(
        holds=lambda setup, before, after: before is not None and before.hidden != after.hidden, bring=_other_hidden
    ),
    "no lengths on the host": State(
        holds=lambda setup, before, after: not _is_mirrored(setup, after),
        bring=lambda setup, before, after: (before, replace(after, mirrored=False)),
    ),
    "lengths on the host again": State(
        holds=lambda setup, before, after: (
            before is not None and _is_mirrored(setup, after) and not _is_mirrored(setup, before)
        ),
        bring=lambda setup, before, after: (replace(before, mirrored=False), replace(after, mirrored=True)),
    ),
    "other KV slots": State(
        holds=lambda setup, before, after: before is not None and before.layout != after.layout,
        bring=lambda setup, before, after: (before, replace(after, layout=1 - min(1, before.layout))),
    ),
    "random drafts of greedy requests alone": State(
        holds=lambda setup, before, after: bool(after.requests) and all(request.greedy for request in after.requests),
        fields=OPTION["rejection"].smallest,
        bring=lambda setup, before, after: (
            before,
            replace(after, requests=tuple(replace(request, greedy=True) for request in after.requests or _batch(1, 1))),
        ),
    ),
    "a busier rank": State(
        holds=lambda setup, before, after: after.elsewhere > len(after.requests),
        fields=OPTION["dp_attention"].smallest,
        bring=lambda setup, before, after: (
            before,
            replace(after, requests=after.requests[: setup.max_bs - 1], elsewhere=setup.max_bs),
        ),
    ),
    "an idle batch beside a busy rank": State(
        holds=lambda setup, before, after: after.elsewhere > len(after.requests) == 0,
        fields=OPTION["dp_attention"].smallest,
        bring=lambda setup, before, after: (before, replace(after, requests=(), elsewhere=setup.max_bs)),
    ),
    "an idle batch": State(
        holds=lambda setup, before, after: not after.requests,
        bring=lambda setup, before, after: (
            before,
            replace(after, requests=(), elsewhere=setup.capture_bs[0] if setup.dp_attention else 0),
        ),
    ),
    "behind an idle batch": State(
        holds=lambda setup, before, after: before is not None and bool(after.requests) and not before.requests,
        bring=lambda setup, before, after: (
            replace(before, requests=()),
            replace(after, requests=after.requests or _batch(1, 1)),
        ),
    ),
    "behind a batch beyond all buckets": State(
        holds=lambda setup, before, after: before is not None and before.busiest > setup.max_bs,
        bring=_beyond,
    ),
}
STATES = {**OF_SETUPS, **OF_STEPS}


def states_of(setup: Setup, before: Step | None, after: Step, among: Collection[str] = STATES.keys()) -> frozenset[str]:
    """The names of the states, among these, that a step behind another one is in."""
    return frozenset(name for name in among if STATES[name].holds(setup, before, after))


def reached(case: Case, replayed: Collection[int]) -> set[str]:
    """The states of the steps in `replayed`. What came between two replays counts for the second."""
    moments = zip((None, *case.steps), case.steps, strict=False)
    states = (
        states_of(case.setup, before, after) for number, (before, after) in enumerate(moments) if number in replayed
    )
    return set().union(*states)


def is_drawn(setup: Setup) -> bool:
    """False for valid setups that campaigns leave out, as they would tell nothing: caps that kernels ignore, trees in
    windows of pages, which FlashAttention's backend refuses in every release, and what is wrong in every release
    whatever else a setup has (docs/findings)."""
    kernels, facts = BACKEND_FACTS[setup.backend], RUNNER_FACTS[setup.runner]
    has_caps = facts.capped and kernels.draws_caps
    if (setup.logit_cap and not has_caps) or (setup.deterministic and not is_invariant(setup.runner, setup.backend)):
        return False
    if setup.backend == "fa3" and setup.window and setup.topk > 1 and setup.page_size > 1:
        return False
    # A verify on Triton reads the tree's mask wrongly then (verify-window-deterministic-mask); a block has none.
    masked = setup.backend == "triton" and setup.algorithm not in IN_BLOCKS
    in_window = setup.window > 0 and setup.runner != "verify" and (masked or not facts.serves)
    return not (setup.deterministic and (setup.rejection or in_window or not family_facts(setup).plain))


def is_invariant(runner: str, backend: str) -> bool:
    """True if setups of this runner and backend are drawn with deterministic inference, too."""
    facts, kernels = RUNNER_FACTS[runner], BACKEND_FACTS[backend]
    return facts.capped and kernels.invariant and (facts.serves or kernels.draws_caps)


@lru_cache(maxsize=64)
def smallest(runner: str, backend: str) -> tuple[Setup, ...]:
    """The smallest setups of each kind that the runner has: chains and trees, pages of one token and of several, each
    algorithm, one draft step and two."""
    facts, kernels = RUNNER_FACTS[runner], BACKEND_FACTS[backend]
    pages = kernels.page_sizes[:2] or (1, 4)
    setups = (
        Setup(
            runner=runner,
            backend=backend,
            topk=topk,
            num_steps=num_steps,
            num_draft_tokens=num_steps + 1,
            capture_bs=(1, 3),
            slots=4,
            page_size=page_size,
            head_dim=max(kernels.drawn_head_dims),
            dtype=kernels.drawn_dtypes[0],
            algorithm=algorithm,
            mirrored=True,
        )
        for algorithm, topk, page_size, num_steps in itertools.product(facts.algorithms, (1, 2), pages, (1, 2))
    )
    return tuple(setup for setup in setups if can_be(setup))


@lru_cache(maxsize=4096)
def can_be(setup: Setup) -> bool:
    """True if campaigns draw such a setup."""
    return not problems(Case(setup=setup, steps=(Step(requests=_batch(1, 1)),))) and is_drawn(setup)


def with_states(setup: Setup, names: Collection[str]) -> Setup:
    """The setup with the fields of these states."""
    return replace(setup, **{key: value for name in names for key, value in STATES[name].fields.items()})


def brought(setup: Setup, moment: Moment, pair: Pair) -> Moment | None:
    """The moment with two states brought about, in this order; None if its step is in both by no replay."""
    for name in pair:
        moment = STATES[name].bring(setup, *moment)
    before, after = moment
    both = all(STATES[name].holds(setup, before, after) for name in pair)
    return moment if both and setup.replays(after.busiest, after.hidden) else None


def together(setup: Setup, first: str, second: str) -> Pair | None:
    """The order in which two states of steps are brought about for a replay that is in both, or None."""
    plain = plainest(setup)
    pairs = ((first, second), (second, first))
    return next((pair for pair in pairs if brought(setup, (plain, plain), pair)), None)


def comes_alone(setup: Setup, name: str) -> bool:
    """True if a step of a valid case on this setup can be in the state."""
    plain = plainest(setup)
    moment = brought(setup, (plain, plain), (name, name))
    return moment is not None and not problems(Case(setup=setup, steps=(plain, *moment)))


def plainest(setup: Setup) -> Step:
    """The smallest bucket full of short requests."""
    return Step(requests=_batch(setup.capture_bs[0], 1))


@lru_cache(maxsize=64)
def possible(runner: str, backend: str) -> frozenset[str]:
    """All states that campaigns draw for this runner and backend."""
    return frozenset(name for name in STATES if _can_meet(runner, backend, name, name))


@lru_cache(maxsize=64)
def possible_pairs(runner: str, backend: str) -> frozenset[frozenset[str]]:
    """All pairs of these that one replay can be in."""
    pairs = itertools.combinations(sorted(possible(runner, backend)), 2)
    return frozenset(frozenset(pair) for pair in pairs if _can_meet(runner, backend, *pair))


def _can_meet(runner: str, backend: str, first: str, second: str) -> bool:
    if not RUNNER_FACTS[runner].graph:
        return False
    alone = [with_states(setup, (first, second)) for setup in smallest(runner, backend)]
    # What a batch cannot do by itself it may beside another rank's: be idle without padding, say.
    ranked = (replace(setup, dp_attention=True) for setup in alone)
    return any(
        can_be(setup) and together(setup, first, second) and comes_alone(setup, first) and comes_alone(setup, second)
        for setup in (*alone, *ranked)
    )
