"""Draft models whose sizes are others than their target's: what may be asked for, what is drawn, what is driven."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fuzz.draw.aim import with_text
from fuzz.draw.rounds import round_setup
from oracles.catalogue import judge_all
from repro.cases.case import Case, Setup, setup_problems
from repro.cases.codec import case_from_json, case_to_json
from repro.cases.options import OPTION, OPTIONS
from repro.cases.release_list import NEWEST
from repro.cases.server_args import option_named
from repro.cases.setup import DRAFT_SIZES, as_drafted
from repro.shrinking.shrink import shrink
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from tests.builders.cases import PADDED, PAIR, case_of, setup_of, step

SIZES = {"draft_hidden_size": 48, "draft_num_heads": 4, "draft_num_kv_heads": 2, "draft_head_dim": 24}


def apart(runner: str, **changes: Any) -> Setup:
    return replace(setup_of(runner, capture_bs=(4,)), algorithm="EAGLE3", **(SIZES | changes))


def test_what_sglang_cannot_build_is_refused() -> None:
    assert not setup_problems(apart("draft"))
    refused: dict[str, Setup] = {
        "drafts of EAGLE are as wide as the target": replace(apart("draft"), algorithm="EAGLE"),
        "the decode runner has no draft model of other sizes": replace(setup_of("decode"), draft_num_heads=2),
        "draft_model: hidden_size is not a multiple of num_attention_heads": apart("draft", draft_num_heads=5),
        "draft_model: num_attention_heads is not a multiple": apart("draft", draft_num_kv_heads=3),
        "a next-token layer has its target's sizes": replace(apart("draft"), family="glm4_moe"),
        "draft_model: head_dim is not one of fa3's": apart("draft", backend="fa3", dtype="float16", head_dim=64),
    }
    for words, setup in refused.items():
        assert any(words in problem for problem in setup_problems(setup)), setup_problems(setup)


def test_a_draft_has_its_own_sizes_in_files_and_is_drawn_with_them() -> None:
    setup = apart("draft")
    case = Case(setup=setup, steps=(step(*PAIR),))
    form = case_to_json(case)
    assert form["setup"]["draft_model"] == {
        "hidden_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
    }
    assert case_from_json(form) == case
    assert as_drafted(setup).head_dim == 24 and as_drafted(setup_of("draft")) == setup_of("draft")
    drawn = [round_setup(7, number, "draft", "triton")[1] for number in range(24)]
    assert {bool(s.draft_num_heads) for s in drawn} == {True, False} and not any(map(setup_problems, drawn))


def test_each_option_has_a_name_that_asks_for_it_and_no_other() -> None:
    assert [option_named(with_text(option).removeprefix("--with ")) for option in OPTIONS] == list(OPTIONS)
    assert with_text(OPTION["draft_head_dim"]) == "--with draft_model.head_dim"


def test_sizes_that_a_failure_does_not_need_are_the_targets_again() -> None:
    case = Case(setup=apart("draft"), steps=(step(*PAIR),))
    smallest = shrink(
        case,
        lambda candidate: candidate.setup.draft_num_heads == 4,
        runs_max=400,
        seconds_max=60,
        on_better=lambda better: None,
    )
    sizes = {name: getattr(smallest.setup, name) for name in DRAFT_SIZES}
    assert sizes == dict.fromkeys(DRAFT_SIZES, 0) | {"draft_num_heads": 4}


# On the newest release alone: older ones have bugs that these cases meet.
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("runner", ["draft", "draft_extend", "verify"])
def test_every_oracle_judges_it(runner: str, newest: Pool) -> None:
    case = case_of(apart(runner), PADDED, PAIR)
    trace = newest.run(case)
    assert trace.ended.how is Termination.DONE, trace.ended
    verdicts = {verdict.oracle: verdict.status for verdict in judge_all(case, trace)}
    assert Status.FAIL not in verdicts.values(), verdicts
    assert verdicts["reference"] is verdicts["graph_equals_eager"] is Status.PASS
    if runner != "verify":  # whose KV rows are the target's
        rows = trace.get(0, "reference", "kv_graph")
        assert rows is not None and rows.shape[1] == 2 * SIZES["draft_num_kv_heads"] * SIZES["draft_head_dim"]
    width = trace.get(0, *{"draft_extend": ("graph", "next_hidden_states")}.get(runner, ("input", "hidden_states")))
    assert width is not None and width.shape[1] == SIZES["draft_hidden_size"]
