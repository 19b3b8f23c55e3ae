"""The options of the draft model's configuration, in which it differs from the target's."""

from __future__ import annotations

from repro.cases.option import DRAFT, Need, Option

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
        ),
        drawn=(True,),
        later=True,
        words="positions in three dimensions",
        state="positions in three dimensions",
    ),
)
