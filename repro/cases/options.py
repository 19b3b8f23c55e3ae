"""The options of a setup: one row an option, read by validity, files, the order on cases, drawing and words.

A new option is a field of Setup, a row here, what runners and backends say of it (runner_facts.py, backend_facts.py),
and what an adapter does differently.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from repro.cases.backend_facts import BACKEND_FACTS, BackendFacts
from repro.cases.option import DRAFT, HARNESS, TARGET, Need, Option
from repro.cases.runner_facts import ALL_ALGORITHMS, LATENT, RUNNER_FACTS, RunnerFacts
from repro.cases.serving_options import SERVING
from repro.cases.setup import Setup, overhang_max

RUNNERS = tuple(RUNNER_FACTS)
BACKENDS = tuple(BACKEND_FACTS)
DTYPES = ("float32", "float16", "bfloat16")
# Types of a KV cache with fewer bits than the model's, as sglang names them.
KV_DTYPES = ("fp8_e4m3", "fp8_e5m2")
# Triton multiplies blocks of them by no less than twice as many.
KV_DTYPE_ABOVE = 16
PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Bounds of the domain: a case replays in about a second and travels as a short text; sglang itself allows more.
BATCH_MAX = 256
SLOTS_MAX = 256
CONTEXT_MAX = 8192


def _plain(text: str) -> Need:
    """No latent attention."""
    return Need(lambda s, r, b: s.algorithm not in LATENT, "the {s.algorithm} algorithm" + text)


def _drafts_in_window(s: Setup, r: RunnerFacts, b: BackendFacts) -> bool:
    # A worker that starts with several draft steps has the backend for them, whatever the runner's own number is.
    several = s.num_steps > 1 and not b.drafts_in_windows
    starts = s.adaptive > 1 and not b.starts_in_windows
    return r.windowed != "draft" or not (several or starts)


OPTIONS: tuple[Option, ...] = (
    Option(
        field="runner",
        name="runner",
        part=HARNESS,
        meaning="the graph runner that is driven",
        choices=RUNNERS,
        needs=(Need(lambda s, r, b: s.backend in r.backends, "the {s.runner} runner has no {s.backend} backend"),),
    ),
    Option(
        field="topk",
        name="speculative_eagle_topk",
        meaning="branches of each draft step",
        bounds=(1, 10),
        drawn=(2, 3, 4, 8),
        needs=(
            Need(lambda s, r, b: r.branches or s.topk == 1, "the {s.runner} runner has topk 1 only"),
            Need(lambda s, r, b: not r.trees or s.topk > 1, "the {s.runner} runner has topk above 1 only"),
        ),
    ),
    Option(
        field="num_steps",
        name="speculative_num_steps",
        meaning="draft steps of a round",
        drawn=(1, 2, 3, 4, 6),
        bounds=(1, 20),
        needs=(
            Need(
                lambda s, r, b: r.num_steps_min <= s.num_steps <= r.num_steps_max,
                "num_steps {s.num_steps} is outside {r.num_steps_min}..{r.num_steps_max}",
            ),
            Need(
                lambda s, r, b: r.speculative or s.topk == s.num_steps == 1, "without drafts topk and num_steps are 1"
            ),
        ),
    ),
    Option(
        field="num_draft_tokens",
        name="speculative_num_draft_tokens",
        meaning="tokens that a round verifies, the root of the tree included",
        drawn=(2, 3, 4, 5, 8, 16),
    ),
    Option(
        field="capture_bs",
        name="cuda_graph_bs_decode",
        older=("cuda_graph_bs",),
        meaning="the batch sizes for which graphs are captured, in requests, rising",
        needs=(
            Need(
                lambda s, r, b: bool(s.capture_bs) and all(x < y for x, y in itertools.pairwise(s.capture_bs)),
                "capture_bs {s.capture_bs} does not rise",
            ),
            Need(
                lambda s, r, b: all(1 <= bs <= BATCH_MAX for bs in s.capture_bs),
                f"capture_bs {{s.capture_bs}} leaves 1..{BATCH_MAX}",
            ),
        ),
    ),
    Option(
        field="slots",
        name="max_running_requests",
        meaning="request slots: rows 1 and up of req_to_token, whose row 0 is the padding row",
        bounds=(1, SLOTS_MAX),
    ),
    Option(
        field="page_size",
        name="page_size",
        meaning="tokens of a page of the KV cache",
        choices=PAGE_SIZES,
        drawn=PAGE_SIZES[1:],
    ),
    Option(
        field="context_len",
        name="context_length",
        meaning="tokens that a request may reach, drafts included",
        bounds=(8, CONTEXT_MAX),
    ),
    Option(
        field="kv_splits",
        name="triton_attention_num_kv_splits",
        meaning="parts in which Triton's attention reads a prefix",
        bounds=(1, 16),
        # Each split is one more program to interpret in every attention launch.
        drawn=(1, 1, 1, 2),
    ),
    Option(
        field="window",
        name="sliding_window",
        part=TARGET,
        meaning="tokens before its own that a token of the target, or of a draft runner's model, attends to; 0: all",
        bounds=(0, CONTEXT_MAX),
        if_set=(
            Need(lambda s, r, b: bool(r.windowed), "the {s.runner} runner has no window"),
            _plain(" has no window"),
            Need(_drafts_in_window, "{s.backend} drafts in no window"),
        ),
        # Shorter than most prefixes, about as long, longer than some.
        drawn=(1, 7, 7, 16, 31),
        later=True,
        words="a window of {0} tokens",
        state="a window",
        example={"window": 7},
        resets=("window", "swa"),
    ),
    Option(
        field="swa",
        name="layer_types",
        part=TARGET,
        meaning="sliding layers have KV slots of their own, and the target a full layer after the sliding one",
        if_set=(
            Need(
                lambda s, r, b: r.windowed == "target" and s.window > 0,
                "sliding layers have KV slots of their own in a target with a window",
            ),
        ),
        drawn=(True,),
        later=True,
        words="KV slots of their own for sliding layers",
        state="a pool with sliding layers",
        example={"window": 7, "swa": True},
    ),
    Option(
        field="logit_cap",
        name="attn_logit_softcapping",
        part=TARGET,
        meaning="where attention's scores level off; 0: nowhere",
        bounds=(0, 100),
        if_set=(
            Need(lambda s, r, b: r.capped, "the {s.runner} runner has no logit cap"),
            _plain(" has no logit cap"),
        ),
        # Below, about and above the size of most scores.
        drawn=(1, 5, 30),
        later=True,
        words="a logit cap of {0}",
        state="a logit cap",
        example={"logit_cap": 5},
    ),
    Option(
        field="padded",
        name="disable_cuda_graph_padding",
        reversed=True,
        meaning="a graph also runs batches smaller than its bucket (the reverse of sglang's flag)",
        if_set=(Need(lambda s, r, b: r.falls_back, "the {s.runner} runner has no batches that it leaves to eager"),),
        drawn=(False,),
        later=True,
        words="no batch padded",
        state="no padding",
    ),
    Option(
        field="mrope",
        name="mrope_section",
        part=DRAFT,
        meaning="the draft model rotates by positions in three dimensions, as models that see images do",
        if_set=(
            Need(lambda s, r, b: r.mrope, "the {s.runner} runner's positions have one dimension"),
            Need(lambda s, r, b: s.algorithm == "EAGLE3", "the {s.algorithm} algorithm's positions have one dimension"),
        ),
        drawn=(True,),
        later=True,
        words="positions in three dimensions",
        state="positions in three dimensions",
    ),
    Option(
        field="deterministic",
        name="enable_deterministic_inference",
        meaning="results do not depend on the batch",
        if_set=(Need(lambda s, r, b: r.graph, "the {s.runner} runner has no deterministic inference"),),
        drawn=(True,),
        later=True,
        words="deterministic inference",
        state="deterministic inference",
    ),
    Option(
        field="adaptive",
        name="speculative_adaptive",
        meaning="draft steps that an adaptive worker starts with, before it changes to num_steps; 0: it never changes",
        bounds=(0, 20),
        needs=(
            Need(
                lambda s, r, b: s.adaptive <= r.num_steps_max, "adaptive {s.adaptive} is outside 0..{r.num_steps_max}"
            ),
            Need(lambda s, r, b: s.adaptive != s.num_steps, "adaptive {s.adaptive} is num_steps: nothing changes"),
        ),
        if_set=(
            Need(lambda s, r, b: r.adapts, "the {s.runner} runner's number of draft steps stays"),
            Need(lambda s, r, b: s.topk == 1, "the number of draft steps changes in chains, with topk 1"),
            _plain("'s number of draft steps stays"),
        ),
        drawn=(1, 2, 3, 4, 5),
        later=True,
        words="switched to these draft steps from {0}",
        state="another number of draft steps before",
        example={"adaptive": 3},
    ),
    Option(
        field="kv_dtype",
        name="kv_cache_dtype",
        meaning="the type of cached keys and values; empty: the model's",
        choices=("", *KV_DTYPES),
        if_set=(
            Need(lambda s, r, b: b.quantises, "keys and values of fewer bits are not driven over {s.backend}"),
            Need(lambda s, r, b: r.quantises, "the {s.runner} runner's keys and values are the model's"),
            _plain("'s keys and values are the model's"),
        ),
        drawn=KV_DTYPES,
        later=True,
        words="keys and values in {0}",
        state="keys and values of eight bits",
        example={"kv_dtype": "fp8_e5m2"},
    ),
    Option(
        field="dp_attention",
        name="enable_dp_attention",
        meaning="the first of two ranks under data-parallel attention, of which the busiest chooses both ranks' graph",
        if_set=(
            Need(
                lambda s, r, b: r.rank_tokens is not None,
                "the {s.runner} runner is not driven under data-parallel attention",
            ),
        ),
        drawn=(True,),
        later=True,
        words="one of two ranks under data-parallel attention",
        state="data-parallel attention",
    ),
    Option(
        field="rejection",
        name="speculative_use_rejection_sampling",
        meaning="drafts are drawn at random, for sglang to accept by rejection sampling",
        if_set=(
            Need(lambda s, r, b: r.rejects, "the {s.runner} runner draws no drafts at random"),
            Need(lambda s, r, b: s.topk == 1, "drafts are drawn at random in chains, with topk 1"),
            Need(lambda s, r, b: s.algorithm != "EAGLE3", "drafts are drawn at random from the target's vocabulary"),
        ),
        drawn=(True,),
        later=True,
        words="drafts drawn at random",
        state="random drafts",
    ),
    Option(
        field="overhang",
        name="overhang",
        part=HARNESS,
        meaning="positions after context_len that drafts and trees may take, for which sglang leaves room",
        bounds=(0, CONTEXT_MAX),
        if_set=(
            Need(lambda s, r, b: r.overhangs, "the {s.runner} runner has nothing behind its context"),
            Need(
                lambda s, r, b: s.overhang <= overhang_max(s), "overhang {s.overhang} is more than sglang has room for"
            ),
        ),
        drawn=(1, 4, 8),
        later=True,
        words="positions behind the context: {0}",
        state="drafts behind the context",
        by_step=True,
    ),
    Option(
        field="returns_hidden",
        name="enable_return_hidden_states",
        meaning="graphs are captured with hidden states",
        if_set=(Need(lambda s, r, b: r.asks_hidden, "the {s.runner} runner's hidden states are not asked for"),),
        drawn=(True,),
        later=True,
        words="graphs with hidden states",
        state="hidden states",
        by_step=True,
    ),
    Option(
        field="mirrored",
        name="seq_lens_cpu",
        part=HARNESS,
        meaning="a batch's lengths and their sum are on the host, too",
        if_set=(Need(lambda s, r, b: not r.host_lengths, "the {s.runner} runner's batches have lengths on the host"),),
        drawn=(False,),
        later=True,
        words="lengths on the device alone",
    ),
    Option(
        field="algorithm",
        name="speculative_algorithm",
        meaning="the speculative algorithm, which says of what kind target and draft model are",
        choices=ALL_ALGORITHMS,
        needs=(
            Need(lambda s, r, b: s.algorithm in r.algorithms, "the {s.runner} runner has no {s.algorithm} algorithm"),
            Need(
                lambda s, r, b: s.algorithm not in LATENT or b.latent,
                "the {s.algorithm} algorithm has no {s.backend} backend",
            ),
        ),
        drawn=ALL_ALGORITHMS[1:],
        resets=("algorithm",),
    ),
    Option(
        field="vocab_size",
        name="vocab_size",
        part=TARGET,
        meaning="tokens of the vocabulary",
        bounds=(16, 1 << 17),
        drawn=(64, 96, 128, 200, 256, 512),
        resets=("vocab_size",),
    ),
    Option(
        field="hidden_size",
        name="hidden_size",
        part=TARGET,
        meaning="width of the hidden states",
        bounds=(8, 4096),
        drawn=(16, 32, 48, 64),
        resets=("hidden_size",),
    ),
    Option(
        field="num_heads",
        name="num_attention_heads",
        part=TARGET,
        meaning="query heads of a layer",
        bounds=(1, 64),
        drawn=(1, 3, 4),
        resets=("num_heads", "num_kv_heads"),
    ),
    Option(
        field="num_kv_heads",
        name="num_key_value_heads",
        part=TARGET,
        meaning="key and value heads of a layer",
        bounds=(1, 64),
        drawn=(1, 3, 4),
    ),
    Option(
        field="head_dim",
        name="head_dim",
        part=TARGET,
        meaning="numbers of a head",
        bounds=(8, 256),
        drawn=(24, 32, 64),
        resets=("head_dim",),
    ),
    Option(
        field="dtype",
        name="dtype",
        meaning="the type of weights and activations",
        choices=DTYPES,
        drawn=("float16", "bfloat16"),
        resets=("dtype",),
    ),
    Option(
        field="backend",
        name="attention_backend",
        meaning="the attention backend",
        choices=BACKENDS,
        drawn=("flashinfer", "fa3"),
        resets=("backend",),
    ),
    *SERVING,
)
OPTION: Mapping[str, Option] = {option.field: option for option in OPTIONS}
