"""The file that carries observations to another host: what comes back, what is left out, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repro.__main__ import main
from repro.cases.case import Target
from repro.fidelity import recording as recording_module
from repro.fidelity.compare import OUTPUT
from repro.fidelity.observation import StepOutputs
from repro.fidelity.recording import BadRecording, Recording, load, save
from repro.traces.trace import End, Termination, Trace
from tests.builders.fidelity_traces import (
    TRACE,
    agreement_of,
    seen,
    slot_of,
    with_scores,
    with_variant,
    without_rows,
)
from tests.builders.toy_traces import put, toy_trace
from tests.repro.test_repro_main import CASE

pytestmark = pytest.mark.slow


def recording(*traces: Trace) -> Recording:
    return Recording(target=Target("clean", "toy"), observations=tuple(map(seen, traces)))


def test_a_recording_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "kept.npz"
    refused = Trace(ended=End(how=Termination.UNSUPPORTED, what="no such kernels"))
    infinite = with_variant(TRACE, 0, "kv_rows", put((slot_of(0, 0)[0], 0), np.inf))
    traces = (TRACE, toy_trace(CASE, "stale_padding"), refused, infinite, without_rows(TRACE))
    save(path, recording(*traces))
    assert [stored.name for stored in tmp_path.iterdir()] == ["kept.npz"]
    again = load(path)
    assert again.target == Target("clean", "toy")
    for stored, trace in zip(again.observations, traces, strict=True):
        live = seen(trace)
        assert (stored.case, stored.how, stored.what, stored.overall) == (live.case, live.how, live.what, live.overall)
        assert [(v.oracle, v.status, v.where, v.detail) for v in stored.verdicts] == [
            (v.oracle, v.status, v.where, v.detail) for v in live.verdicts
        ]
        agreement = agreement_of(lambda noise, scale, dtype: 0.0)
        assert agreement.add(stored, live) == []
        assert {number: (s.allocated, s.turned, s.noise) for number, s in stored.steps.items()} == {
            number: (s.allocated, s.turned, s.noise) for number, s in live.steps.items()
        }


def test_of_many_kv_rows_some_are_kept_and_all_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "KV_ROWS_KEPT", 5)
    save(tmp_path / "kept.npz", recording(TRACE))
    (stored,) = load(tmp_path / "kept.npz").observations
    outputs_kept, outputs_live = (steps[1].paths["eager"] for steps in (stored.steps, seen(TRACE).steps))
    assert outputs_kept.slots == outputs_live.slots
    assert 3 <= len(outputs_kept.kv) <= 5 < len(outputs_live.kv)
    for slot, row in outputs_kept.kv.items():
        assert np.array_equal(row, outputs_live.kv[slot])


def test_of_wide_rows_some_columns_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = with_scores(TRACE)
    columns = live.get(1, "eager", "scores")
    assert columns is not None and columns.shape[1] == 8
    monkeypatch.setattr(recording_module, "COLUMNS_KEPT", 4)
    monkeypatch.setattr(recording_module, "KV_COLUMNS_KEPT", 3)
    save(tmp_path / "kept.npz", recording(live))
    (kept,) = load(tmp_path / "kept.npz").observations
    outputs = kept.steps[1].paths["eager"]
    assert outputs.values["scores"].tolist() == columns[:, [0, 2, 4, 6]].tolist()
    assert {row.size for row in outputs.kv.values()} == {3}
    # What was kept is compared with the same columns of what is all there.
    for row, column, differs in ((0, 2, True), (0, 3, False)):
        moved = with_scores(TRACE, 1, put((row, column), 9.0))
        agreement = agreement_of(lambda noise, scale, dtype: 0.0)
        assert [difference.kind for difference in agreement.add(kept, seen(moved)) if difference.kind == OUTPUT] == [
            OUTPUT
        ] * 2 * differs


def test_lists_come_back(tmp_path: Path) -> None:
    events = StepOutputs(
        paths={},
        allocated=(),
        turned=(),
        noise={},
        listed={"metadata tokens": np.array([4, 6]), "accept outside": np.array(1)},
    )
    observation = replace(seen(TRACE), steps={0: events})
    save(tmp_path / "kept.npz", Recording(target=Target("clean", "toy"), observations=(observation,)))
    (again,) = load(tmp_path / "kept.npz").observations
    assert again.steps[0].listed["metadata tokens"].tolist() == [4, 6]
    assert again.steps[0].listed["accept outside"].shape == ()


def test_equal_arrays_are_stored_once(tmp_path: Path) -> None:
    sizes = []
    for number in (1, 30):
        save(tmp_path / "kept.npz", recording(*[TRACE] * number))
        with np.load(tmp_path / "kept.npz") as file:
            sizes.append(len(file["body"]))
    assert sizes[0] == sizes[1]


def harmed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The recording with its head changed."""
    with np.load(path) as file:
        head, body = json.loads(file["head"].tobytes()), file["body"]
    change(head)
    np.savez_compressed(path, head=np.frombuffer(json.dumps(head).encode(), dtype=np.uint8), body=body)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_text("{}"), "not a recording"),
        (lambda path: path.write_bytes(path.read_bytes()[:-50]), ""),
        (lambda path: path.write_bytes(b""), ""),
        (lambda path: np.savez(path, other=np.zeros(1)), "not a recording"),
        (lambda path: np.savez(path, head=np.array([{}], dtype=object), body=np.zeros(1)), "no array of its bytes"),
        (lambda path: harmed(path, lambda head: head.update(format=1)), "format 1 is unknown: this version reads 3"),
        (lambda path: harmed(path, lambda head: head.pop("arrays")), "not a recording"),
        (lambda path: harmed(path, lambda head: head["arrays"].pop()), "not a recording"),
        (lambda path: harmed(path, lambda head: head["arrays"].insert(0, ["|O", [1]])), "not a recording"),
        (lambda path: harmed(path, lambda head: head["arrays"].insert(0, ["<i8", [-1]])), "not a recording"),
        (lambda path: harmed(path, lambda head: head.update(target="nowhere")), "not a recording"),
        (lambda path: harmed(path, lambda head: head["cases"][0].update(case={"setup": 1})), "not a recording"),
        (lambda path: harmed(path, lambda head: head["cases"][0]["verdicts"][0].update(status="GOOD")), "not a rec"),
        (
            lambda path: harmed(path, lambda head: head["cases"][0]["case"]["setup"].update(server_args={})),
            "not a recording",
        ),
    ],
)
def test_what_is_no_recording_is_refused_by_name(
    harm: Callable[[Path], object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kept.npz"
    save(path, recording(TRACE))
    harm(path)
    with pytest.raises(BadRecording) as error:
        load(path)
    assert str(path) in str(error.value) and message in str(error.value)
    assert main(["fidelity", "--against", str(path), "--targets", "clean/toy"]) == 3
    assert capsys.readouterr().err.count("\n") == 1
