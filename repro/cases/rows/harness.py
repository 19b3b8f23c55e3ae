"""The options that are neither a server's nor a model's."""

from __future__ import annotations

from repro.cases.families import family_facts
from repro.cases.option import HARNESS, Need, Option
from repro.cases.rows.bounds import CONTEXT_MAX, RUNNERS
from repro.cases.setup import overhang_max

ROWS: tuple[Option, ...] = (
    Option(
        field="runner",
        name="runner",
        part=HARNESS,
        meaning="the graph runner to drive",
        choices=RUNNERS,
        needs=(Need(lambda s, r, b: s.backend in r.backends, "the {s.runner} runner has no {s.backend} backend"),),
    ),
    Option(
        field="overhang",
        name="extra_context_len",
        part=HARNESS,
        meaning="positions after context_length for drafts and trees, for which sglang allocates room",
        bounds=(0, CONTEXT_MAX),
        if_set=(
            Need(lambda s, r, b: r.overhangs, "the {s.runner} runner has no positions after its context"),
            Need(
                lambda s, r, b: s.overhang <= overhang_max(s),
                "extra_context_len {s.overhang} is more than sglang has room for",
            ),
        ),
        drawn=(1, 4, 8),
        later=True,
        words="positions behind the context: {0}",
        state="drafts behind the context",
        by_step=True,
    ),
    Option(
        field="mirrored",
        name="seq_lens_cpu",
        part=HARNESS,
        meaning="a batch also has its lengths and their sum on the host",
        if_set=(Need(lambda s, r, b: not r.host_lengths, "the {s.runner} runner's batches have lengths on the host"),),
        drawn=(False,),
        later=True,
        words="lengths on the device alone",
    ),
    Option(
        field="one_graph",
        name="SGLANG_ENABLE_SINGLE_CG_DRAFT",
        part=HARNESS,
        meaning="one graph has all layers of a draft, which is a server's default if the backend allows it",
        if_set=(
            Need(
                lambda s, r, b: r.layered or family_facts(s).layered,
                "the {s.runner} runner's draft model has one layer",
            ),
            Need(lambda s, r, b: b.combines_layers, "{s.backend} builds metadata outside of one graph of all layers"),
        ),
        drawn=(True,),
        later=True,
        words="all layers of a draft in one graph",
        state="one graph of all layers",
    ),
)
