"""Rounds in which the draft reads the target's KV cache, on the newest release, clean and with planted bugs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oracles import rounds, slot0_padding, staged
from oracles.catalogue import judge_all, overall
from repro.cases import reads
from repro.cases.case import Case, Request, Setup
from repro.cases.families import GEMMA
from repro.cases.release_list import NEWEST
from repro.cases.rows.serving import launched
from repro.cases.setup_problems import setup_problems
from repro.traces.finding import Status
from runners.processes.pool import Pool
from tests.builders.accepted import most_accepted
from tests.runners.releases.test_round import CHAIN, HAPPENING, STEPS
from tests.runners.releases.test_round_plants import Plant, assert_seen

FROZEN = replace(CHAIN, family=GEMMA, window=7, swa=True, overlap=True)
SETUPS = {
    "a chain, and a vocabulary without whole blocks": replace(FROZEN, disagreement=30, vocab_size=200),
    "pages and a tree cache": replace(FROZEN, page_size=4, radix=True),
}
RUNNER = "sglang/srt/speculative/frozen_kv_mtp_cuda_graph_runner.py"
EXECUTE = "FrozenKVMTPCudaGraphRunner.execute"
PLANTS = {
    "hidden states are kept where the bucket is the one before": Plant(
        file=RUNNER,
        function=EXECUTE,
        old="        buffers.hidden_states[:raw_bs].copy_(",
        new="        bs == getattr(self, 'bs', 0) or buffers.hidden_states[:raw_bs].copy_(",
        setup=replace(FROZEN, disagreement=30),
        seen_by=((staged.ORACLE, "real rows of hidden_states"), (rounds.ORACLE, "draft drafted")),
    ),
    "the first draft's token is the one of the row before": Plant(
        file=RUNNER,
        function=EXECUTE,
        old="copy_(forward_batch.spec_info.bonus_tokens)",
        new="copy_(forward_batch.spec_info.bonus_tokens.roll(1))",
        setup=FROZEN,
        seen_by=((staged.ORACLE, "real rows of bonus_tokens"), (rounds.ORACLE, "draft drafted")),
    ),
    "padded rows keep their request slots": Plant(
        file=RUNNER,
        function=EXECUTE,
        old="            buffers.req_pool_indices.zero_()\n",
        new="",
        setup=replace(FROZEN, capture_bs=(4,)),
        seen_by=((slot0_padding.ORACLE, "padded rows of req_pool_indices"),),
    ),
}


def test_a_draft_has_the_targets_window() -> None:
    assert setup_problems(FROZEN) == []
    setup = launched(FROZEN, "frozen_kv_mtp")
    assert (setup.window, setup.swa) == (7, True)
    request = Request(slot=1, seq_len=9, data=0)
    assert reads.windows(replace(setup, window=3), request, 0).tolist() == [[6, 7, 8]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rejection": True}, "gemma4_text models do not sample drafts"),
        ({"adaptive": 1}, "a family other than Llama does not change its number of draft steps"),
        ({"backend": "fa3"}, "the round runner over fa3 has no gemma4_text models"),
        ({"window": 0, "swa": False}, "gemma4_text models have sliding layers"),
    ],
)
def test_a_server_that_is_not_driven_is_refused(changes: dict[str, object], words: str) -> None:
    setup: Setup = replace(FROZEN, **changes)  # type: ignore[arg-type]  # any field
    assert f"setup: {words}" in setup_problems(setup)


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", SETUPS)
def test_texts_are_the_targets(name: str, newest: Pool) -> None:
    setup = SETUPS[name]
    case = Case(setup=setup, steps=HAPPENING if setup.radix else STEPS)
    trace = newest.run(case)
    assert overall(judge_all(case, trace)) is Status.PASS, judge_all(case, trace)
    launches = {seen.name.partition("/")[0] for seen in trace.seen if seen.path == "round_launch"}
    assert launches == {"verify", "frozen_kv_mtp"}
    assert most_accepted(trace) > 1, "no draft was accepted"


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str, newest: Pool) -> None:
    assert_seen(PLANTS[name], newest)
