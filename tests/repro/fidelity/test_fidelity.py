"""Agreement of two targets: what counts as the same, what as a tie, and python -m repro fidelity."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.tolerance import ENGINE_ULPS, EPSILON, across_engines
from repro.__main__ import main
from repro.cases import codec
from repro.cases.case import Target
from repro.cases.codec import Seed
from repro.cases.runner_facts import RUNNER_FACTS
from repro.fidelity.compare import CHOICES, LISTED, OUTPUT, OVERALL, SLOTS, VALUES, Agreement, Disagreement, summary
from repro.fidelity.observation import Observation, observe
from repro.fidelity.recording import load
from repro.traces.finding import Status, Verdict
from repro.traces.trace import End, RecordedArray, Termination, Trace
from runners.targets.environments import whole_record
from tests.builders.fidelity_traces import (
    TRACE,
    agreement_of,
    compared,
    seen,
    slot_of,
    with_scores,
    with_variant,
    without_rows,
)
from tests.builders.toy_traces import changed, drawn_cases, put, toy_trace
from tests.repro.test_repro_main import CASE

pytestmark = pytest.mark.slow

Change = Callable[[Trace], Trace]


def outputs(agreement: Agreement) -> list[Disagreement]:
    return [row for row in agreement.disagreements if row.kind in (CHOICES, SLOTS, VALUES)]


def of_kind(agreement: Agreement, kind: str) -> dict[str, int]:
    return dict(agreement.ways[kind])


def both_paths(step: int, name: str, change: Callable[[Any], Any]) -> Change:
    """The same change of graph and eager, as another engine would show it."""
    return lambda trace: changed(changed(trace, step, "graph", name, change), step, "eager", name, change)


def test_a_target_agrees_with_itself() -> None:
    for case in drawn_cases(6, seed=5):
        agreement = agreement_of()
        assert agreement.add(seen(toy_trace(case), case), seen(toy_trace(case), case)) == []
        assert all(set(ways) <= {"agree", "not recorded"} for ways in agreement.ways.values())
        assert agreement.farthest == 0
    rows = sum(len(step.requests) for step in CASE.steps)
    assert of_kind(compared(TRACE, TRACE), CHOICES) == {"agree": 2 * rows}


def test_verdicts_that_differ() -> None:
    agreement = compared(TRACE, toy_trace(CASE, "stale_padding"))
    kinds = {row.kind: row.detail for row in agreement.disagreements}
    assert kinds["slot0_padding"].startswith("PASS on here/toy, FAIL (padded rows of ")
    assert kinds[OVERALL] == "PASS on here/toy, FAIL on there/toy"
    assert of_kind(agreement, "ended") == {"agree": 1}
    assert of_kind(agreement, "slot0_padding") == {"differ": 1}


def test_two_failures_agree_where_they_are_the_same_failure() -> None:
    padding, request = toy_trace(CASE, "stale_padding"), toy_trace(CASE, "stale_req_pool")
    assert of_kind(compared(padding, padding), "slot0_padding") == {"agree": 1}
    agreement = compared(padding, request)
    assert of_kind(agreement, "slot0_padding") == {"differ": 1}
    assert of_kind(agreement, OVERALL) == {"agree": 1}


def test_a_crash_on_one_side_is_a_disagreement() -> None:
    crashed = replace(TRACE, ended=End(how=Termination.CRASHED, step=1, path="replay", what="CUDA error: lost"))
    agreement = compared(TRACE, crashed)
    assert "ended" in {row.kind for row in agreement.disagreements}
    assert "FAIL (crashed CUDA error: lost in replay) on there/toy" in agreement.disagreements[0].detail


def test_a_tree_that_differs() -> None:
    agreement = compared(TRACE, both_paths(1, "tokens", put((2, 0), 99))(TRACE))
    assert [(row.kind, row.step, row.path, row.row) for row in outputs(agreement)] == [
        (CHOICES, 1, "graph", 2),
        (CHOICES, 1, "eager", 2),
    ]
    tokens = TRACE.get(1, "eager", "tokens")
    assert tokens is not None
    assert outputs(agreement)[0].detail == (
        f"tokens {tokens[2].tolist()} on here/toy, {[99, *tokens[2].tolist()[1:]]} on there/toy"
    )
    assert of_kind(agreement, CHOICES)["differ"] == 2
    text = summary(agreement.disagreements)
    assert any("trees and tokens in step 1 graph row 2" in line and line.endswith("(and 1 more)") for line in text)


@pytest.mark.parametrize("side", ["here", "there"])
def test_a_tree_that_noise_turns_over_is_a_tie(side: str) -> None:
    other = both_paths(1, "tokens", put((2, 0), 99))(TRACE)
    noisy = with_variant(TRACE if side == "here" else other, 1, "parents", put((2, 0), 77))
    agreement = compared(noisy, other) if side == "here" else compared(TRACE, noisy)
    assert outputs(agreement) == []
    assert of_kind(agreement, CHOICES)["tie"] == 2
    # Noise in another row excuses nothing.
    elsewhere = with_variant(TRACE, 1, "parents", put((1, 0), 77))
    assert len(outputs(compared(elsewhere, other))) == 2


@pytest.mark.parametrize("parts", [0.5, 0.99, 1.01, 1000.0])
def test_kv_values_lie_within_what_is_allowed_or_not(parts: float) -> None:
    place, _ = slot_of(0, 1)
    rows = TRACE.get(0, "eager", "kv_rows")
    slots, allocated = TRACE.get(0, "eager", "kv_slots"), TRACE.get(0, "input", "out_cache_loc")
    assert rows is not None and slots is not None and allocated is not None
    scale = np.abs(rows[np.isin(slots, allocated[1])]).max()
    off = parts * ENGINE_ULPS["float32"] * EPSILON["float32"] * scale
    # In the smallest element, so that the scale stays.
    column = int(np.argmin(np.abs(rows[place])))
    agreement = compared(TRACE, both_paths(0, "kv_rows", put((place, column), rows[place, column] + off))(TRACE))
    if parts < 1:
        assert outputs(agreement) == []
        assert agreement.farthest == pytest.approx(parts, rel=0.05)
    else:
        assert {(row.kind, row.step, row.row) for row in outputs(agreement)} == {(VALUES, 0, 1)}
        assert "allowed, on values up to" in outputs(agreement)[0].detail


def test_values_that_noise_moves_as_far_are_no_disagreement() -> None:
    place, _ = slot_of(0, 1)
    rows = TRACE.get(0, "eager", "kv_rows")
    assert rows is not None
    rounding = 20 * EPSILON["float32"] * float(np.abs(rows).max())
    moved = both_paths(0, "kv_rows", put((place, 0), rows[place, 0] + 4 * rounding))(TRACE)
    noisy = with_variant(TRACE, 0, "kv_rows", put((place, 0), rows[place, 0] + rounding))
    assert outputs(compared(noisy, moved)) == []
    # Noise that is far from rounding shows a choice that is tied, of which the outputs show nothing.
    turned = both_paths(0, "kv_rows", put((place, 0), rows[place, 0] + 5))(TRACE)
    assert len(outputs(compared(TRACE, turned))) == 2
    agreement = compared(with_variant(TRACE, 0, "kv_rows", put((place, 0), rows[place, 0] + 3)), turned)
    assert outputs(agreement) == []
    assert of_kind(agreement, VALUES)["tie"] == 2


def test_a_value_that_is_no_number_on_one_side_is_far_away() -> None:
    place, _ = slot_of(0, 1)
    nan = both_paths(0, "kv_rows", put((place, 0), np.nan))(TRACE)
    assert "inf apart" in outputs(compared(TRACE, nan))[0].detail
    assert outputs(compared(nan, nan)) == []


def test_a_slot_that_one_side_did_not_write() -> None:
    place, slot = slot_of(0, 1)
    other = TRACE
    for path in ("graph", "eager"):
        for name in ("kv_slots", "kv_rows"):
            other = changed(other, 0, path, name, lambda array: np.delete(array, place, axis=0))
    rows_found = outputs(compared(TRACE, other))
    assert [(row.kind, row.row) for row in rows_found] == [(SLOTS, 1)] * 2
    assert rows_found[0].detail == f"slot {slot} written on here/toy, untouched on there/toy"


def test_what_was_not_recorded_is_said_so() -> None:
    agreement = compared(without_rows(TRACE), TRACE)
    assert set(of_kind(agreement, VALUES)) == {"not recorded"}
    assert outputs(agreement) == []


def test_a_case_that_one_target_cannot_run_is_not_compared() -> None:
    refused = Trace(ended=End(how=Termination.UNSUPPORTED, what="no such kernels"))
    agreement = compared(TRACE, refused)
    assert (agreement.compared, agreement.disagreements, agreement.ways) == (0, [], {})
    assert agreement.not_compared == [f"case {codec.digest(CASE)}: there/toy: no such kernels"]


def test_the_tolerance_grows_with_noise_and_scale() -> None:
    assert across_engines(0.0, 0.0, "float32") == 0
    assert across_engines(0.0, 2.0, "float16") == 2 * across_engines(0.0, 1.0, "float16")
    assert across_engines(1.0, 1.0, "bfloat16") > across_engines(0.0, 1.0, "bfloat16") > 0


def test_real_engines_are_asked_for_all_and_for_whole_products() -> None:
    emulated = {"EAGLEEYE_RECORD": "whole", "EAGLEEYE_REFERENCE": "1"}
    assert whole_record(Target("0.5.13", "emulated")) == emulated
    assert whole_record(Target("0.5.13", "cuda")) == emulated | {"TRITON_F32_DEFAULT": "ieee"}


def test_other_outputs_lie_within_what_is_allowed_or_not() -> None:
    for off, kinds in ((2.0**-20, set()), (0.25, {OUTPUT})):
        other = with_scores(TRACE, 1, partial(np.add, np.float32(off)))
        agreement = compared(with_scores(TRACE), other)
        assert {row.kind for row in agreement.disagreements} == kinds
    assert "scores up to 0.25 apart" in agreement.disagreements[0].detail
    # Where noise alone moves a row as far, it is a tie.
    noisy = with_variant(with_scores(TRACE), 1, "scores", lambda scores: scores + np.float32(0.2))
    agreement = compared(noisy, other)
    assert agreement.disagreements == []
    assert of_kind(agreement, OUTPUT)["tie"] == 2 * len(CASE.steps[1].requests)
    missing = compared(TRACE, other)
    assert {row.kind for row in missing.disagreements} == {OUTPUT}


def without_a_graph(*targets: int) -> Observation:
    move = Trace(
        ended=End(how=Termination.DONE),
        seen=(RecordedArray(step=0, path="accept", name="targets", array=np.array(targets, dtype=np.int64)),),
    )
    return observe(CASE, move, (), Status.PASS)


def test_lists_of_runners_without_a_graph_are_equal_or_differ() -> None:
    agreement = agreement_of()
    assert agreement.add(without_a_graph(3, 4), without_a_graph(3, 4)) == []
    (differing,) = agreement.add(without_a_graph(3, 4), without_a_graph(3, 5))
    assert str(differing).endswith("lists and events in step 0: accept targets [3, 4] on here/toy, [3, 5] on there/toy")
    assert of_kind(agreement, LISTED) == {"agree": 1, "differ": 1}


@pytest.mark.parametrize(("other", "way"), [(Status.PASS, "tie"), (Status.FAIL, "differ")])
def test_a_doubt_about_a_tie_on_one_target_is_a_tie(other: Status, way: str) -> None:
    doubt = Verdict(oracle="graph_equals_eager", status=Status.UNKNOWN, where="tie")
    came_to_its_end = replace(doubt, oracle="ended", status=Status.PASS, where="")
    doubtful, decided = (
        replace(seen(TRACE), verdicts=(came_to_its_end, verdict), overall=verdict.status, steps={})
        for verdict in (doubt, replace(doubt, status=other, where=""))
    )
    agreement = agreement_of()
    assert bool(agreement.add(doubtful, decided)) is (way == "differ")
    assert of_kind(agreement, "graph_equals_eager") == of_kind(agreement, OVERALL) == {way: 1}


@pytest.fixture
def seed(tmp_path: Path) -> str:
    path = tmp_path / "seed.json"
    codec.write(path, Seed(case=CASE))
    return str(path)


def rows_of(out: str) -> dict[str, list[str]]:
    """The cells of the table, by kind."""
    kinds = ("slot0_padding", "ended", OVERALL, CHOICES, SLOTS, VALUES)
    return {
        kind: line[len(kind) :].split() for line in out.splitlines() for kind in kinds if line.startswith(kind + " ")
    }


def test_two_targets_that_agree(seed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "agreement.json"
    assert main(["fidelity", seed, "--target", "clean/toy", "--target", "clean/toy", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0] == "clean/toy and clean/toy: 1 case compared, 0 disagreements"
    assert rows_of(text)["slot0_padding"] == ["1", "100%"]
    form = json.loads(out.read_text())
    assert (form["targets"], form["compared"], form["agree"]) == (["clean/toy"] * 2, 1, True)


def test_two_targets_that_disagree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--drawn", "12", "--seed", "4", "--out", str(tmp_path / "kept"), "--json", str(tmp_path / "all.json")]
    assert main(["fidelity", *arguments, "--targets", "clean/toy", "graph_differs/toy"]) == 1
    lines = capsys.readouterr().out.splitlines()
    form = json.loads((tmp_path / "all.json").read_text())
    assert form["compared"] == 12
    digests = {line.split(":")[0].removeprefix("case ") for line in lines if line.startswith("case ")}
    assert digests == {row["case"] for row in form["disagreements"]}
    # Each can be looked at on its own.
    kept = {path.stem: codec.read(path) for path in (tmp_path / "kept").iterdir()}
    assert kept.keys() == digests
    for digest, stored in kept.items():
        assert codec.digest(stored.case) == digest
        assert "graph_differs/toy" in str(stored.about["disagree"])


def test_over_two_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, drawn = str(tmp_path / "kept.npz"), ["--drawn", "6", "--cases-per-setup", "3"]
    out = ["--out", str(tmp_path / "out")]
    assert main(["fidelity", *drawn, "--targets", "clean/toy", "--record", kept]) == 0
    assert capsys.readouterr().out.startswith(f"{kept}: 6 cases on clean/toy, 0.")
    assert main(["fidelity", "--against", kept, "--targets", "clean/toy"]) == 0
    assert "6 cases compared, 0 disagreements" in capsys.readouterr().out
    assert main(["fidelity", "--against", kept, "--targets", "stale_padding/toy", *out]) == 1
    over_two = [line for line in capsys.readouterr().out.splitlines() if line.startswith("case ")]
    assert main(["fidelity", *drawn, "--targets", "clean/toy", "stale_padding/toy", *out]) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("case ")] == over_two


def test_recordings_of_several_targets_are_not_compared_with_a_third(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / f"{name}.npz") for name in ("clean", "stale_padding")]
    for path, target in zip(files, ("clean/toy", "stale_padding/toy"), strict=True):
        assert main(["fidelity", "--drawn", "1", "--targets", target, "--record", path]) == 0
    capsys.readouterr()
    assert main(["fidelity", "--against", *files, "--targets", "graph_differs/toy"]) == 3
    assert capsys.readouterr().err == ("error: the recordings are of several targets: clean/toy, stale_padding/toy\n")


def test_all_runners_and_backends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, form = tmp_path / "kept", tmp_path / "all.json"
    few = ["--drawn", "1", "--targets", "clean/toy"]
    assert main(["fidelity", "--runner", "toy", "--backend", "all", *few, "--record", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["toy-flashinfer.npz", "toy-triton.npz"]
    capsys.readouterr()
    assert main(["fidelity", "--against", str(folder), "--targets", "clean/toy", "--json", str(form)]) == 0
    assert "2 cases compared, 0 disagreements" in capsys.readouterr().out
    pairs = json.loads(form.read_text())["pairs"]
    assert {pair: kinds["cases"] for pair, kinds in pairs.items()} == {
        "toy/triton": {"compared": 1},
        "toy/flashinfer": {"compared": 1},
    }
    assert main(["fidelity", "--runner", "all", *few, "--record", str(tmp_path / "every")]) == 0
    names = {path.stem for path in (tmp_path / "every").iterdir()}
    assert names == {f"{runner}-{b}" for runner, row in RUNNER_FACTS.items() if runner != "toy" for b in row.backends}


def test_what_the_recording_host_could_not_run_is_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = str(tmp_path / "kept.npz")
    assert main(["fidelity", "--drawn", "2", "--targets", "unsupported/toy", "--record", kept]) == 2
    capsys.readouterr()
    monkeypatch.setattr("repro.commands.fidelity._observed", lambda *arguments: pytest.fail("a case was run"))
    assert main(["fidelity", "--against", kept, "--targets", "clean/toy"]) == 2
    assert "not compared: 2 cases" in capsys.readouterr().out


def test_nothing_compared_is_2_with_the_reason(seed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fidelity", seed, "--targets", "clean/toy", "unsupported/toy"]) == 2
    out = capsys.readouterr().out
    assert "clean/toy and unsupported/toy: 0 cases compared" in out
    assert "1 x unsupported/toy: this toy target cannot be built anywhere" in out
    assert main(["fidelity", seed, "--targets", "unsupported/toy", "--record", str(tmp_path / "kept.npz")]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("SEED --targets clean/toy", "two targets are needed, not 1"),
        ("SEED --targets clean/toy clean/toy clean/toy", "two targets are needed, not 3"),
        ("SEED --targets clean/toy clean/toy --record X.npz", "one target is needed, not 2"),
        ("--targets clean/toy --record X.npz --against Y.npz", "are for two different hosts"),
        ("--targets clean/toy clean/toy", "cases come from seed files, or from --drawn N"),
        ("SEED --drawn 3 --targets clean/toy clean/toy", "cases come from seed files, or from --drawn N"),
        ("SEED --against Y.npz --targets clean/toy", "cases come from seed files, or from --drawn N"),
        ("SEED --targets clean/toy 0.0.1/emulated", "sglang 0.0.1 is not installed"),
        ("missing.json --targets clean/toy clean/toy", "missing.json: No such file"),
        ("--drawn 0 --targets clean/toy clean/toy", "expected a positive integer, got '0'"),
        ("--drawn 3 --runner kv_move --backend flashinfer --targets clean/toy clean/toy", "kv_move runner has triton"),
        ("--against . --targets clean/toy", "no recording in this folder"),
        ("SEED --targets clean/toy --record /dev/null/x.npz", "Not a directory"),
    ],
)
def test_bad_input_is_3_and_one_line(
    arguments: str, message: str, seed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fidelity", *arguments.replace("SEED", seed).split()]) == 3
    output = capsys.readouterr()
    assert message in output.err and output.err.count("\n") == 1 and output.out == ""


def test_interrupted_it_tells_of_what_was_compared(
    seed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0

    def impatient(*arguments: object) -> Observation:
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        return seen(TRACE)

    monkeypatch.setattr("repro.commands.fidelity._observed", impatient)
    assert main(["fidelity", "--drawn", "9", "--targets", "clean/toy", "clean/toy"]) == 3
    output = capsys.readouterr()
    assert output.err == "error: interrupted\n"
    assert "2 cases compared, 0 disagreements" in output.out
    count = 0
    assert main(["fidelity", "--drawn", "9", "--targets", "clean/toy", "--record", str(tmp_path / "kept.npz")]) == 3
    assert len(load(tmp_path / "kept.npz").observations) == 4


def test_status_of_a_run_that_did_not_take_place_is_not_kept() -> None:
    array = RecordedArray(step=0, path="graph", name="a", array=np.zeros(1))
    for how in (Termination.UNSUPPORTED, Termination.ERROR):
        refused = seen(Trace(ended=End(how=how), seen=(array,)))
        assert (refused.verdicts, refused.overall) == ((), None)
    assert seen(TRACE).overall is Status.PASS
