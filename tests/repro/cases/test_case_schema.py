"""The JSON Schema of a case and the page on how to write one: made from the rows of options, true of all seeds."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from typing import Any

import pytest

from fuzz.draw.rounds import rounds
from oracles.catalogue import judge_all, overall
from repro.__main__ import main
from repro.cases import case_schema, codec
from repro.cases.case import Request, Setup, Step
from repro.cases.codec import Seed
from repro.cases.options import OPTIONS
from repro.cases.release_list import NEWEST
from repro.cases.runner_facts import RUNNER_FACTS
from repro.cases.step_keys import REQUEST, STEP
from repro.traces.finding import Status
from repro.upstream.fixes import SEEDS
from runners.processes.pool import Pool
from tests.builders.project import PROJECT

DOCS = PROJECT / "docs"
PAGE = (DOCS / "cases.md").read_text()
EXAMPLE = re.findall(r"^```json\n(.*?)^```", PAGE, re.M | re.S)[0]


def test_the_files_are_as_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == (DOCS / "case.schema.json").read_text()
    assert main(["schema", "--table"]) == 0
    assert capsys.readouterr().out in PAGE


def test_every_field_has_a_key_and_every_key_a_line_of_the_page() -> None:
    for kind, keys in ((Setup, OPTIONS), (Step, STEP), (Request, REQUEST)):
        fields = {f.name for f in dataclasses.fields(kind)} - {"requests"}
        assert sorted(key.field for key in keys) == sorted(fields)
        for key in keys:
            assert key.owner is kind and f"| `{key.name}` |" in PAGE


def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is missing: make setup-checks")
    return jsonschema.Draft202012Validator(case_schema.schema())


def test_every_seed_and_every_drawn_case_fits() -> None:
    check = validator()
    for path in SEEDS.glob("*.json"):
        assert not list(check.iter_errors(json.loads(path.read_text()))), path
    assert not list(check.iter_errors(json.loads(EXAMPLE)))
    for runner, facts in RUNNER_FACTS.items():
        for case in itertools.islice(rounds(3, runner, facts.backends[-1], 2), 12):
            assert not list(check.iter_errors(json.loads(codec.dumps(Seed(case=case)))))


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("setup", {"page_size": 4}),
        ("server_args", {"speculative_eagle_topk": 11}),
        ("server_args", {"page_sise": 4}),
        ("server_args", {"attention_backend": "fa4"}),
        ("server_args", {"cuda_graph_bs_decode": []}),
        ("server_args", {"disable_cuda_graph_padding": 1}),
        ("model", {"page_size": 4}),
        ("model", {"layer_types": ["full_attention"]}),
        ("draft_model", {"mrope_section": 1}),
        ("step", {"capture_hidden_mode": "last"}),
        ("step", {"layout": -1}),
        ("request", {"seq_len": 0}),
        ("request", {"token": 1}),
    ],
    ids=str,
)
def test_what_a_file_cannot_have_is_no_case(part: str, changes: dict[str, Any]) -> None:
    form = json.loads(EXAMPLE)
    setup: dict[str, Any] = {"draft_model": {}} | form["setup"]
    places = setup | {"setup": setup, "step": form["steps"][0], "request": form["steps"][0]["requests"][0]}
    places[part].update(changes)
    form["setup"] = setup
    assert list(validator().iter_errors(form))


@pytest.mark.emulated(NEWEST)
def test_the_example_of_the_page_runs_and_passes(newest: Pool) -> None:
    case = codec.loads(EXAMPLE).case
    trace = newest.run(case)
    assert trace.replayed == {0, 1} and overall(judge_all(case, trace)) is Status.PASS
