"""python -m repro, with the toy as its target: what it says, its exit codes, and what a user can do wrong."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from repro.__main__ import main
from repro.cases import codec
from repro.cases.case import Case, Request, Setup, Step
from repro.cases.codec import Seed
from repro.shrinking.replay import outcome_of
from repro.traces.finding import fingerprint
from runners.processes import sanitizer
from runners.processes.pool import Pool
from tests.builders.misbehaving import going
from tests.builders.project import PROJECT

pytestmark = pytest.mark.slow

SETUP = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(2, 4), slots=6)


def batch(*slots: int) -> Step:
    return Step(requests=tuple(Request(slot=slot, seq_len=4 + slot, data=slot) for slot in slots))


CASE = Case(setup=SETUP, steps=(batch(1, 2), batch(3, 4, 5, 6), batch(2, 3, 4)))
FULL = Case(setup=SETUP, steps=(batch(1, 2), batch(3, 4, 5, 6)))


@pytest.fixture
def seed(tmp_path: Path) -> Path:
    path = tmp_path / "seed.json"
    codec.write(path, Seed(about={"name": "two, four, three"}, case=CASE))
    return path


@pytest.fixture
def full(tmp_path: Path) -> Path:
    path = tmp_path / "full.json"
    codec.write(path, Seed(case=FULL))
    return path


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    output = capsys.readouterr()
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    return output.err


def test_a_pass(seed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(seed), "--target", "clean/toy", "--quiet"]) == 0
    output = capsys.readouterr()
    assert (output.out, output.err) == (f"PASS {seed} on clean/toy: failed 0 of 1 runs\n", "")


def test_a_failure_in_one_line_and_a_table(seed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(seed), "--target", "stale_req_pool/toy", "--tries", "3", "--fresh"]) == 1
    first, *table = capsys.readouterr().out.splitlines()
    assert first.startswith(f"FAIL {seed} on stale_req_pool/toy: slot0_padding at padded rows of req_pool_indices")
    assert ": 3 of 3 runs" in first
    assert any(row.split()[:5] == ["FAIL", "slot0_padding", "3", "of", "3"] for row in table)
    assert any(row.startswith("PASS") for row in table)


def test_several_seeds_on_several_targets(seed: Path, full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = ["--target", "clean/toy", "--target", "stale_padding/toy"]
    assert main(["run", str(seed), str(full), *targets, "--quiet"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"PASS {seed} on clean/toy",
        f"PASS {full} on clean/toy",
        f"FAIL {seed} on stale_padding/toy",
        f"PASS {full} on stale_padding/toy",
        "4 in all",
    ]


def test_a_crash_is_a_failure_and_the_next_case_runs(seed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(seed), "--target", "crash/toy", "--target", "clean/toy", "--quiet", "--tries", "2"]) == 1
    crash, fine, total = capsys.readouterr().out.splitlines()
    assert "ended at crashed SIGABRT" in crash
    assert ": 2 of 2 runs" in crash
    assert fine.startswith("PASS")
    assert total == "2 in all: 1 FAIL, 1 PASS; 0 as expected, 0 not"


def test_a_hang_is_a_failure(seed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(seed), "--target", "hang/toy", "--timeout", "0.3", "--quiet"]) == 1
    assert "ended at hung" in capsys.readouterr().out


@pytest.mark.parametrize("way", ["kill-worker", "garbage", "raise-in-build", "crash-in-build"])
def test_trouble_of_ours_is_an_error_and_no_verdict(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanitizer, "Pool", functools.partial(Pool, session="tests.builders.misbehaving"))
    path = tmp_path / "seed.json"
    codec.write(path, Seed(case=going(way)))
    assert main(["run", str(path), "--target", "clean/toy"]) == 3
    assert f"{path} on clean/toy: could not be run: " in error_of(capsys)


def test_a_run_that_nobody_can_judge_is_unknown(seed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The toy's tie: one bit of rounding decides between equal candidates, which is nobody's mistake."""
    assert main(["run", str(seed), "--target", "tie/toy", "--quiet"]) == 2
    assert capsys.readouterr().out.startswith(f"UNKNOWN {seed} on tie/toy: graph_equals_eager: ")


def test_json_is_all_that_is_printed(seed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", str(seed), "--target", "clean/toy", "--target", "stale_seq_lens/toy", "--tries", "2", "--json"]
    assert main(arguments) == 1
    form = json.loads(capsys.readouterr().out)
    assert form["exit_code"] == 1
    fine, wrong = form["replays"]
    assert (fine["status"], fine["failed"], fine["tried"]) == ("PASS", 0, 2)
    assert (wrong["status"], wrong["oracle"], wrong["failed"], wrong["tried"]) == ("FAIL", "slot0_padding", 2, 2)
    assert wrong["digest"] == codec.digest(CASE)
    assert len(wrong["fingerprint"]) == 12
    assert "toy" in wrong["facts"]["sglang"]


BAD = {
    "wrong type": (
        '"req_pool_idx": 1',
        '"req_pool_idx": "1"',
        'steps[0].requests[0].req_pool_idx: expected an integer, not "1"',
    ),
    "unknown format": ('"format": 2', '"format": 7', "format 7 is unknown: this version reads formats 1 and 2"),
    "impossible batch": (
        '"req_pool_idx": 2',
        '"req_pool_idx": 1',
        "not a valid case: step 0: a slot is used twice in [1, 1]",
    ),
    "misspelt key": (
        '"page_size"',
        '"page_sise"',
        'setup.server_args: unknown key "page_sise"; did you mean page_size?',
    ),
    "key of format 1": ('"runner"', '"topk": 2, "runner"', "setup: topk is a key of format 1; in format 2 it is"),
    "key of another part": ('"runner"', '"page_size": 2, "runner"', "setup: page_size belongs in setup.server_args"),
    "format 1 with a part": ('"format": 2', '"format": 1', "setup: server_args is a key of format 2, and this"),
    "not a number": ('"data": 1', '"data": NaN', "steps[0].requests[0].data: expected an integer, not NaN"),
    "no JSON": ('"format"', "format", "not JSON: Expecting property name"),
}


@pytest.mark.parametrize(("old", "new", "message"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("command", ["run", "shrink", "show", "check"])
def test_what_is_no_seed_is_refused_in_one_line(
    command: str, old: str, new: str, message: str, seed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed.write_text(seed.read_text().replace(old, new, 1))
    target = ["--target", "clean/toy"] if command in ("run", "shrink") else []
    assert main([command, str(seed), *target]) == 3
    assert f"{seed}: {message}" in error_of(capsys)


def test_truncated_missing_and_huge_files_are_refused(
    tmp_path: Path, seed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed.write_text(seed.read_text()[:300])
    assert main(["check", str(seed)]) == 3
    assert "ends too early" in error_of(capsys)
    assert main(["run", str(tmp_path / "none.json"), "--target", "clean/toy"]) == 3
    assert "none.json: No such file" in error_of(capsys)
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(100 << 20)
    begun = time.process_time()
    assert main(["run", str(tmp_path / "huge.json"), "--target", "clean/toy"]) == 3
    assert "104857600 bytes are too many" in error_of(capsys)
    assert time.process_time() - begun < 0.5


def test_one_bad_seed_does_not_hold_up_the_others(seed: Path, full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full.write_text("{")
    assert main(["run", str(full), str(seed), "--target", "stale_padding/toy", "--quiet"]) == 3
    output = capsys.readouterr()
    assert "FAIL" in output.out
    assert "full.json" in output.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["explode"], "invalid choice: 'explode'"),
        (["run", "x.json"], "the following arguments are required: --target"),
        (["run", "x.json", "--target", "0.5.13"], "target '0.5.13': expected RELEASE/ENGINE or PATH@ENGINE"),
        (["run", "x.json", "--target", "0.5.13/vax"], "with an engine of emulated, cuda, toy"),
        (["run", "x.json", "--target", "clean/toy", "--tries", "0"], "expected a positive integer, got '0'"),
        (["run", "x.json", "--target", "clean/toy", "--timeout", "nan"], "expected a number above 0, got 'nan'"),
        (["shrink", "x.json", "--target", "clean/toy", "--seconds", "-1"], "--seconds"),
        (["check"], "the following arguments are required: SEED.json"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 3
    assert message in error_of(capsys)


def test_an_unknown_release_is_refused_and_the_other_target_runs(
    seed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = ["--target", "0.0.99/emulated", "--target", "clean/toy"]
    assert main(["run", str(seed), *targets, "--quiet"]) == 3
    output = capsys.readouterr()
    assert "0.0.99" in output.err
    assert output.err.count("\n") == 1
    assert output.out.startswith("PASS")
    assert main(["shrink", str(seed), "--target", "0.0.99/emulated"]) == 3
    assert "0.0.99" in error_of(capsys)


def test_shrinking_writes_the_smallest_case_beside_the_seed(seed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shrink", str(seed), "--target", "stale_req_pool/toy"]) == 1
    small = seed.with_suffix(".small.json")
    *_, verdict, shape = capsys.readouterr().out.splitlines()
    assert verdict.startswith(f"FAIL {small} on stale_req_pool/toy: slot0_padding at ")
    assert verdict.endswith(": 3 of 3 runs")
    assert shape.startswith("2 steps with 2 then 1 request on bucket 2, from 3 steps with 2 then 4 then 3 requests on")
    stored = codec.read(small)
    assert [len(step.requests) for step in stored.case.steps] == [2, 1]
    assert stored.about["name"] == "two, four, three"
    assert codec.read(seed).case == CASE
    assert main(["run", str(small), "--target", "stale_req_pool/toy", "--quiet"]) == 1
    assert main(["run", str(small), "--target", "clean/toy", "--quiet"]) == 0


@pytest.mark.parametrize("named", ["", "kv_indices"], ids=["as before buffers were named", "with its buffer"])
def test_shrinking_goes_towards_the_failure_that_the_seed_was_stored_for(
    named: str, seed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """stale_padding fails two oracles; the one named in the file is kept although the other comes first."""
    assert main(["run", str(seed), "--target", "stale_padding/toy", "--json"]) == 1
    verdicts = json.loads(capsys.readouterr().out)["replays"][0]["runs"][0]
    failing = dict.fromkeys(v["oracle"] for v in verdicts if v["status"] == "FAIL")
    assert [*failing] == ["slot0_padding", "kv_indices"]
    second = next(v for v in verdicts if v["oracle"] == "kv_indices")
    assert second["cell"]["buffer"] == "kv_indices"
    stored = fingerprint(CASE.setup.runner, CASE.setup.backend, "kv_indices", second["where"], named)
    codec.write(seed, Seed(about={"fingerprint": stored}, case=CASE))
    out = tmp_path / "out.json"
    assert main(["shrink", str(seed), "--target", "stale_padding/toy", "--out", str(out)]) == 1
    assert codec.read(out).about["oracle"] == "kv_indices"


def test_ctrl_c_leaves_what_was_run_in_the_form(
    seed: Path, full: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:

    def until_the_second(path: Path, *arguments: Any) -> Any:
        if path == full:
            raise KeyboardInterrupt
        return outcome_of(path, *arguments)

    monkeypatch.setattr("repro.commands.run.outcome_of", until_the_second)
    assert main(["run", str(seed), str(full), "--target", "clean/toy", "--json"]) == 3
    output = capsys.readouterr()
    form = json.loads(output.out)
    assert (form["exit_code"], [replay["status"] for replay in form["replays"]]) == (3, ["PASS"])
    assert "interrupted" in output.err


def test_what_does_not_fail_is_not_shrunk(seed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shrink", str(seed), "--target", "clean/toy"]) == 0
    assert capsys.readouterr().out == f"PASS {seed} on clean/toy: failed 0 of 3 runs\n"
    assert not seed.with_suffix(".small.json").exists()
    assert main(["shrink", str(seed), "--target", "unsupported/toy"]) == 2
    assert (
        capsys.readouterr().out == f"UNSUPPORTED {seed} on unsupported/toy: this toy target cannot be built anywhere\n"
    )
    assert main(["shrink", str(seed), "--target", "broken/toy"]) == 3
    assert "this toy session never works" in error_of(capsys)


def test_shrinking_replaces_no_file_of_another_kind(
    seed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    assert main(["shrink", str(seed), "--target", "stale_padding/toy", "--out", str(notes)]) == 3
    assert "notes.txt" in error_of(capsys)
    assert notes.read_text() == "mine"
    assert (
        main(["shrink", str(seed), "--target", "stale_padding/toy", "--out", str(tmp_path / "no" / "folder.json")]) == 3
    )
    assert "No such file or directory" in error_of(capsys)


def test_a_crash_can_be_shrunk(seed: Path) -> None:
    assert main(["shrink", str(seed), "--target", "crash/toy", "--runs", "60"]) == 1
    case = codec.read(seed.with_suffix(".small.json")).case
    assert [len(step.requests) for step in case.steps] == [1]


def test_ctrl_c_keeps_the_best_so_far(seed: Path) -> None:
    """Interrupted as a person would, while a run is under way."""
    options = ["--target", "hang/toy", "--timeout", "0.5", "--tries", "1"]  # so that there is always a run under way
    command = [sys.executable, "-m", "repro", "shrink", str(seed), *options]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    while not process.stdout.readline().startswith("run "):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    small = seed.with_suffix(".small.json")
    assert errors == f"error: interrupted; the best so far is in {small}\n"
    assert process.returncode == 1
    assert len(codec.read(small).case.steps) < len(CASE.steps)


def test_a_case_in_words(seed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(seed)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert f"case {codec.digest(CASE)}: 3 steps with 2 then 4 then 3 requests on buckets 2, 4" in lines
    assert "step 0: 2 requests in bucket 2, full" in lines
    assert "step 2: 3 requests in bucket 4, 1 padded row" in lines
    assert "row 2: slot 4, prefix of 8 tokens, data 4" in lines
    assert "name: two, four, three" in lines


def test_checking_needs_no_target(seed: Path, full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(seed), str(full)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_name_that_no_terminal_can_show_is_no_reason_to_fail(tmp_path: Path) -> None:
    name = os.fsdecode(b"bad\xff\x1b[31m.json")
    codec.write(tmp_path / name, Seed(case=CASE))
    command = [sys.executable, "-m", "repro", "check", str(tmp_path / name), str(tmp_path / ("no" + name))]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, timeout=60, check=False)
    assert done.returncode == 3
    assert b"bad??[31m.json: case" in done.stdout
    assert done.stderr.count(b"\n") == 1
    assert b"\x1b" not in done.stdout + done.stderr
