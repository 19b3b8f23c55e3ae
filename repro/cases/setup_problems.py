"""The reasons for which a setup cannot be captured."""

from __future__ import annotations

from functools import lru_cache

from repro.cases.option import Need, refusals
from repro.cases.options import KV_DTYPE_ABOVE, OPTIONS
from repro.cases.runner_facts import FROM_TABLE, IN_BLOCKS, WITHOUT_STEPS
from repro.cases.setup import DRAFT_SIZES, Setup, as_drafted

# Needs between a model's sizes, the target's and the draft model's.
SIZES = (
    Need(
        lambda s, r, b: s.num_heads % s.num_kv_heads == 0,
        "num_attention_heads is not a multiple of num_key_value_heads",
    ),
    # transformers refuses such a Llama configuration.
    Need(lambda s, r, b: s.hidden_size % s.num_heads == 0, "hidden_size is not a multiple of num_attention_heads"),
    Need(lambda s, r, b: s.head_dim % 8 == 0, "head_dim is not a multiple of 8"),
    Need(
        lambda s, r, b: not s.kv_dtype or s.head_dim > KV_DTYPE_ABOVE,
        f"{{s.kv_dtype}} needs heads above {KV_DTYPE_ABOVE}",
    ),
    Need(
        lambda s, r, b: b.head_dims is None or s.head_dim in b.head_dims,
        "head_dim is not one of {s.backend}'s {b.head_dims}",
    ),
)
# The most tokens of a block, or of a tree from a table.
BLOCK_MAX = 32
# Needs between options, checked once each is valid by itself.
TOGETHER = (
    *SIZES,
    Need(lambda s, r, b: s.dtype not in b.without_dtypes, "{s.backend} has no {s.dtype} kernels"),
    Need(lambda s, r, b: s.vocab_size >= s.topk, "vocab_size is below speculative_eagle_topk"),
    Need(lambda s, r, b: s.max_bs <= s.slots, "the largest bucket {s.max_bs} exceeds max_running_requests {s.slots}"),
    # sglang insists: without branches the tree is the chain itself.
    Need(
        lambda s, r, b: s.topk > 1 or s.algorithm in WITHOUT_STEPS or s.num_draft_tokens == s.num_steps + 1,
        "topk 1 needs speculative_num_draft_tokens == speculative_num_steps + 1",
    ),
    Need(
        lambda s, r, b: s.algorithm not in IN_BLOCKS or s.topk == s.num_steps == 1,
        "a block of {s.algorithm} is drafted with topk 1 in one step",
    ),
    Need(lambda s, r, b: s.algorithm not in FROM_TABLE or s.num_steps == 1, "{s.algorithm} has no draft steps"),
    # _handle_ngram (speculative_hook.py, 0.5.23:1356) refuses it.
    Need(
        lambda s, r, b: s.algorithm not in FROM_TABLE or 1 in (s.topk, s.page_size) or s.backend == "flashinfer",
        "{s.algorithm} has branches with pages over flashinfer alone",
    ),
    Need(
        lambda s, r, b: s.algorithm in WITHOUT_STEPS or 2 <= s.num_draft_tokens <= s.tree_max,
        "speculative_num_draft_tokens {s.num_draft_tokens} is outside 2..{s.tree_max}",
    ),
    Need(
        lambda s, r, b: s.algorithm not in WITHOUT_STEPS or 2 <= s.num_draft_tokens <= BLOCK_MAX,
        f"speculative_num_draft_tokens {{s.num_draft_tokens}} is outside 2..{BLOCK_MAX}",
    ),
    Need(lambda s, r, b: r.room(s, 1) <= s.context_len, "context_length is too small for one token and its drafts"),
)
# Options, their fields and defaults, and true of one that is judged at its default, too. A generator asks about
# hundreds of thousands of setups, and nearly all of their options are at their defaults.
_JUDGED = tuple((option, option.field, option.default, bool(option.needs)) for option in OPTIONS)


def setup_problems(setup: Setup) -> list[str]:
    """Why this setup cannot be captured; empty if it can. Never raises on well-typed values."""
    return list(_problems(setup))


@lru_cache(maxsize=256)
def _problems(setup: Setup) -> tuple[str, ...]:
    """The same, remembered: a generator asks about a setup once more with each of its cases."""
    texts = [
        text
        for option, field, default, always in _JUDGED
        if always or getattr(setup, field) != default
        for text in option.problems(setup)
    ]
    texts = texts or [*refusals(TOGETHER, setup)]
    if not texts and any(getattr(setup, size) for size in DRAFT_SIZES):
        texts = [f"draft_model: {text}" for text in refusals(SIZES, as_drafted(setup))]
    return tuple(f"setup: {text}" for text in texts)
