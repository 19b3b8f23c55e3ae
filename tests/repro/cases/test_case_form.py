"""Cases in format 2: sglang's names and values, each in its part; others are refused with the right name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from repro.cases import codec
from repro.cases.case import Case, Request, Setup, Step
from tests.builders.project import DATA
from tests.builders.seed_files import NEW, Change, drop, need_refused, put

SETUP = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1, 4), slots=8)
REQUEST = Request(slot=1, seq_len=7, data=11)
SERVER_ARGS = ("setup", "server_args")
REFUSED = [
    (drop("setup", "runner"), "setup: runner is missing"),
    (drop(*SERVER_ARGS, "speculative_eagle_topk"), "setup.server_args: speculative_eagle_topk is missing"),
    (drop(*SERVER_ARGS), "setup.server_args: speculative_eagle_topk is missing"),
    (put(*SERVER_ARGS, to=[]), "setup.server_args: expected an object, not a list of 0"),
    (put(*SERVER_ARGS, "page_sise", to=4), 'setup.server_args: unknown key "page_sise"; did you mean page_size?'),
    (put(*SERVER_ARGS, "zzz", to=4), 'setup.server_args: unknown key "zzz"; known are attention_backend, '),
    (put(*SERVER_ARGS, "head_dim", to=16), "setup.server_args: head_dim belongs in setup.model"),
    (put("setup", "page_size", to=4), "setup: page_size belongs in setup.server_args"),
    (put("setup", "model", "mrope_section", to=True), "setup.model: mrope_section belongs in setup.draft_model"),
    (put("setup", "model", "sliding_window", to=7), "setup.model: sliding_window belongs in setup.draft_model"),
    (put(*SERVER_ARGS, "capture_bs", to=[1]), "capture_bs is a key of format 1; in format 2 it is cuda_graph_bs_dec"),
    (put(*SERVER_ARGS, "cuda_graph_bs", to=[1]), "cuda_graph_bs is cuda_graph_bs_decode, which is there, too"),
    (put(*SERVER_ARGS, "page_size", to="4"), 'setup.server_args.page_size: expected an integer, not "4"'),
    (put(*SERVER_ARGS, "kv_cache_dtype", to=""), 'kv_cache_dtype: expected "auto", not ""'),
    (put(*SERVER_ARGS, "disable_cuda_graph_padding", to=0), "padding: expected true or false, not 0"),
    (put("setup", "model", "layer_types", to=True), 'expected ["sliding_attention", "full_attention"], not true'),
    (put("steps", 0, "mirrored", to=True), "steps[0]: mirrored is a key of format 1; here it is seq_lens_cpu"),
    (put("steps", 0, "capture_hidden_mode", to="last"), 'expected "NULL" or "LAST" or "FULL", not "last"'),
    (put("steps", 0, "other_rank_reqs", to=1), 'unknown key "other_rank_reqs"; did you mean other_rank_num_reqs?'),
    (put("steps", 0, "requests", 0, "max_new_tokens", to=0), "arrivals mean something only to a runner that"),
    (put("format", to=1), "setup: server_args is a key of format 2, and this is format 1"),
]  # fmt: skip


# Files of format 1 with the options that few cases have, and the digests that the version before gave them.
DIGESTS = {"steps": "b959166cf7b8", "arrivals": "3326712e6d12", "draft-window": "140020cbbc28"}


@pytest.mark.parametrize("name", DIGESTS)
def test_a_file_of_format_1_keeps_its_digest_and_is_the_same_case_in_format_2(name: str) -> None:
    seed = codec.read(DATA / f"seed-format-1-{name}.json")
    assert codec.digest(seed.case) == DIGESTS[name]
    assert codec.loads(codec.dumps(seed)) == seed


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message[:60] for _, message in REFUSED])
def test_a_wrong_part_is_refused_by_name_and_value(change: Change, message: str) -> None:
    need_refused(NEW, change, message)


def test_names_of_older_releases_are_read_and_those_of_the_newest_are_written() -> None:
    text = NEW.read_text()
    seed = codec.loads(text.replace("cuda_graph_bs_decode", "cuda_graph_bs"))
    assert seed == codec.read(NEW) and codec.dumps(seed) == text


def test_values_are_written_as_sglang_has_them() -> None:
    changes: dict[str, Any] = {"padded": False, "kv_dtype": "fp8_e5m2", "window": 7, "swa": True, "runner": "decode"}
    setup = dataclasses.replace(SETUP, topk=1, num_steps=1, num_draft_tokens=2, **changes)
    step = Step(requests=(REQUEST,), mirrored=False, hidden="last")
    form: dict[str, Any] = codec.case_to_json(Case(setup=setup, steps=(step,)))
    assert form["setup"]["server_args"]["disable_cuda_graph_padding"] is True
    assert form["setup"]["server_args"]["kv_cache_dtype"] == "fp8_e5m2"
    assert form["setup"]["model"]["layer_types"] == ["sliding_attention", "full_attention"]
    assert form["setup"]["model"]["sliding_window"] == 7 and "draft_model" not in form["setup"]
    assert (form["steps"][0]["seq_lens_cpu"], form["steps"][0]["capture_hidden_mode"]) == (False, "LAST")
    drafting = codec.case_to_json(Case(setup=dataclasses.replace(SETUP, window=7), steps=()))
    assert drafting["setup"]["draft_model"] == {"sliding_window": 7}
    serving = dataclasses.replace(SETUP, runner="round", overlap=True, pool=64)
    arriving = Case(setup=serving, steps=(Step(requests=(dataclasses.replace(REQUEST, further=3),)),))
    form = codec.case_to_json(arriving)
    assert form["setup"]["server_args"]["disable_overlap_schedule"] is False
    assert form["setup"]["server_args"]["max_total_tokens"] == 64
    assert form["steps"][0]["requests"][0]["max_new_tokens"] == 4
    assert codec.case_from_json(form) == arriving
