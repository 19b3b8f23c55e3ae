"""Setups as launch commands: sglang's own parser takes them, and they mean the same setup again."""

from __future__ import annotations

import functools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from fuzz.aiming import pairs
from fuzz.draw.rounds import round_setup
from fuzz.like import like
from repro.cases import codec
from repro.cases.case import Case, Setup
from repro.cases.codec import case_to_json
from repro.cases.families import DSA
from repro.cases.launch import BREADTH, command, flags, setup_of
from repro.cases.option import SERVER
from repro.cases.options import OPTIONS
from repro.cases.release_list import NEWEST
from repro.cases.runner_facts import FROM_TABLE, RUNNER_FACTS, TOY
from repro.cases.server_args import BadOption, arguments
from repro.upstream.fixes import SEEDS
from tests.builders.sglang_parser import read

STORED = [codec.read(path).case.setup for path in sorted(SEEDS.glob("*.json"))]


@functools.cache
def drawn() -> list[Setup]:
    """Drawn setups of every runner and backend. Whoever collects this module does not wait for them."""
    return [
        round_setup(7, number, runner, backend)[1]
        for runner, facts in RUNNER_FACTS.items()
        for backend in facts.backends
        for number in range(4)
        if runner != TOY
    ]


def test_flags_are_the_same_after_a_way_through_a_setup() -> None:
    for setup in (*STORED, *drawn()):
        again = setup_of(setup.runner, command(setup))
        assert flags(again) == flags(setup)
        for option in OPTIONS:
            # Splits are Triton's, buckets those of graphs, and where adaptive workers start stands in a file.
            kept = option.part == SERVER and option.field not in ("adaptive", "capture_bs", "kv_splits")
            if kept and RUNNER_FACTS[setup.runner].speculative:
                assert getattr(again, option.field) == getattr(setup, option.field), option.field


def test_the_server_args_of_a_case_are_a_file_of_server_args() -> None:
    """A server without these flags overlaps and has a radix cache, a case without the keys does not."""
    absent = {"disable_overlap_schedule": True, "disable_radix_cache": True}
    for setup in (*STORED, *drawn()):
        form = absent | server_args_of(setup)
        if not RUNNER_FACTS[setup.runner].graph:
            form.pop("enable_dp_attention", None)  # such a runner is always in a group of ranks
        again = server_args_of(setup_of(setup.runner, json.dumps({"server_args": form})))
        assert absent | again == form


def server_args_of(setup: Setup) -> dict[str, Any]:
    return case_to_json(Case(setup=setup, steps=()))["setup"][SERVER]  # type: ignore[no-any-return]  # JSON is untyped


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_the_newest_release_takes_every_command_and_reads_the_same_values() -> None:
    setups = [*STORED, *drawn()[::5]]
    _, every = read([words(setup)[3:] for setup in setups])
    assert len(every) == len(setups) > len(STORED)
    for setup, values in zip(setups, every, strict=True):
        assert values["attention_backend"] == ("dsa" if setup.family == DSA else setup.backend)
        assert values["dsa_decode_backend"] == (setup.backend if setup.family == DSA else None)
        assert values["page_size"] == setup.page_size
        assert values["disable_cuda_graph_padding"] is not setup.padded
        assert bool(values["enable_deterministic_inference"]) == setup.deterministic
        assert values["kv_cache_dtype"] == (setup.kv_dtype or "auto")
        if "--speculative-algorithm" in words(setup):
            breadth = BREADTH if setup.algorithm in FROM_TABLE else "speculative_eagle_topk"
            drafted = (values[breadth], values["speculative_num_draft_tokens"])
            assert drafted == (setup.topk, setup.num_draft_tokens)
        if "--cuda-graph-bs-decode" in words(setup):
            assert values["cuda_graph_bs_decode"] == list(setup.capture_bs)


def words(setup: Setup) -> list[str]:
    return shlex.split(command(setup).replace("\\\n", " "))


def test_a_printed_command_can_be_aimed_at() -> None:
    known = {"model_path", "speculative_draft_model_path", "tp_size", "dp_size", "device", "enable_torch_compile"}
    known |= {
        BREADTH,
        "enable_multi_layer_eagle",
        "enable_dp_lm_head",
        "disable_cuda_graph",
        "json_model_override_args",
    }
    for setup in STORED:
        if setup.runner in ("cpu_decode", "kv_move"):
            continue
        request = like(arguments(command(setup)), known)
        assert (setup.runner, setup.backend) in pairs(request, setup.runner, "")
        fixed = dict(request.aim.fixed)
        assert fixed["page_size"] == setup.page_size
        # The window's length is scaled down.
        windowed = setup.window > 0 and RUNNER_FACTS[setup.runner].windowed == "target"
        assert ("window" in request.aim.having) == windowed


def test_a_long_line_is_no_name_of_a_file() -> None:
    setup = setup_of("draft", f"{'--page-size 4 ' * 100} --attention-backend fa3")
    assert (setup.page_size, setup.backend) == (4, "fa3")


@pytest.mark.parametrize(
    "text",
    [
        "--attention-backend nsa --nsa-decode-backend fa3",
        "ServerArgs(dsa_decode_backend='fa3', attention_backend='dsa')",
        '{"dsa_decode_backend": "fa3", "attention_backend": "dsa"}',
    ],
)
def test_sparse_attention_has_the_backend_of_its_decode_passes(text: str) -> None:
    assert setup_of("round", text).backend == "fa3"


@pytest.mark.parametrize("text", ["--json-model-override-args {", "--json-model-override-args 7"])
def test_overrides_that_are_no_object_are_refused(text: str) -> None:
    with pytest.raises(BadOption, match="no JSON object"):
        setup_of("decode", text)


def test_a_file_of_flags_means_the_flags(tmp_path: Path) -> None:
    setup = STORED[0]
    file = tmp_path / "launch.sh"
    file.write_text(f"#!/bin/bash\n{command(setup)}\n")
    assert setup_of(setup.runner, str(file)) == setup_of(setup.runner, command(setup))
