"""Rounds of DeepSeek-V4 on the newest release: windows beside compressed keys of four and of 128 tokens; clean and with
planted bugs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oracles import kv_rows, logits
from oracles.catalogue import judge_all, overall
from oracles.text import TIES
from repro.cases.case import Case, Request, Step, problems
from repro.cases.families import V4, fitted
from repro.cases.release_list import NEWEST
from repro.traces.finding import Status
from runners.processes.pool import Pool
from tests.builders.accepted import most_accepted
from tests.runners.releases.test_round import CHAIN
from tests.runners.releases.test_round_plants import Plant, assert_seen

BACKEND = "sglang/srt/layers/attention/deepseek_v4_backend.py"
# Of one draft step, as later ones see no draft (round-v4-drafts-unseen).
SERVED = fitted(replace(CHAIN, backend="fa3", family=V4, head_dim=64, num_steps=1, num_draft_tokens=2))
# Prompts that end before, at and behind the last token of a compressed key, of a window and of a page.
STEPS = (
    Step(
        requests=(
            Request(slot=1, seq_len=125, data=1, further=7),
            Request(slot=2, seq_len=254, data=2, further=6),
        )
    ),
    Step(requests=(Request(slot=1, seq_len=3, data=4, further=8),), wait=3),
)
PLANTS = {
    "compressed keys of four tokens are stored by prefills alone": Plant(
        file=BACKEND,
        function="DSV4AttnMetadata.init_compression_metadata",
        old="self.c4_out_loc = c4_out_loc",
        new="self.c4_out_loc = c4_out_loc * (num_tokens > 8)",
        setup=SERVED,
        seen_by=((kv_rows.ORACLE, "rows of the target"),),
        steps=STEPS,
    ),
    "a capture goes on with what warm-up planned": Plant(
        file=BACKEND,
        function="DeepseekV4AttnBackend.on_after_cuda_graph_warmup",
        old="metadata = self.forward_metadata",
        new="return",
        setup=SERVED,
        seen_by=((logits.ORACLE, logits.OFF),),
        steps=STEPS,
    ),
}


def test_rounds_are_served_with_pages_of_the_backend() -> None:
    assert SERVED.page_size == 256 and not problems(Case(setup=SERVED, steps=STEPS))


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_texts_are_the_targets(newest: Pool) -> None:
    case = Case(setup=SERVED, steps=STEPS)
    trace = newest.run(case)
    # Logits of eight-bit rows lie near each other, so that rounding may turn a token over.
    others = [verdict for verdict in judge_all(case, trace) if verdict.where != TIES]
    assert overall(others) is Status.PASS and {"logits", "kv_rows", "rounds"} <= {each.oracle for each in others}, (
        others
    )
    assert most_accepted(trace) > 1, "no draft was accepted"


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str, newest: Pool) -> None:
    assert_seen(PLANTS[name], newest)
