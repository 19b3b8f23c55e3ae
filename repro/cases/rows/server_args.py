"""The options that are arguments of a server, by sglang's names in ServerArgs."""

from __future__ import annotations

import itertools

from repro.cases.families import family_facts
from repro.cases.option import Need, Option, of_llama
from repro.cases.rows.bounds import (
    BACKENDS,
    BATCH_MAX,
    CONTEXT_MAX,
    DTYPES,
    KV_DTYPES,
    PAGE_SIZES,
    SLOTS_MAX,
)
from repro.cases.runner_facts import ALL_ALGORITHMS, FROM_TABLE, IN_BLOCKS, LATENT, OF_OTHER_WORKERS
from repro.cases.sharing import SHARERS, is_shared_evenly, sharers_of

ROWS: tuple[Option, ...] = (
    Option(
        field="topk",
        name="speculative_eagle_topk",
        meaning="branches of each draft step",
        bounds=(1, 10),
        drawn=(2, 3, 4, 8),
        needs=(
            Need(lambda s, r, b: r.branches or s.topk == 1, "the {s.runner} runner has topk 1 only"),
            Need(lambda s, r, b: not r.trees or s.topk > 1, "the {s.runner} runner has topk above 1 only"),
            Need(lambda s, r, b: not b.chains or s.topk == 1, "{s.backend} has topk 1 only"),
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
                "speculative_num_steps {s.num_steps} is outside {r.num_steps_min}..{r.num_steps_max}",
            ),
            Need(
                lambda s, r, b: r.speculative or s.topk == s.num_steps == 1,
                "without drafts topk and the number of draft steps are 1",
            ),
        ),
    ),
    Option(
        field="num_draft_tokens",
        name="speculative_num_draft_tokens",
        older=("speculative_dflash_block_size",),  # which sglang takes for the same
        meaning="tokens that a round verifies, including the root of the tree",
        drawn=(2, 3, 4, 5, 8, 16),
    ),
    Option(
        field="capture_bs",
        name="cuda_graph_bs_decode",
        older=("cuda_graph_bs",),
        meaning="the batch sizes for which graphs are captured, in requests, ascending",
        needs=(
            Need(
                lambda s, r, b: bool(s.capture_bs) and all(x < y for x, y in itertools.pairwise(s.capture_bs)),
                "cuda_graph_bs_decode {s.capture_bs} is not ascending",
            ),
            Need(
                lambda s, r, b: all(1 <= bs <= BATCH_MAX for bs in s.capture_bs),
                f"cuda_graph_bs_decode {{s.capture_bs}} has sizes outside 1..{BATCH_MAX}",
            ),
        ),
    ),
    Option(
        field="slots",
        name="max_running_requests",
        meaning="request slots: rows from 1 on of req_to_token; row 0 is for padding",
        bounds=(1, SLOTS_MAX),
    ),
    Option(
        field="page_size",
        name="page_size",
        meaning="tokens in a page of the KV cache",
        choices=PAGE_SIZES,
        drawn=PAGE_SIZES[1:],
        needs=(
            Need(
                lambda s, r, b: s.page_size in (b.page_sizes or (s.page_size,)),
                "{s.backend} has pages of {b.page_sizes} tokens, not of {s.page_size}",
            ),
        ),
    ),
    Option(
        field="context_len",
        name="context_length",
        meaning="maximum length of a request in tokens, including drafts",
        bounds=(8, CONTEXT_MAX),
    ),
    Option(
        field="kv_splits",
        name="triton_attention_num_kv_splits",
        meaning="parts into which Triton's attention splits a prefix",
        bounds=(1, 16),
        # Each split is one more program to interpret in every attention launch.
        drawn=(1, 1, 1, 2),
    ),
    Option(
        field="padded",
        name="disable_cuda_graph_padding",
        reversed=True,
        meaning="a graph runs only batches of exactly its bucket's size",
        if_set=(Need(lambda s, r, b: r.falls_back, "the {s.runner} runner never falls back to eager"),),
        drawn=(False,),
        later=True,
        words="no batch padded",
        state="no padding",
    ),
    Option(
        field="deterministic",
        name="enable_deterministic_inference",
        meaning="results do not depend on the batch",
        if_set=(
            Need(lambda s, r, b: r.graph or r.serves, "the {s.runner} runner has no deterministic inference"),
            Need(
                lambda s, r, b: not r.serves or family_facts(s).plain,
                "rounds of {s.family} models are not driven under deterministic inference",
            ),
        ),
        drawn=(True,),
        later=True,
        words="deterministic inference",
        state="deterministic inference",
    ),
    Option(
        field="adaptive",
        name="speculative_adaptive",
        meaning="draft steps that an adaptive worker starts with, before speculative_num_steps; 0: not adaptive",
        bounds=(0, 20),
        needs=(
            Need(
                lambda s, r, b: s.adaptive <= r.num_steps_max,
                "speculative_adaptive {s.adaptive} is outside 0..{r.num_steps_max}",
            ),
            Need(
                lambda s, r, b: s.adaptive != s.num_steps,
                "speculative_adaptive {s.adaptive} equals speculative_num_steps: nothing would change",
            ),
        ),
        if_set=(
            Need(lambda s, r, b: r.adapts, "the {s.runner} runner does not change its number of draft steps"),
            Need(lambda s, r, b: s.topk == 1, "the number of draft steps changes only in chains, with topk 1"),
            # standalone_worker_v2.py (0.5.23:185): adaptive_controller is None, whatever the server's flags say.
            Need(lambda s, r, b: s.algorithm not in OF_OTHER_WORKERS, "{s.algorithm} keeps its number of draft steps"),
            of_llama(" does not change its number of draft steps"),
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
        meaning="the type of cached keys and values; auto: the model's type",
        choices=("", *KV_DTYPES),
        forms=(("", "auto"),),
        if_set=(
            Need(lambda s, r, b: b.quantises, "8-bit keys and values are unsupported on {s.backend}"),
            Need(lambda s, r, b: r.quantises, "the {s.runner} runner caches keys and values only in the model's type"),
            of_llama(" caches keys and values only in the model's type"),
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
        meaning="run as one of two ranks of data-parallel attention; the busier rank chooses both ranks' graph",
        if_set=(
            Need(
                lambda s, r, b: r.rank_tokens is not None or r.serves,
                "the {s.runner} runner is unsupported with data-parallel attention",
            ),
            Need(
                lambda s, r, b: not r.serves or family_facts(s).gathers,
                "in rounds these models' layers are unsupported with data-parallel attention",
            ),
            # _handle_ngram (speculative_hook.py, 0.5.23:1367) refuses it, as all releases before do.
            Need(
                lambda s, r, b: s.algorithm not in FROM_TABLE,
                "the {s.algorithm} algorithm is unsupported with data-parallel attention",
            ),
        ),
        drawn=(True,),
        later=True,
        words="one of two ranks under data-parallel attention",
        state="data-parallel attention",
    ),
    Option(
        field="tp_size",
        name="tp_size",
        meaning="ranks, of which this is one, that share heads and vocabulary: two in a group, so that there are four "
        "with enable_dp_attention, in two groups; 1: a group is one rank",
        choices=(1, 2, 4),
        if_set=(
            Need(lambda s, r, b: r.serves, "the {s.runner} runner has one rank in a group"),
            Need(lambda s, r, b: family_facts(s).shares, "these models' heads are not shared here"),
            Need(lambda s, r, b: sharers_of(s) == SHARERS, "tp_size {s.tp_size} is not two ranks in a group"),
            Need(
                lambda s, r, b: not s.dp_attention or not any(bs % SHARERS for bs in s.capture_bs),
                "beside another group two ranks capture even buckets alone",
            ),
            Need(lambda s, r, b: is_shared_evenly(s), "two ranks cannot have as many heads and tokens each"),
        ),
        drawn=(2, 4),
        later=True,
        words="one of {0} ranks",
        example={"tp_size": 2},
    ),
    Option(
        field="rejection",
        name="speculative_use_rejection_sampling",
        meaning="drafts are sampled, and sglang accepts them by rejection; in rounds every other request samples",
        if_set=(
            Need(lambda s, r, b: r.rejects, "the {s.runner} runner does not sample drafts"),
            Need(lambda s, r, b: s.topk == 1, "drafts are sampled only in chains, with topk 1"),
            Need(lambda s, r, b: s.algorithm != "EAGLE3", "sampled drafts need the target's vocabulary"),
            # speculative_hook.py (0.5.23:1216) refuses it.
            Need(lambda s, r, b: s.algorithm not in OF_OTHER_WORKERS, "{s.algorithm} does not sample drafts"),
            Need(lambda s, r, b: not family_facts(s).frozen, "{s.family} models do not sample drafts"),
        ),
        drawn=(True,),
        later=True,
        words="drafts drawn at random",
        state="random drafts",
    ),
    Option(
        field="returns_hidden",
        name="enable_return_hidden_states",
        meaning="graphs are captured with hidden states; in rounds every other request of a step asks for its own",
        if_set=(
            Need(lambda s, r, b: r.asks_hidden or r.serves, "nothing requests the {s.runner} runner's hidden states"),
            # validate_dflash_request (0.5.23 dflash_utils.py:1108), of every request.
            Need(
                lambda s, r, b: s.algorithm not in IN_BLOCKS or not s.overlap,
                "{s.algorithm} returns no hidden states with the overlap schedule",
            ),
        ),
        drawn=(True,),
        later=True,
        words="graphs with hidden states",
        state="hidden states",
        by_step=True,
    ),
    Option(
        field="algorithm",
        name="speculative_algorithm",
        meaning="the speculative algorithm, which chooses the kind of target and draft model",
        choices=(*ALL_ALGORITHMS, *OF_OTHER_WORKERS),
        needs=(
            Need(lambda s, r, b: s.algorithm in r.algorithms, "the {s.runner} runner has no {s.algorithm} algorithm"),
            Need(
                lambda s, r, b: s.algorithm not in LATENT or b.latent or bool(s.family),
                "the {s.algorithm} algorithm has no {s.backend} backend",
            ),
        ),
        drawn=(*ALL_ALGORITHMS[1:], *OF_OTHER_WORKERS),
        resets=("algorithm",),
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
        drawn=("flashinfer", "fa3", "trtllm_mha"),
        resets=("backend",),
    ),
)
