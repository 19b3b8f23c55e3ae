"""The options of the target's configuration, by the names of its config.json."""

from __future__ import annotations

from repro.cases.backend_facts import BackendFacts
from repro.cases.families import DSA, FAMILY_FACTS, families, family_facts
from repro.cases.option import TARGET, Need, Option, of_llama
from repro.cases.rows.bounds import CONTEXT_MAX
from repro.cases.runner_facts import RunnerFacts
from repro.cases.setup import Setup


def _drafts_in_window(s: Setup, r: RunnerFacts, b: BackendFacts) -> bool:
    # A worker that starts with several draft steps has the backend for them, whatever the runner's own number is.
    several = s.num_steps > 1 and not b.drafts_in_windows
    starts = s.adaptive > 1 and not b.starts_in_windows
    if s.algorithm == "STANDALONE":  # a Llama like its target
        return s.num_steps == 1 or b.starts_in_windows
    return r.windowed != "draft" or not (several or starts)


ROWS: tuple[Option, ...] = (
    Option(
        field="window",
        name="sliding_window",
        part=TARGET,
        drafted=lambda r: r.windowed == "draft",
        meaning="earlier tokens that a token attends to, in the target or in a draft runner's model; 0: all",
        bounds=(0, CONTEXT_MAX),
        if_set=(
            Need(lambda s, r, b: bool(r.windowed), "the {s.runner} runner has no window"),
            Need(
                lambda s, r, b: family_facts(s).plain or family_facts(s).sliding,
                "a family without sliding layers has no window",
            ),
            Need(_drafts_in_window, "drafts with a window are unsupported on {s.backend}"),
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
        forms=((True, ["sliding_attention", "full_attention"]),),
        meaning="the target has a sliding and a full layer, and a separate KV pool for sliding layers",
        if_set=(
            Need(
                lambda s, r, b: r.windowed == "target" and s.window > 0,
                "layer_types needs a target with sliding_window",
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
        meaning="soft cap of attention scores; 0: no cap",
        bounds=(0, 100),
        if_set=(
            Need(lambda s, r, b: r.capped, "the {s.runner} runner has no logit cap"),
            of_llama(" has no logit cap"),
        ),
        # Below, about and above the size of most scores.
        drawn=(1, 5, 30),
        later=True,
        words="a logit cap of {0}",
        state="a logit cap",
        example={"logit_cap": 5},
    ),
    Option(
        field="vocab_size",
        name="vocab_size",
        part=TARGET,
        meaning="size of the vocabulary",
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
        meaning="KV heads of a layer",
        bounds=(1, 64),
        drawn=(1, 3, 4),
    ),
    Option(
        field="head_dim",
        name="head_dim",
        part=TARGET,
        meaning="dimension of a head",
        bounds=(8, 256),
        drawn=(24, 32, 64),
        resets=("head_dim",),
    ),
    Option(
        field="family",
        name="model_type",
        part=TARGET,
        meaning="the family of target and draft model; empty: Llama, and DeepSeek-V3 with NEXTN",
        choices=("", *FAMILY_FACTS),
        if_set=(
            Need(
                lambda s, r, b: s.family not in FAMILY_FACTS or s.family in families(s.runner, s.backend),
                "the {s.runner} runner over {s.backend} has no {s.family} models",
            ),
            Need(
                lambda s, r, b: s.algorithm in family_facts(s).algorithms,
                "the {s.algorithm} algorithm has no {s.family} models",
            ),
            Need(
                lambda s, r, b: s.topk == 1 or s.backend not in family_facts(s).chains,
                "{s.family} models over {s.backend} have topk 1 only",
            ),
            Need(lambda s, r, b: s.swa or not family_facts(s).sliding, "{s.family} models have sliding layers"),
            Need(
                lambda s, r, b: family_facts(s).page_size in (0, s.page_size),
                "{s.family} models have no pages of {s.page_size} tokens",
            ),
        ),
        drawn=tuple(FAMILY_FACTS),
        later=True,
        words="{0} models",
    ),
    Option(
        field="index_share",
        name="index_share_for_mtp_iteration",
        part=TARGET,
        meaning="draft steps share the sparse keys that the last accepted token's own draft chose, as GLM-5.2's do",
        if_set=(
            Need(lambda s, r, b: s.family == DSA, "only models of sparse attention choose keys"),
            Need(lambda s, r, b: s.num_steps > 1, "a lone draft step shares no choice"),
        ),
        drawn=(True,),
        later=True,
        words="draft steps that share a choice of keys",
    ),
    Option(
        field="index_topk",
        name="index_topk",
        part=TARGET,
        meaning="the number of keys that a query of sparse attention chooses; 0: 2048, as many as there are",
        bounds=(0, 2048),
        if_set=(
            Need(lambda s, r, b: s.family == DSA, "only models of sparse attention choose keys"),
            Need(
                lambda s, r, b: s.logprob_start_len < 0, "of a prompt's tokens no choice is known that rounding turns"
            ),
        ),
        drawn=(4, 8),
        later=True,
        words="a choice of {0} keys",
    ),
)
