"""A case: a Setup that is captured once and a sequence of Steps that are replayed on it.

A Case names no release and no machine; the same case is meant to be run on every target.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.families import is_recurrent
from repro.cases.layout import row_pages, row_tokens
from repro.cases.rows.bounds import BACKENDS as BACKENDS
from repro.cases.rows.bounds import RUNNERS as RUNNERS
from repro.cases.runner_facts import RUNNER_FACTS
from repro.cases.setup import Setup as Setup
from repro.cases.setup_problems import setup_problems as setup_problems
from repro.cases.updates import UPDATE, update_problems

ENGINES = ("emulated", "cuda", "toy")
STEPS_MAX = 64
LAYOUTS_MAX = 1000
# None, those of each request's last token, those of all tokens.
HIDDEN = ("", "last", "full")
DATA_MAX = 2**31 - 1
# Iterations of an event loop between two groups of arrivals.
WAIT_MAX = 64
# Running requests give up their KV slots, the oldest request is aborted, the cache is flushed, weights are updated.
HAPPENINGS = ("", "retract", "abort", "flush", UPDATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One row of a batch: its request slot, the tokens already in its KV cache, and `data`, the
    small integer from which its tensors are filled (see payload.py). accepted: how many drafts the verify before this
    call accepted, for runners that are told (runner_facts.py); 0 for all others. greedy: whether it samples its best
    token always, where drafts are drawn at random. further: of a runner that serves, where seq_len is the length of the
    prompt, the tokens that it asks for behind the first one."""

    slot: int
    seq_len: int
    data: int
    accepted: int = 0
    greedy: bool = False
    further: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of the runner with a batch of requests, in row order; without any it is idle, as a rank's is that has
    none under data-parallel attention. mirrored: as of a Setup, of this call alone. layout: by which layout request
    slots own KV slots; by another one all have been given up and given to others. hidden: which hidden states the batch
    asks for besides its logits (HIDDEN). elsewhere: requests of the other rank, where there is one.

    Of a runner that serves, a step is no call: its requests arrive together, `wait` iterations of the event loop behind
    those of the step before. happens: to the scheduler just before (HAPPENINGS)."""

    requests: tuple[Request, ...]
    mirrored: bool = True
    layout: int = 0
    hidden: str = ""
    elsewhere: int = 0
    wait: int = 0
    happens: str = ""

    @property
    def busiest(self) -> int:
        """The requests of the busiest rank, for which a graph is chosen."""
        return max(len(self.requests), self.elsewhere)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A setup and the sequence of calls made on it. Stale state needs at least two."""

    setup: Setup
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a run: a release of sglang or a checkout's import path, and an engine.

    Its text form is RELEASE/ENGINE (0.5.13/emulated) or PATH@ENGINE (/src/sglang/python@cuda).
    """

    sglang: str
    engine: str

    @property
    def is_checkout(self) -> bool:
        return "/" in self.sglang

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read the text form. ValueError, naming what is wrong, if it is not one."""
        separator = "@" if "@" in text else "/"
        sglang, separated, engine = text.rpartition(separator)
        if not separated or not sglang or engine not in ENGINES:
            raise ValueError(
                f"target {text!r}: expected RELEASE/ENGINE or PATH@ENGINE, with an engine of {', '.join(ENGINES)}"
            )
        if separator == "@" and "/" not in sglang:
            raise ValueError(f"target {text!r}: a checkout is named by a path, a release as {sglang}/{engine}")
        if separator == "/" and "/" in sglang:
            raise ValueError(f"target {text!r}: a checkout is written PATH@ENGINE")
        return cls(sglang, engine)

    def __str__(self) -> str:
        return f"{self.sglang}@{self.engine}" if self.is_checkout else f"{self.sglang}/{self.engine}"


def engine_refuses(setup: Setup, engine: str) -> str:
    """Why this engine cannot run the setup's backend, in whichever release; "" if it can."""
    in_triton = is_recurrent(setup) or setup.enable_lora  # their states, or their adapters
    kernels, others = BACKEND_FACTS[setup.backend], BACKEND_FACTS["triton" if in_triton else setup.backend]
    if setup.deterministic and engine == "emulated" and not kernels.invariant:
        return f"the stand-in for {setup.backend} knows nothing of deterministic inference"
    if engine not in kernels.engines:
        machine = "a GPU of SM100" if kernels.on_sm100 else "a CPU"
        return f"the {setup.backend} backend runs on {machine}, not on the {engine} engine"
    return {**kernels.emulation_lacks, **others.emulation_lacks}.get(setup.dtype, "") if engine == "emulated" else ""


def problems(case: Case) -> list[str]:
    """Why this case is not valid; empty if it is. Generator, loader and shrinker share it.

    Total: never raises on well-typed values, however wrong they are.
    """
    setup = case.setup
    texts = setup_problems(setup)
    if texts:
        return texts
    if not 1 <= len(case.steps) <= STEPS_MAX:
        texts.append(f"a case has 1..{STEPS_MAX} steps, not {len(case.steps)}")
    if not any(step.requests for step in case.steps):
        texts.append("no step has a request")
    if RUNNER_FACTS[setup.runner].host_lengths and not all(step.mirrored for step in case.steps):
        texts.append(f"the {setup.runner} runner's batches have lengths on the host")
    seq_len, accepted = seq_len_max(setup), accepted_max(setup)
    for number, step in enumerate(case.steps):
        texts += (f"step {number}: {text}" for text in _step_problems(setup, step))
        for row, request in enumerate(step.requests):
            reasons = _request_problems(setup, request, seq_len, accepted)
            texts += (f"step {number} request {row}: {text}" for text in reasons)
    return texts


def _step_problems(setup: Setup, step: Step) -> Iterator[str]:
    facts = RUNNER_FACTS[setup.runner]
    layouts = LAYOUTS_MAX if facts.relocates else 0
    if step.hidden not in (HIDDEN if facts.asks_hidden else ("",)):
        yield f"capture_hidden_mode {step.hidden!r} is nothing that the {setup.runner} runner is asked for"
    if not 0 <= step.layout <= layouts:
        yield f"layout {step.layout} is outside 0..{layouts}"
    yield from _serving_problems(setup, step)
    if not 0 <= step.elsewhere <= elsewhere_max(setup):
        yield f"{step.elsewhere} requests on another rank"
    fewest = 0 if facts.idles or step.happens or (facts.serves and setup.dp_attention) else 1
    if not fewest <= len(step.requests) <= requests_max(setup):
        yield f"{len(step.requests)} requests do not fit buckets {setup.capture_bs}"
    used = [request.slot for request in step.requests]
    if len(set(used)) != len(used):
        yield f"a slot is used twice in {used}"


def _request_problems(setup: Setup, request: Request, seq_len: int, accepted: int) -> Iterator[str]:
    """seq_len, accepted: the most of each that the setup has room for."""
    for name, value, least, most in (
        ("req_pool_idx", request.slot, 1, setup.slots),
        ("seq_len", request.seq_len, 1, seq_len),
        ("data", request.data, 0, DATA_MAX),
        ("num_correct_drafts", request.accepted, 0, accepted),
    ):
        if not least <= value <= most:
            yield f"{name} {value} is outside {least}..{most}"
    if request.greedy and not setup.rejection:
        yield "greedy means something only where drafts are drawn at random"


def _serving_problems(setup: Setup, step: Step) -> list[str]:
    """Why a step is no group of arrivals, or says something of arrivals where there are none."""
    further = [request.further for request in step.requests]
    if not RUNNER_FACTS[setup.runner].serves:
        return (
            ["arrivals mean something only to a runner that serves"]
            if step.wait or step.happens or any(further)
            else []
        )
    texts = [] if 0 <= step.wait <= WAIT_MAX else [f"wait {step.wait} is outside 0..{WAIT_MAX}"]
    texts += [] if step.happens in HAPPENINGS else [f"happens {step.happens!r} is none of {HAPPENINGS}"]
    texts += update_problems(setup) if step.happens == UPDATE else ()
    most = seq_len_max(setup)
    return texts + [
        f"request {row}: {request.seq_len} and {request.further} further tokens are outside 0..{most}"
        for row, request in enumerate(step.requests)
        if request.further < 0 or request.seq_len + request.further > most
    ]


def requests_max(setup: Setup) -> int:
    """The most requests of a batch: more than a graph holds only where eager takes over."""
    return setup.slots if RUNNER_FACTS[setup.runner].falls_back else setup.max_bs


def elsewhere_max(setup: Setup) -> int:
    """The most requests of another rank: no more than this one may have, and none where there is no other."""
    return requests_max(setup) if setup.dp_attention else 0


def accepted_max(setup: Setup) -> int:
    """The most drafts that a verify can accept, where that matters: one a level of the tree, whose root is no draft."""
    matters = RUNNER_FACTS[setup.runner].accepts or (setup.runner == "verify" and is_recurrent(setup))
    return min(setup.num_steps, setup.num_draft_tokens - 1) if matters else 0


@functools.lru_cache(maxsize=1024)
def seq_len_max(setup: Setup) -> int:
    """The longest prefix, in tokens, such that its drafts and those of every shorter one fit context_len and overhang.

    Not the longest that fits at all: with branches on pages of their own, a prefix that ends late in its page
    needs more room than a longer one that ends early. Cached, as every validity check asks for it.
    """
    limit = min(row_tokens(setup), row_pages(setup) * setup.page_size)
    room = RUNNER_FACTS[setup.runner].room
    longest = setup.context_len - 1 if setup.overhang else limit
    fits = (room(setup, n) <= limit for n in range(1, longest + 1))
    return sum(1 for _ in itertools.takewhile(bool, fits))
