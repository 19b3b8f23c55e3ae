"""The options of the draft model's configuration, in which it differs from the target's."""

from __future__ import annotations

from repro.cases.families import family_facts
from repro.cases.option import DRAFT, Need, Option

# Draft models may have other sizes than the target.
_APART = (
    Need(lambda s, r, b: r.drafts_apart, "the {s.runner} runner has no draft model of other sizes"),
    Need(lambda s, r, b: not family_facts(s).own_drafts, "a next-token layer has its target's sizes"),
)

ROWS: tuple[Option, ...] = (
    Option(
        field="mrope",
        name="mrope_section",
        part=DRAFT,
        meaning="the draft model uses three-dimensional rotary positions (M-RoPE), as vision models do",
        if_set=(
            Need(lambda s, r, b: r.mrope, "the {s.runner} runner has no three-dimensional positions"),
            Need(
                lambda s, r, b: s.algorithm == "EAGLE3",
                "the {s.algorithm} algorithm has no three-dimensional positions",
            ),
            Need(
                lambda s, r, b: not r.serves or family_facts(s).sees,
                "in rounds drafts have three-dimensional positions where the target has them",
            ),
        ),
        drawn=(True,),
        later=True,
        words="positions in three dimensions",
        state="positions in three dimensions",
    ),
    Option(
        field="draft_hidden_size",
        name="hidden_size",
        part=DRAFT,
        meaning="width of the draft model's hidden states; 0: the target's",
        bounds=(0, 4096),
        if_set=(
            *_APART,
            # All others share the target's embedding.
            Need(lambda s, r, b: s.algorithm == "EAGLE3", "drafts of {s.algorithm} are as wide as the target"),
        ),
        drawn=(24, 48, 96),
        later=True,
        words="a draft model of hidden size {0}",
    ),
    Option(
        field="draft_num_heads",
        name="num_attention_heads",
        part=DRAFT,
        meaning="query heads of the draft model's layer; 0: as many as the target's",
        bounds=(0, 64),
        if_set=_APART,
        drawn=(1, 2, 4),
        later=True,
        words="a draft model of {0} heads",
        resets=("draft_num_heads", "draft_num_kv_heads"),
    ),
    Option(
        field="draft_num_kv_heads",
        name="num_key_value_heads",
        part=DRAFT,
        meaning="KV heads of the draft model's layer; 0: as many as the target's",
        bounds=(0, 64),
        if_set=_APART,
        drawn=(1, 2, 4),
        later=True,
        words="a draft model of {0} KV heads",
    ),
    Option(
        field="draft_head_dim",
        name="head_dim",
        part=DRAFT,
        meaning="dimension of a head of the draft model; 0: the target's",
        bounds=(0, 256),
        if_set=_APART,
        drawn=(24, 32, 64),
        later=True,
        words="a draft model with heads of {0}",
    ),
)
