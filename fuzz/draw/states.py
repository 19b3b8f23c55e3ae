"""States that a replay can depend on besides its buckets: which of them a case's replays were in, and which of them a
runner can be in at all."""

from __future__ import annotations

import itertools
from collections.abc import Collection

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case, Setup, Step, seq_len_max
from repro.cases.runner_facts import RUNNER_FACTS


def reached(case: Case, replayed: Collection[int]) -> set[str]:
    """The states of the steps in `replayed`, by name. What came between two replays counts for the second."""
    found: set[str] = set()
    for number in sorted(replayed):
        found |= _of_setup(case.setup) | _of_step(case.setup, case.steps[number])
    for before, after in itertools.pairwise(range(len(case.steps))):
        if after in replayed:
            found |= _of_pair(case.setup, case.steps[before], case.steps[after])
    return found


def possible(runner: str, backend: str) -> frozenset[str]:
    """All states that campaigns draw for this runner and backend."""
    facts, kernels = RUNNER_FACTS[runner], BACKEND_FACTS[backend]
    if not facts.graph:
        return frozenset()
    windows = facts.windowed == "target" or (facts.windowed == "draft" and kernels.drafts_in_windows)
    states = {
        "the largest bucket full of the longest requests": True,
        "a window": windows,
        "a pool with sliding layers": facts.windowed == "target",
        "a logit cap": facts.capped and backend == "triton",
        "drafts behind the context": facts.overhangs,
        "no padding": facts.falls_back,
        "one draft step": facts.speculative and facts.num_steps_min == 1,
        "no lengths on the host": not facts.host_lengths,
        "lengths on the host again": not facts.host_lengths,
        "other KV slots": facts.relocates,
        "hidden states": facts.asks_hidden,
        "other hidden states": facts.asks_hidden,
        "positions in three dimensions": facts.mrope,
        "deterministic inference": facts.capped and backend == "triton",
        "another number of draft steps before": facts.adapts,
        "keys and values of eight bits": facts.quantises and kernels.quantises,
        "data-parallel attention": facts.rank_tokens is not None,
        "a busier rank": facts.rank_tokens is not None,
        "an idle batch beside a busy rank": facts.rank_tokens is not None,
        "random drafts": facts.rejects,
        "random drafts of greedy requests alone": facts.rejects,
        "an idle batch": facts.idles,
        "behind an idle batch": facts.idles,
        "behind a batch beyond all buckets": facts.falls_back,
    }
    return frozenset(name for name, can_be in states.items() if can_be)


def _of_setup(setup: Setup) -> set[str]:
    states = {
        "a window": bool(setup.window),
        "a pool with sliding layers": setup.swa,
        "a logit cap": bool(setup.logit_cap),
        "no padding": not setup.padded,
        "positions in three dimensions": setup.mrope,
        "deterministic inference": setup.deterministic,
        "another number of draft steps before": bool(setup.adaptive),
        "keys and values of eight bits": bool(setup.kv_dtype),
        "data-parallel attention": setup.dp_attention,
        "random drafts": setup.rejection,
        "one draft step": setup.num_steps == 1,
    }
    return {name for name, holds in states.items() if holds}


def _of_step(setup: Setup, step: Step) -> set[str]:
    longest = seq_len_max(setup)
    lengths = [request.seq_len for request in step.requests]
    room = RUNNER_FACTS[setup.runner].room
    states = {
        "the largest bucket full of the longest requests": lengths == [longest] * setup.max_bs,
        "drafts behind the context": any(room(setup, length) > setup.context_len for length in lengths),
        "no lengths on the host": not _is_mirrored(setup, step),
        "an idle batch": not lengths,
        "a busier rank": step.elsewhere > len(lengths),
        "an idle batch beside a busy rank": step.elsewhere > len(lengths) == 0,
        "hidden states": bool(step.hidden),
        "random drafts of greedy requests alone": bool(lengths) and all(request.greedy for request in step.requests),
    }
    return {name for name, holds in states.items() if holds}


def _of_pair(setup: Setup, before: Step, after: Step) -> set[str]:
    states = {
        "lengths on the host again": _is_mirrored(setup, after) and not _is_mirrored(setup, before),
        "other hidden states": before.hidden != after.hidden,
        "other KV slots": before.layout != after.layout,
        "behind an idle batch": bool(after.requests) and not before.requests,
        "behind a batch beyond all buckets": before.busiest > setup.max_bs,
    }
    return {name for name, holds in states.items() if holds}


def _is_mirrored(setup: Setup, step: Step) -> bool:
    return setup.mirrored and step.mirrored
