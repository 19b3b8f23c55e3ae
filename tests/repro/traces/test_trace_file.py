"""Traces that are kept: what comes back, what is refused, and judging them again without running."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuzz.__main__
from oracles.catalogue import judge_all
from repro.__main__ import main
from repro.cases import codec
from repro.cases.case import Target
from repro.traces import trace_file
from repro.traces.finding import Status
from repro.traces.trace import End, RecordedArray, Termination
from repro.traces.trace_file import BadTrace, Kept, beside, load, save
from tests.builders.project import DATA
from tests.builders.toy_traces import toy_trace
from tests.repro.test_repro_main import CASE

STALE = toy_trace(CASE, "stale_padding")
TARGET = Target("stale_padding", "toy")


def kept(folder: Path, **changes: Any) -> Path:
    path = folder / "a.trace.npz"
    save(path, Kept(case=CASE, target=TARGET, trace=replace(STALE, **changes)))
    return path


def test_a_trace_comes_back_and_is_judged_alike(tmp_path: Path) -> None:
    ended = End(how=Termination.CRASHED, step=1, path="replay", what="SIGSEGV", detail="gone")
    for trace in (STALE, replace(STALE, ended=ended, seen=STALE.seen[:5])):
        path = kept(tmp_path, ended=trace.ended, seen=trace.seen)
        again = load(path)
        assert (again.case, again.target, again.trace.ended) == (CASE, TARGET, trace.ended)
        assert dict(again.trace.facts) == dict(trace.facts) and dict(again.trace.seconds) == dict(trace.seconds)
        for stored, other in zip(again.trace.seen, trace.seen, strict=True):
            assert (stored.step, stored.path, stored.name, stored.array.dtype) == (
                other.step,
                other.path,
                other.name,
                other.array.dtype,
            )
            assert np.array_equal(stored.array, other.array) and stored.array.shape == other.array.shape
        assert judge_all(CASE, again.trace) == judge_all(CASE, trace)
    assert [stored.name for stored in tmp_path.iterdir()] == ["a.trace.npz"]


def test_a_trace_with_a_case_of_format_1_is_judged_as_before() -> None:
    """Made by the version before, of the same case and target."""
    old = load(DATA / "trace-1.npz")
    assert (old.case, old.target) == (CASE, TARGET)
    failed, again = (
        [verdict for verdict in judge_all(case, trace) if verdict.status is Status.FAIL]
        for case, trace in ((old.case, old.trace), (CASE, STALE))
    )
    assert failed == again != []


def test_what_is_too_large_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept(tmp_path)
    monkeypatch.setattr(trace_file, "BYTES_MAX", 100)
    with pytest.raises(BadTrace, match="0 MiB of arrays"):
        kept(tmp_path)
    with pytest.raises(BadTrace, match="are too many"):
        load(path)


def test_only_plain_numbers_are_kept(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="graph words is not an array of plain numbers"):
        kept(tmp_path, seen=(RecordedArray(step=0, path="graph", name="words", array=np.array(["a"])),))


def test_judging_says_what_the_oracles_say_today(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = kept(tmp_path)
    clean = tmp_path / "clean.npz"
    save(clean, Kept(case=CASE, target=Target("clean", "toy"), trace=toy_trace(CASE)))
    assert main(["judge", str(path)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith(f"FAIL {path} on stale_padding/toy: slot0_padding") and "FAIL" in printed
    assert main(["judge", str(clean), "--json"]) == 0
    form = json.loads(capsys.readouterr().out)
    assert (form["exit_code"], form["traces"][0]["status"], form["traces"][0]["target"]) == (0, "PASS", "clean/toy")
    assert {v["oracle"] for v in form["traces"][0]["verdicts"]} >= {"ended", "slot0_padding", "graph_equals_eager"}
    # One bad file does not hold up the rest.
    assert main(["judge", str(tmp_path / "none.npz"), str(path)]) == 3
    output = capsys.readouterr()
    assert output.err.count("\n") == 1 and "none.npz: No such file" in output.err and output.out.startswith("FAIL")


def harmed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with np.load(path) as file:
        head, body = json.loads(file["head"].tobytes()), file["body"]
    change(head)
    np.savez_compressed(path, head=np.frombuffer(json.dumps(head).encode(), dtype=np.uint8), body=body)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_text("{}"), "damaged, or no trace"),
        (lambda path: path.write_bytes(path.read_bytes()[:-50]), "damaged, or no trace"),
        (lambda path: path.write_bytes(b""), "damaged, or no trace"),
        (lambda path: np.savez(path, other=np.zeros(1)), "no trace: expected the members"),
        (lambda path: np.savez(path, head=np.array([{}], dtype=object), body=np.zeros(1)), "no array of its bytes"),
        (lambda path: harmed(path, lambda head: head.update(format=2)), "format 2 is unknown: this version reads 1"),
        (lambda path: harmed(path, lambda head: head.pop("seen")), "not a trace"),
        (lambda path: harmed(path, lambda head: head["seen"].pop(0)), "not a trace"),
        (lambda path: harmed(path, lambda head: head["seen"].insert(0, [0, "a", "b", "|O", [1]])), "not a trace"),
        (lambda path: harmed(path, lambda head: head["seen"].insert(0, [0, "a", "b", "<i8", [-1]])), "not a trace"),
        (lambda path: harmed(path, lambda head: head["seen"].insert(0, ["0", "a", "b", "<i8", [0]])), "not a trace"),
        (lambda path: harmed(path, lambda head: head["seen"].insert(0, [0, "a", 7, "<i8", [0]])), "not a trace"),
        (lambda path: harmed(path, lambda head: head["ended"].update(how="well")), "not a trace"),
        (lambda path: harmed(path, lambda head: head.update(target="nowhere")), "not a trace"),
        (
            lambda path: harmed(path, lambda head: head["case"]["setup"].update(server_args={})),
            "not a trace",
        ),
        (lambda path: harmed(path, lambda head: head.update(case={"setup": 1})), "not a trace"),
    ],
)
def test_what_is_no_trace_is_one_line(
    harm: Callable[[Path], object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = kept(tmp_path)
    harm(path)
    assert main(["judge", str(path)]) == 3
    output = capsys.readouterr()
    assert str(path) in output.err and message in output.err and output.err.count("\n") == 1 and output.out == ""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_campaign_keeps_the_trace_of_each_finding(workers: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["run", "--target", str(TARGET), "--cases", "24", "--confirm", "1", "--workers", workers]
    assert fuzz.__main__.main([*words, "--out", str(out), "--keep-traces"]) == 1
    seeds = sorted(path for path in (out / "stale-padding-toy").glob("*.json") if len(path.suffixes) == 1)
    assert seeds
    for seed in seeds:
        stored, again = codec.read(seed), load(beside(seed))
        assert again.case == stored.case and again.target == TARGET
        failing = [(v.oracle, v.where) for v in judge_all(again.case, again.trace) if v.status.name == "FAIL"]
        assert (stored.about["oracle"], stored.about["where"]) in failing
    assert main(["judge", *(str(beside(seed)) for seed in seeds)]) == 1
