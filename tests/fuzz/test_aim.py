"""Campaigns that are aimed: what --set, --with, --without and --like make of setups, and what they refuse."""

from __future__ import annotations

import itertools
import json
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from fuzz.__main__ import options_of
from fuzz.aiming import Asked, aim_of, asked, pairs
from fuzz.cluster.chunk import Chunk
from fuzz.draw.aim import possible_states
from fuzz.draw.rounds import rounds
from fuzz.draw.states import possible
from fuzz.like import like
from fuzz.stats import Plan
from reports.campaign import summary
from repro.cases.case import Target, problems
from repro.cases.codec import digest, read
from repro.cases.server_args import BadOption, arguments
from repro.upstream.fixes import SEEDS
from tests.builders.sample_record import BUGGY, campaign, stale_found
from tests.builders.tiers import few

KNOWN = {"model_path", "mem_fraction_static", "tp_size", "tp", "enable_dp_attention", "host"}
# sets, with, without; the pair that is driven.
AIMS = [
    (["speculative_eagle_topk=4", "page_size=16"], [], [], ("draft", "triton")),
    ([], ["enable_dp_attention"], [], ("draft", "triton")),
    (["speculative_num_steps=5"], ["speculative_adaptive"], [], ("draft", "triton")),
    (["context_length=2048", "attention_backend=fa3"], ["page_size"], [], ("draft", "fa3")),
    (["cuda_graph_bs=1", "max_running_requests=1"], [], ["disable_cuda_graph_padding"], ("draft", "triton")),
    (["num_key_value_heads=3", "hidden_size=96", "num_draft_tokens=7"], [], [], ("draft", "triton")),
    (["runner=kv_move"], ["speculative_eagle_topk"], [], ("kv_move", "triton")),
    # Models of some families alone can have it, and it alone asks for nothing.
    (["runner=round", "attention_backend=fa3"], ["enable_dp_attention"], [], ("round", "fa3")),
    (["runner=round"], ["logprob_start_len"], [], ("round", "triton")),
    # Rare ones, of which many cases are drawn in vain.
    (["cuda_graph_max_bs=32"], ["kv_cache_dtype"], ["page_size"], ("draft", "triton")),
    ([], ["sliding_window", "layer_types", "enable_return_hidden_states"], [], ("decode", "triton")),
]


@pytest.mark.parametrize(("sets", "having", "without", "pair"), few(AIMS, len(AIMS) - 2))
def test_every_drawn_case_is_valid_and_has_what_is_asked_for(
    sets: list[str], having: list[str], without: list[str], pair: tuple[str, str]
) -> None:
    request = asked(sets, having, without)
    assert next(pairs(request, "", "")) == pair
    # A thousand of the first aim; others are drawn by the same code.
    count = 1000 if sets == AIMS[0][0] else 40
    drawn = list(itertools.islice(rounds(3, *pair, 8, aim=request.aim), count))
    assert len(drawn) == count and len({case.setup for case in drawn}) > count // 10
    for case in drawn:
        assert problems(case) == [] and request.aim.fits(case.setup)


def test_an_aim_is_the_same_after_a_way_through_text_and_changes_what_is_drawn() -> None:
    aim = asked(["topk=2", "cuda_graph_bs=1,4", "padded=false"], ["kv_dtype"], ["window"]).aim
    assert aim_of(str(aim)) == aim and aim_of("").fixed == ()
    assert "--set disable_cuda_graph_padding=true" in str(aim) and "--with kv_cache_dtype" in str(aim)
    plan = Plan(target=Target("0.5.23", "emulated"), runner="draft", backend="triton", seed=3, aim=str(aim))
    chunk = Chunk(plan=plan, cases_per_setup=4, first=0, last=2)
    again = Chunk.from_json(json.loads(json.dumps(chunk.to_json())))
    cases = [*again.rounds()]
    assert all(aim.fits(case.setup) for case in cases)
    alone = rounds(3, "draft", "triton", 4, range(2), aim=aim)
    assert [digest(case) for case in cases] == [digest(case) for case in alone]


@pytest.mark.parametrize(
    ("having", "without", "values", "away"),
    [
        (["disable_radix_cache"], [], {"radix": False}, ()),
        ([], ["disable_radix_cache"], {}, ("radix",)),
        (["radix"], [], {}, ("radix",)),
        ([], ["radix"], {"radix": False}, ()),
        (["disable_cuda_graph_padding"], [], {}, ("padded",)),
        ([], ["disable_cuda_graph_padding"], {"padded": True}, ()),
        (["padded"], ["overlap"], {"padded": True, "overlap": False}, ()),
        (["enable_dp_attention"], [], {}, ("dp_attention",)),
    ],
    ids=str,
)
def test_with_a_flag_it_is_set_and_without_it_is_not_also_where_the_field_is_its_opposite(
    having: list[str], without: list[str], values: dict[str, bool], away: tuple[str, ...]
) -> None:
    request = asked([], having, without)
    assert request.values == values and request.having == away
    assert aim_of(str(request.aim)) == request.aim


def test_what_an_aim_leaves_out_is_not_missed() -> None:
    chains = asked(["topk=1"], ["adaptive"], ["enable_dp_attention"]).aim
    every = possible("draft", "triton")
    left = every - possible_states("draft", "triton", chains, every)
    assert {"a tree", "data-parallel attention", "a busier rank"} <= left
    assert not {"another number of draft steps before", "a window", "an idle batch"} & left


@pytest.mark.parametrize(
    ("sets", "having", "without", "refusal"),
    [
        (["speculative_eagle_topkk=4"], [], [], "--set speculative_eagle_topkk: no such option; did you mean"),
        (["topk=4", "topk=2"], [], [], "--set topk=2: it is set to 4, too"),
        (["topk=40"], [], [], "--set topk=40: outside 1..10"),
        (["page_size=48"], [], [], "--set page_size=48: not driven; known are 1, 2, 4"),
        (["page_size=many"], [], [], "--set page_size=many: expected an integer"),
        (["cuda_graph_max_bs=1000"], [], [], "--set cuda_graph_max_bs=1000: outside"),
        ([], ["adaptive"], ["adaptive"], "--without adaptive: it is asked for, too"),
        ([], ["max_running_requests"], [], "it has no value that is drawn; use --set"),
        ([], ["disable_radix_cache"], ["disable_radix_cache"], "--with radix: it is set to False, too"),
        (["dp_attention=false"], ["dp_attention"], [], "--with enable_dp_attention: it is set to False, too"),
        (["topk=2"], ["speculative_adaptive"], [], "only in chains, with topk 1 (the draft runner over triton)"),
        (
            ["topk=1", "num_steps=3", "num_draft_tokens=9"],
            [],
            [],
            "speculative_num_draft_tokens=9: topk 1 needs speculative_num_draft_tokens == speculative_num_steps + 1",
        ),
        (
            ["cuda_graph_bs=64", "max_running_requests=8"],
            [],
            [],
            "the largest bucket 64 exceeds max_running_requests 8",
        ),
    ],
    ids=str,
)
def test_unknown_and_contradictory_options_are_refused_in_one_line(
    sets: list[str], having: list[str], without: list[str], refusal: str
) -> None:
    with pytest.raises(BadOption) as refused:
        list(pairs(asked(sets, having, without), "", ""))
    assert refusal in str(refused.value) and "\n" not in str(refused.value)


# One of each runner; the others with all that repeats.
NEAR = {read(path).case.setup.runner: path for path in sorted(SEEDS.glob("*.json"))}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if path in NEAR.values() else pytest.mark.exhaustive)
        for path in sorted(SEEDS.glob("*.json"))
    ],
    ids=lambda path: path.stem,
)
def test_around_a_seed_its_setup_changes_a_little_and_its_steps_do(path: Path) -> None:
    request = replace(asked([], [], []), near=str(path))
    aim, seed = aim_of(str(request.aim)), read(path).case
    ((runner, backend),) = pairs(request, "", "")
    drawn = list(itertools.islice(rounds(3, runner, backend, 8, aim=aim), 80))
    assert drawn[0] == seed and len({digest(case) for case in drawn}) > 50
    assert all(problems(case) == [] for case in drawn)
    setups = {case.setup for case in drawn}
    away = [sum(value != old for value, old in zip(astuple(each), astuple(seed.setup), strict=True)) for each in setups]
    assert 3 <= len(setups) <= 14 and min(away) == 0 and sorted(away)[len(away) // 2] <= 4


def test_an_aim_holds_around_a_seed_and_what_its_seed_cannot_have_is_refused() -> None:
    seed = str(SEEDS / "draft-sum-of-raw-batch.json")
    near = replace(asked(["page_size=4"], ["enable_dp_attention"], []), near=seed)
    drawn = list(itertools.islice(rounds(3, *next(pairs(near, "", "")), 8, aim=near.aim), 200))
    assert all(problems(case) == [] and near.aim.fits(case.setup) for case in drawn)
    for request, runner, refusal in (
        (near, "decode", "it drives draft over flashinfer, not decode"),
        (replace(near, values={"num_steps": 40}), "", "speculative_num_steps 40 is outside"),
        (replace(near, having=("swa",)), "", "--with layer_types: no value of it fits the seed"),
    ):
        with pytest.raises(BadOption, match=refusal):
            pairs(request, runner, "")


LAUNCH = (
    "SGLANG_X=1 python -m sglang.launch_server --model-path meta/llama --tp 8 --speculative-algorithm EAGLE3 "
    "--speculative-eagle-topk=4 --speculative-num-steps 3 --speculative-num-draft-tokens 8 --page-size 16 "
    "--attention-backend fa3 --cuda-graph-max-bs 160 --context-length 32768 --mem-fraction-static 0.85"
)


def test_the_flags_of_a_server_become_an_aim_and_say_what_became_of_each() -> None:
    request = like(arguments(LAUNCH), KNOWN)
    assert str(request.aim) == (
        "--set speculative_algorithm=EAGLE3 --set speculative_eagle_topk=4 --set speculative_num_steps=3 "
        "--set speculative_num_draft_tokens=8 --set page_size=16"
    )
    assert list(pairs(request, "", "")) == [("draft", "fa3"), ("verify", "fa3"), ("draft_extend", "fa3")]
    assert list(pairs(request, "draft_extend", "triton")) == [("draft_extend", "triton")]
    assert request.lines == (
        "--model-path meta/llama: a tiny Llama of made weights runs in its place",
        "--cuda-graph-max-bs 160: scaled down to what is drawn; --set cuda_graph_max_bs=VALUE keeps it",
        "--context-length 32768: scaled down to what is drawn; --set context_length=VALUE keeps it",
        "--mem-fraction-static 0.85: not driven",
        "--tp 8: a rank is driven alone; rounds drive two in a group, too",
    )
    nearer = asked(["topk=2", "cuda_graph_max_bs=16"], [], [], request)
    assert "--set speculative_eagle_topk=2" in str(nearer.aim) and "cuda_graph_max_bs_decode=16" in str(nearer.aim)


@pytest.mark.parametrize(
    ("flags", "values", "runner", "lines"),
    [
        ("zai-org/GLM-4.6 --attention-backend fa3", {"family": "glm4_moe", "backend": "fa3"}, "draft", 1),
        ("/models/DeepSeek-V3-0324", {"family": "deepseek_v3"}, "draft", 1),
        (
            "deepseek-ai/DeepSeek-V3.2 --attention-backend dsa --dsa-decode-backend fa3",
            {"family": "deepseek_v32", "backend": "fa3", "algorithm": "NEXTN"},
            "round",
            1,
        ),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", {}, "draft", 1),
        ("m --attention-backend trtllm_mha", {"backend": "trtllm_mha", "page_size": 64}, "draft", 2),
        # Its target alone is driven, and the backend that is asked for stays.
        ("openai/gpt-oss-20b --attention-backend flashinfer", {"backend": "flashinfer"}, "draft", 2),
    ],
)
def test_a_models_path_names_its_family(flags: str, values: dict[str, Any], runner: str, lines: int) -> None:
    request = like(arguments(f"--speculative-algorithm EAGLE --model-path {flags}"), KNOWN)
    assert dict(request.values) == {"algorithm": "EAGLE"} | values
    assert request.runners[0] == runner and len(request.lines) == lines, request.lines


@pytest.mark.parametrize(
    ("flags", "line", "ranked"),
    [
        ("--dp 1", "", False),
        ("--dp 1 --enable-dp-attention", "--dp 1: one rank, without data-parallel attention", False),
        ("--dp 4 --enable-dp-attention", "--dp 4: the ranks of data-parallel attention are two", True),
        ("--dp-size 4", "--dp-size 4: one replica is driven", False),
    ],
)
def test_dp_size_is_of_ranks_where_attention_is_data_parallel(flags: str, line: str, ranked: bool) -> None:
    request = like(arguments(f"--page-size 4 {flags}"), KNOWN)
    assert request.lines == tuple(filter(None, [line]))
    assert bool(dict(request.aim.fixed).get("dp_attention")) is ranked


def test_saved_arguments_and_logs_mean_what_the_flags_mean(tmp_path: Path) -> None:
    saved = {"model_path": "m", "speculative_algorithm": "EAGLE", "speculative_eagle_topk": 2, "page_size": None}
    saved |= {"enable_dp_attention": True, "disable_cuda_graph_padding": False, "cuda_graph_bs": [1, 2], "host": "x"}
    file, info = tmp_path / "server_args.json", tmp_path / "info.json"
    file.write_text(json.dumps(saved))
    info.write_text(json.dumps({"version": "0.5.23", "server_args": saved}))
    log = f"[2026-01-01] server_args=ServerArgs({', '.join(f'{name}={value!r}' for name, value in saved.items())}), ok"
    aims = {like(arguments(text), KNOWN).aim for text in (str(file), str(info), log)}
    (aim,) = aims
    assert str(aim) == (
        "--set speculative_algorithm=EAGLE --set speculative_eagle_topk=2 --set enable_dp_attention=true "
        "--set disable_cuda_graph_padding=false"
    )
    plain = like(arguments("--page-size 4 --attention-backend triton"), KNOWN)
    assert list(pairs(plain, "", "")) == [("decode", "triton")]


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("--page-sise 4", "--page-sise: no such argument of sglang; did you mean page_size?"),
        ("--speculative-algorithm UNO", "speculative_algorithm=UNO: not driven; known are EAGLE"),
        ("--speculative-eagle-topk 400", "outside 1..10"),
        ('{"page_size": 4', "not JSON"),
        ("ServerArgs(page_size=4, x=", "cut, or not as sglang logs it"),
        ("server_args.yaml", "neither a flag nor the start of a server; there is no such file"),
        ("--page-size '4", "No closing quotation"),
        ("--disable-cuda-graph", "without graphs and speculation nothing is driven"),
    ],
)
def test_flags_that_mean_nothing_are_refused_in_one_line(text: str, refusal: str) -> None:
    with pytest.raises(BadOption) as refused:
        like(arguments(text), {*KNOWN, "disable_cuda_graph"})
    assert refusal in str(refused.value) and "\n" not in str(refused.value)


def test_the_command_line_hands_its_options_over() -> None:
    words = ["run", "--target", "0.5.23/emulated", "--set", "topk=2", "--with", "page_size", "--without", "window"]
    options = options_of(words)
    assert (options.set, options.having, options.without, options.like) == (["topk=2"], ["page_size"], ["window"], None)
    assert asked(options.set, options.having, options.without) == Asked(
        values={"topk": 2, "window": 0}, having=("page_size",)
    )


def test_a_seed_is_drawn_unless_it_is_given_or_ci_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "--target", "clean/toy"]
    assert options_of(words).seed == 0 and options_of([*words, "--seed", "7"]).seed == 7
    monkeypatch.delenv("CI")
    drawn = [options_of(words) for _ in range(5)]
    assert len({options.seed for options in drawn}) > 1 and all(options.seed_was_drawn for options in drawn)
    fixed = options_of([*words, "--seed", "7"])
    assert fixed.seed == 7 and not fixed.seed_was_drawn
    assert options_of(["hunt"]).seed == options_of(["bench", "--target", "clean/toy"]).seed == 0


def test_a_campaigns_summary_has_the_options_that_draw_its_cases_again() -> None:
    done = replace(campaign(), runner="verify", backend="fa3", seed=7, aim="--set page_size=16")
    assert "  drawn with --runner verify --backend fa3 --set page_size=16 --seed 7" in summary(done)
    assert not any("drawn with" in line for line in summary(campaign()))


def test_a_campaigns_summary_names_findings_that_were_not_confirmed() -> None:
    cut = replace(stale_found(), failed=0, tried=0)
    assert not any("not confirmed" in line for line in summary(campaign(BUGGY, (stale_found(),))))
    line = f"  not confirmed in fresh processes by the end: {cut.oracle} {cut.fingerprint}"
    assert line in summary(campaign(BUGGY, (cut,)))
