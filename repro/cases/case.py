"""What is run: a Setup that is captured once and a sequence of Steps that are replayed on it.

A Case names no release and no machine; the same case is meant to be run on every target.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.layout import row_pages, row_tokens
from repro.cases.runner_facts import ALL_ALGORITHMS, LATENT, RUNNER_FACTS

RUNNERS = tuple(RUNNER_FACTS)
BACKENDS = tuple(BACKEND_FACTS)
ALGORITHMS = ALL_ALGORITHMS
ENGINES = ("emulated", "cuda", "toy")
DTYPES = ("float32", "float16", "bfloat16")
# Of a KV cache whose values are kept in fewer bits than the model's, as sglang names them.
KV_DTYPES = ("fp8_e4m3", "fp8_e5m2")
# Triton multiplies blocks of them by no less than twice as many.
KV_DTYPE_ABOVE = 16

# Bounds of the domain. They keep one case small enough to replay in about a second under the
# interpreter and to travel as a short text; sglang itself allows more.
TOPK_MAX = 10
NUM_STEPS_MAX = 20
BATCH_MAX = 64
SLOTS_MAX = 256
CONTEXT_MAX = 8192
VOCAB_MAX = 1 << 17
HIDDEN_MAX = 4096
STEPS_MAX = 64
LOGIT_CAP_MAX = 100
LAYOUTS_MAX = 1000
# None, those of each request's last token, those of all tokens.
HIDDEN = ("", "last", "full")
SPARE_POSITIONS = 4  # of a row of req_to_token, behind context and draft tokens, in every release
PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DATA_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that is fixed before the graphs are captured.

    runner: which graph runner is driven (RUNNERS). backend: its attention backend (BACKENDS).
    topk, num_steps, num_draft_tokens: sglang's speculative_eagle_topk, speculative_num_steps and
    speculative_num_draft_tokens. capture_bs: the batch-size buckets, in requests, rising.
    slots: request slots; a request uses a row 1..slots of req_to_token, row 0 is the padding row.
    context_len: tokens a request may reach, drafts included. kv_splits: the Triton backend's
    triton_attention_num_kv_splits. algorithm: sglang's speculative_algorithm (ALGORITHMS), which says of what kind
    target and draft model are. window: tokens before its own that a token of the target, or of a runner's draft model,
    attends to, 0 for all. swa: whether sliding layers have KV slots of their own, and the target a full layer behind
    the sliding one. logit_cap: where attention's scores level off, 0 for nowhere.
    deterministic: whether sglang is to give the same whatever the batch (enable_deterministic_inference).
    returns_hidden: whether graphs are captured with hidden states (enable_return_hidden_states).
    overhang: how many positions behind context_len drafts and trees may take, as sglang leaves room for them; prefixes
    end before context_len. padded: False where sglang is to replay a graph only for batches as large as a bucket.
    mirrored: whether a batch's lengths and their sum come along on the host, too; False asks for batches without, where
    backend and release allow. mrope: whether the draft model turns queries and keys by positions in three dimensions
    (M-RoPE), as those of models that see images do. rejection: whether drafts are drawn at random, for sglang to accept
    by rejection sampling (speculative_use_rejection_sampling). adaptive: with how many draft steps a worker starts that
    changes their number while it serves (speculative_adaptive), here to num_steps; 0 for one that does not.
    kv_dtype: in what keys and values are kept (kv_cache_dtype, KV_DTYPES); empty: in the model's dtype.
    dp_attention: whether the runner's is the first of two ranks under data-parallel attention (enable_dp_attention), of
    which the busiest says what graph both replay.
    """

    runner: str
    backend: str = "triton"
    topk: int
    num_steps: int
    num_draft_tokens: int
    capture_bs: tuple[int, ...]
    slots: int
    page_size: int = 1
    context_len: int = 64
    vocab_size: int = 128
    hidden_size: int = 32
    num_heads: int = 2
    num_kv_heads: int = 2
    head_dim: int = 16
    dtype: str = "float32"
    kv_splits: int = 1
    algorithm: str = "EAGLE"
    window: int = 0
    swa: bool = False
    logit_cap: int = 0
    deterministic: bool = False
    returns_hidden: bool = False
    overhang: int = 0
    padded: bool = True
    mirrored: bool = True
    mrope: bool = False
    rejection: bool = False
    adaptive: int = 0
    kv_dtype: str = ""
    dp_attention: bool = False

    @property
    def max_bs(self) -> int:
        """The largest bucket, in requests."""
        return self.capture_bs[-1]

    def bucket(self, batch: int) -> int:
        """The smallest captured batch size that holds `batch` requests. ValueError if none does."""
        for bs in self.capture_bs:
            if bs >= batch:
                return bs
        raise ValueError(f"a batch of {batch} fits no bucket of {self.capture_bs}")

    def replays(self, batch: int, hidden: str = "") -> bool:
        """Whether a graph is to be replayed for so many requests, which ask for these hidden states; eager runs all
        others. Graphs without hidden states hold no batch that asks for some."""
        fits = batch <= self.max_bs and (self.padded or batch in self.capture_bs)
        return fits and (self.returns_hidden or not hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One row of a batch: its request slot, the tokens already in its KV cache, and `data`, the
    small integer from which its tensors are filled (see payload.py). accepted: how many drafts the verify before this
    call accepted, for runners that are told (runner_facts.py); 0 for all others. greedy: whether it samples its best
    token always, where drafts are drawn at random."""

    slot: int
    seq_len: int
    data: int
    accepted: int = 0
    greedy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of the runner with a batch of requests, in row order; without any it is idle, as a rank's is that has
    none under data-parallel attention. mirrored: as of a Setup, of this call alone. layout: by which layout request
    slots own KV slots; by another one all have been given up and given to others. hidden: which hidden states the batch
    asks for besides its logits (HIDDEN). elsewhere: requests of the other rank, where there is one."""

    requests: tuple[Request, ...]
    mirrored: bool = True
    layout: int = 0
    hidden: str = ""
    elsewhere: int = 0

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
    """Where a case is run: a release of sglang or a checkout's import path, and an engine.

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


def setup_problems(setup: Setup) -> list[str]:
    """Why this setup cannot be captured; empty if it can. Never raises on well-typed values."""
    texts = []

    def need(holds: bool, text: str) -> None:
        if not holds:
            texts.append(f"setup: {text}")

    def within(name: str, low: int, high: int) -> None:
        value = getattr(setup, name)
        need(low <= value <= high, f"{name} {value} is outside {low}..{high}")

    need(setup.runner in RUNNERS, f"runner {setup.runner!r} is not one of {', '.join(RUNNERS)}")
    need(setup.backend in BACKENDS, f"backend {setup.backend!r} is not one of {', '.join(BACKENDS)}")
    need(setup.dtype in DTYPES, f"dtype {setup.dtype!r} is not one of {', '.join(DTYPES)}")
    need(setup.page_size in PAGE_SIZES, f"page_size {setup.page_size} is not one of {PAGE_SIZES}")
    within("topk", 1, TOPK_MAX)
    domain = RUNNER_FACTS.get(setup.runner, RUNNER_FACTS["draft"])
    kernels = BACKEND_FACTS.get(setup.backend, BACKEND_FACTS["triton"])
    need(setup.backend in domain.backends, f"the {setup.runner} runner has no {setup.backend} backend")
    need(setup.algorithm in ALGORITHMS, f"algorithm {setup.algorithm!r} is not one of {', '.join(ALGORITHMS)}")
    need(setup.algorithm in domain.algorithms, f"the {setup.runner} runner has no {setup.algorithm} algorithm")
    needs_latent = setup.algorithm in LATENT
    need(not needs_latent or kernels.latent, f"the {setup.algorithm} algorithm has no {setup.backend} backend")
    within("num_steps", domain.num_steps_min, domain.num_steps_max)
    within("window", 0, CONTEXT_MAX)
    need(bool(domain.windowed) or not setup.window, f"the {setup.runner} runner has no window")
    need(not (needs_latent and setup.window), f"the {setup.algorithm} algorithm has no window")
    drafted = domain.windowed == "draft" and setup.window
    drafts = setup.num_steps > 1 and not kernels.drafts_in_windows
    # A worker that starts with several draft steps has the backend for them, whatever the runner's own number is.
    starts = setup.adaptive > 1 and not kernels.starts_in_windows
    need(not drafted or not (drafts or starts), f"{setup.backend} drafts in no window")
    needs_target = domain.windowed == "target" and setup.window
    need(bool(needs_target) or not setup.swa, "sliding layers have KV slots of their own in a target with a window")
    within("logit_cap", 0, LOGIT_CAP_MAX)
    need(domain.capped or not setup.logit_cap, f"the {setup.runner} runner has no logit cap")
    need(not (needs_latent and setup.logit_cap), f"the {setup.algorithm} algorithm has no logit cap")
    need(domain.graph or not setup.deterministic, f"the {setup.runner} runner has no deterministic inference")
    need(domain.asks_hidden or not setup.returns_hidden, f"the {setup.runner} runner's hidden states are not asked for")
    within("overhang", 0, overhang_max(setup))
    need(domain.overhangs or not setup.overhang, f"the {setup.runner} runner has nothing behind its context")
    need(domain.falls_back or setup.padded, f"the {setup.runner} runner has no batches that it leaves to eager")
    need(setup.mirrored or not domain.host_lengths, f"the {setup.runner} runner's batches have lengths on the host")
    need(domain.mrope or not setup.mrope, f"the {setup.runner} runner's positions have one dimension")
    need(
        setup.algorithm == "EAGLE3" or not setup.mrope,
        f"the {setup.algorithm} algorithm's positions have one dimension",
    )
    need(domain.rejects or not setup.rejection, f"the {setup.runner} runner draws no drafts at random")
    need(setup.topk == 1 or not setup.rejection, "drafts are drawn at random in chains, with topk 1")
    need(setup.algorithm != "EAGLE3" or not setup.rejection, "drafts are drawn at random from the target's vocabulary")
    within("adaptive", 0, domain.num_steps_max)
    need(domain.adapts or not setup.adaptive, f"the {setup.runner} runner's number of draft steps stays")
    need(setup.adaptive != setup.num_steps, f"adaptive {setup.adaptive} is num_steps: nothing changes")
    need(setup.topk == 1 or not setup.adaptive, "the number of draft steps changes in chains, with topk 1")
    need(not (needs_latent and setup.adaptive), f"the {setup.algorithm} algorithm's number of draft steps stays")
    need(setup.kv_dtype in ("", *KV_DTYPES), f"kv_dtype {setup.kv_dtype!r} is not one of {', '.join(KV_DTYPES)}")
    need(kernels.quantises or not setup.kv_dtype, f"keys and values of fewer bits are not driven over {setup.backend}")
    need(domain.quantises or not setup.kv_dtype, f"the {setup.runner} runner's keys and values are the model's")
    need(not (needs_latent and setup.kv_dtype), f"the {setup.algorithm} algorithm's keys and values are the model's")
    ranked = domain.rank_tokens is not None
    need(ranked or not setup.dp_attention, f"the {setup.runner} runner is not driven under data-parallel attention")
    need(domain.speculative or setup.topk == setup.num_steps == 1, "without drafts topk and num_steps are 1")
    need(domain.branches or setup.topk == 1, f"the {setup.runner} runner has topk 1 only")
    need(not domain.trees or setup.topk > 1, f"the {setup.runner} runner has topk above 1 only")
    within("slots", 1, SLOTS_MAX)
    within("context_len", 8, CONTEXT_MAX)
    within("vocab_size", 16, VOCAB_MAX)
    within("hidden_size", 8, HIDDEN_MAX)
    within("num_heads", 1, 64)
    within("num_kv_heads", 1, 64)
    within("head_dim", 8, 256)
    within("kv_splits", 1, 16)
    bs = setup.capture_bs
    need(bool(bs) and all(a < b for a, b in itertools.pairwise(bs)), f"capture_bs {bs} does not rise")
    need(all(1 <= b <= BATCH_MAX for b in bs), f"capture_bs {bs} leaves 1..{BATCH_MAX}")
    if texts:
        return texts
    need(setup.num_heads % setup.num_kv_heads == 0, "num_heads is not a multiple of num_kv_heads")
    # transformers refuses such a Llama configuration.
    need(setup.hidden_size % setup.num_heads == 0, "hidden_size is not a multiple of num_heads")
    need(setup.head_dim % 8 == 0, "head_dim is not a multiple of 8")
    need(not setup.kv_dtype or setup.head_dim > KV_DTYPE_ABOVE, f"{setup.kv_dtype} needs heads above {KV_DTYPE_ABOVE}")
    need(setup.dtype not in kernels.without_dtypes, f"{setup.backend} has no {setup.dtype} kernels")
    if kernels.head_dims is not None:
        need(setup.head_dim in kernels.head_dims, f"head_dim is not one of {setup.backend}'s {kernels.head_dims}")
    need(setup.vocab_size >= setup.topk, "vocab_size is below topk")
    need(setup.max_bs <= setup.slots, f"the largest bucket {setup.max_bs} exceeds {setup.slots} slots")
    if setup.topk == 1:
        # sglang insists: without branches the tree is the chain itself.
        need(setup.num_draft_tokens == setup.num_steps + 1, "topk 1 needs num_draft_tokens == num_steps + 1")
    # The tree holds topk + (steps - 1) * topk**2 candidates, of which num_draft_tokens - 1 are kept.
    candidates = setup.topk + (setup.num_steps - 1) * setup.topk**2
    need(
        2 <= setup.num_draft_tokens <= candidates + 1,
        f"num_draft_tokens {setup.num_draft_tokens} is outside 2..{candidates + 1}",
    )
    need(domain.room(setup, 1) <= setup.context_len, "context_len is too small for one token and its drafts")
    return texts


def overhang_max(setup: Setup) -> int:
    """How many positions every release leaves behind the context; up to 0.5.12.post1 for the draft tokens that a worker
    starts with."""
    started = setup.adaptive + 1 if setup.adaptive else setup.num_draft_tokens
    return SPARE_POSITIONS + min(started, setup.num_draft_tokens)


def engine_refuses(setup: Setup, engine: str) -> str:
    """Why this engine cannot run the setup's backend, in whichever release; "" if it can."""
    kernels = BACKEND_FACTS[setup.backend]
    if setup.deterministic and engine == "emulated" and setup.backend != "triton":
        return f"the stand-in for {setup.backend} knows nothing of deterministic inference"
    if engine not in kernels.engines:
        return f"the {setup.backend} backend runs on a CPU, not on the {engine} engine"
    return kernels.emulation_lacks.get(setup.dtype, "") if engine == "emulated" else ""


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
    limit = seq_len_max(setup)
    most = accepted_max(setup)
    layouts = LAYOUTS_MAX if RUNNER_FACTS[setup.runner].relocates else 0
    for number, step in enumerate(case.steps):
        place = f"step {number}"
        if step.hidden not in (HIDDEN if RUNNER_FACTS[setup.runner].asks_hidden else ("",)):
            texts.append(f"{place}: hidden {step.hidden!r} is nothing that the {setup.runner} runner is asked for")
        if not 0 <= step.layout <= layouts:
            texts.append(f"{place}: layout {step.layout} is outside 0..{layouts}")
        fewest = 0 if RUNNER_FACTS[setup.runner].idles else 1
        most_requests = requests_max(setup)
        if not 0 <= step.elsewhere <= elsewhere_max(setup):
            texts.append(f"{place}: {step.elsewhere} requests on another rank")
        if not fewest <= len(step.requests) <= most_requests:
            texts.append(f"{place}: {len(step.requests)} requests do not fit buckets {setup.capture_bs}")
        used = [request.slot for request in step.requests]
        if len(set(used)) != len(used):
            texts.append(f"{place}: a slot is used twice in {used}")
        for row, request in enumerate(step.requests):
            where = f"{place} request {row}"
            if not 1 <= request.slot <= setup.slots:
                texts.append(f"{where}: slot {request.slot} is outside 1..{setup.slots}")
            if not 1 <= request.seq_len <= limit:
                texts.append(f"{where}: seq_len {request.seq_len} is outside 1..{limit}")
            if not 0 <= request.data <= DATA_MAX:
                texts.append(f"{where}: data {request.data} is outside 0..{DATA_MAX}")
            if not 0 <= request.accepted <= most:
                texts.append(f"{where}: accepted {request.accepted} is outside 0..{most}")
            if request.greedy and not setup.rejection:
                texts.append(f"{where}: greedy means something only where drafts are drawn at random")
    return texts


def requests_max(setup: Setup) -> int:
    """The most requests of a batch: more than a graph holds only where eager takes over."""
    return setup.slots if RUNNER_FACTS[setup.runner].falls_back else setup.max_bs


def elsewhere_max(setup: Setup) -> int:
    """The most requests of another rank: no more than this one may have, and none where there is no other."""
    return requests_max(setup) if setup.dp_attention else 0


def accepted_max(setup: Setup) -> int:
    """The most drafts that a verify can accept, where that matters: one a level of the tree, whose root is no draft."""
    return min(setup.num_steps, setup.num_draft_tokens - 1) if RUNNER_FACTS[setup.runner].accepts else 0


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
