"""python -m fuzz, as its users meet it: exit codes, what it prints and writes, and being interrupted."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from fuzz.__main__ import main
from fuzz.footprint import Footprint
from reports.progress import Display, line
from repro.cases import codec
from repro.cases.case import Target
from repro.traces.campaign import CampaignFinding, Progress, loads
from repro.traces.finding import Status
from tests.builders.project import PROJECT, in_front
from tests.builders.sample_record import stale_found
from tests.builders.waiting import comes

pytestmark = pytest.mark.slow


def run(*arguments: str) -> int:
    return main(arguments)


def process(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fuzz", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": in_front(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def progress_of(findings: tuple[CampaignFinding, ...]) -> Progress:
    return Progress(
        target=Target("clean", "toy"),
        cases=10,
        replays=30,
        seconds=2.0,
        transitions=7,
        transitions_possible=9,
        findings=findings,
        doing="running",
    )


def test_clean_target_is_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "record" / "clean.json"
    code = run("run", "--target", "clean/toy", "--cases", "20", "--out", str(tmp_path / "out"), "--json", str(out))
    assert code == 0
    record = json.loads(out.read_text())
    assert record["cases"] == 20
    assert record["findings"] == []
    assert record["replays"] > 20
    assert record["transitions"] > 4
    assert record["seconds"] > 0
    output = capsys.readouterr()
    assert "clean/toy: 20 cases (20 judged)" in output.out
    assert "\x1b" not in output.out
    assert output.err == ""
    # The record is also where the findings would be, and can be read back.
    (campaign,), replays = loads((tmp_path / "out" / "record.json").read_text())
    assert (campaign.target, campaign.runner, campaign.stopped) == (Target("clean", "toy"), "toy", "cases")
    assert replays == ()


def test_finding_is_1_and_on_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.json"
    arguments = ("run", "--target", "stale_padding/toy", "--cases", "6", "--seed", "0")
    assert run(*arguments, "--out", str(tmp_path), "--json", str(out)) == 1
    record = json.loads(out.read_text())
    stale = {failure["where"]: failure for failure in record["findings"] if failure["oracle"] == "slot0_padding"}
    # Three other buffers are stale in the same cases.
    assert [*stale] == ["padded rows of req_pool_indices"]
    printed = capsys.readouterr().out
    for finding in stale.values():
        assert (finding["failed"], finding["tried"], finding["runner"], finding["backend"]) == (5, 5, "toy", "triton")
        assert codec.read(Path(finding["seed"])).case == codec.case_from_json(finding["case"])
        assert f"slot0_padding {finding['fingerprint']} failed 5 of 5 runs" in printed
    again = tmp_path / "again.json"
    assert run(*arguments, "--out", str(tmp_path / "again"), "--json", str(again)) == 1

    def same(form: dict[str, object]) -> dict[str, object]:
        return {name: form[name] for name in ("fingerprint", "case", "cases", "at_case", "failed", "tried", "cell")}

    assert [same(part) for part in json.loads(again.read_text())["findings"]] == list(map(same, record["findings"]))


@pytest.mark.parametrize("name", ["unsupported", "tie", "never heard of"])
def test_nothing_judged_is_2_with_the_reason(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "--target", f"{name}/toy", "--cases", "4", "--out", str(tmp_path)) == 2
    out = capsys.readouterr().out
    assert "(0 judged)" in out
    assert ("unknown: 4 x graph_equals_eager: tie" if name == "tie" else "unsupported: 4 x ") in out


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_error_is_3_and_told_with_its_reason(
    workers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = ("--target", "broken/toy", "--target", "stale_padding/toy")
    assert run("run", *targets, "--cases", "12", "--workers", workers, "--out", str(tmp_path)) == 3
    output = capsys.readouterr()
    assert "ERROR: 12 x this toy session never works" in output.out
    assert output.err.endswith("error: broken/toy: 12 runs could not be made: this toy session never works\n")
    broken, sound = loads((tmp_path / "record.json").read_text())[0]
    assert (broken.errors, broken.unsupported) == ({"this toy session never works": 12}, {})
    assert sound.findings and not sound.errors


def test_one_target_of_two_that_was_not_judged_is_2(tmp_path: Path) -> None:
    arguments = ("--target", "clean/toy", "--target", "unsupported/toy", "--target", "clean/toy", "--cases", "4")
    assert run("run", *arguments, "--out", str(tmp_path)) == 2
    campaigns, _ = loads((tmp_path / "record.json").read_text())
    assert [str(campaign.target) for campaign in campaigns] == ["clean/toy", "unsupported/toy"]


@pytest.mark.parametrize(
    "arguments, says",
    [
        ("run", "--target is missing"),
        ("", "command"),
        ("dance", "invalid choice: 'dance'"),
        ("run --target clean", "target 'clean': expected RELEASE/ENGINE"),
        ("run --target 0.0.1/emulated", "python -m runners install 0.0.1"),
        ("run --target ../../etc/emulated", "a checkout is written PATH@ENGINE"),
        ("run --target /nowhere@emulated", "is not an import path of sglang"),
        ("run --target clean/toy --cases 0", "expected a positive integer, got '0'"),
        ("run --target clean/toy --cases ٣٫٥", "expected a positive integer, got"),
        ("run --target clean/toy --minutes inf", "expected a number above 0, got 'inf'"),
        ("run --target clean/toy --minutes 1 --cases 3", "not allowed with"),
        ("run --target clean/toy --seed -1", "expected an integer of at least 0, got '-1'"),
        ("run --target clean/toy --runner eagle", "invalid choice: 'eagle'"),
        ("run --target clean/toy --cases 1 --out /dev/null/x", "/dev/null/x: Not a directory"),
        ("run --target clean/toy --cases 1 --out OUT --json /dev/null/y/z", "Not a directory"),
        ("bench", "--target is missing"),
        ("bench --target clean/toy --night 2", "argument --night: '2': 2.5 minutes at least"),
        ("bench --target clean/toy --only-together", "--only-together goes with --workers"),
        ("run --target clean/toy --cases 3 --examples OUT --workers 2", "--examples cannot be combined with --workers"),
        ("run --target clean/toy --cases 3 --cluster nowhere", "is neither auto nor HOST:PORT nor local:N"),
        ("hunt --seconds nan", "expected a number above 0, got 'nan'"),
    ],
)
def test_bad_input_is_3_and_one_line(
    arguments: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*(str(tmp_path) if word == "OUT" else word for word in arguments.split())) == 3
    output = capsys.readouterr()
    assert says in output.err
    assert len(output.err.splitlines()) == 1
    assert output.out == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_keeps_and_writes_what_it_has(number: signal.Signals, tmp_path: Path) -> None:
    arguments = ("--target", "stale_req_pool/toy", "--minutes", "5", "--out", "here", "--json", "record.json")
    fuzz = process(tmp_path, "run", *arguments)
    comes(lambda: any(tmp_path.glob("here/*/*.json")))
    fuzz.send_signal(number)
    out, err = fuzz.communicate(timeout=30)
    assert fuzz.returncode == 1, (out, err)
    assert err == ""
    assert "stopped: interrupted" in out
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["campaigns"][0]["stopped"] == "interrupted"
    assert record["findings"]
    assert all((tmp_path / finding["seed"]).exists() for finding in record["findings"] if finding["seed"])


def test_reader_of_the_output_that_leaves(tmp_path: Path) -> None:
    fuzz = process(tmp_path, "run", "--target", "clean/toy", "--cases", "30")
    assert fuzz.stdout is not None
    fuzz.stdout.close()
    assert fuzz.stderr is not None
    assert fuzz.stderr.read() == ""
    assert fuzz.wait(30) == 3


def test_hunt_says_which_target_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = [word for name in ("stale_padding", "clean", "stale_seq_lens") for word in ("--target", f"{name}/toy")]
    assert run("hunt", *targets, "--seconds", "2", "-v", "--out", str(tmp_path)) == 1
    out = capsys.readouterr().out
    assert "stale_padding/toy has slot0_padding (padded rows of req_pool_indices)" in out
    assert "smallest case: 2 steps with 2 then 1 request on bucket" in out
    assert "clean/toy does not have it: the same case passed 5 of 5 runs" in out
    assert "stale_padding/toy fails in another way: slot0_padding: padded rows of req_pool_indices" in out
    report = tmp_path / "report.html"
    assert out.splitlines()[-1] == f"report: {report}"
    assert "stale_padding/toy" in report.read_text()
    campaigns, replays = loads((tmp_path / "record.json").read_text())
    assert [campaign.stopped for campaign in campaigns] == ["first finding", "time", "first finding"]
    passed = {replay.target: replay for replay in replays if replay.fingerprint == campaigns[0].findings[0].fingerprint}
    assert (passed["clean/toy"].status, passed["clean/toy"].failed) == (Status.PASS, 0)
    assert (passed["stale_seq_lens/toy"].status, passed["stale_seq_lens/toy"].failed) == (Status.PASS, 0)


def test_hunt_ends_with_twelve_lines_at_most(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = [word for name in ("stale_padding", "clean", "stale_seq_lens") for word in ("--target", f"{name}/toy")]
    assert run("hunt", *targets, "--seconds", "2", "--out", str(tmp_path)) == 1
    lines = capsys.readouterr().out.splitlines()
    begin = next(number for number, line in enumerate(lines) if " found in " in line)
    head, first, means, look, replay, *_ = closing = lines[begin:]
    assert len(closing) <= 12 and head.startswith("2 failures found in ")
    place = "stale_padding/toy: padded rows of req_pool_indices (slot0_padding), failed 5 of 5 runs"
    assert first.startswith(f"1. {place}; clean/toy does not have it; stale_seq_lens/toy ")
    assert means == "   means: no known bug of sglang explains it"
    assert re.match(r"   look at: step 1 req_pool_indices\[1,0\] is \d+, expected 0$", look)
    assert replay.startswith("   replay: ") and replay.endswith(" --target stale_padding/toy")
    assert f"{Path(sys.executable).name} -m repro run " in replay
    assert closing[-1].startswith("report: ")
    assert not any("states in no replay" in line or "unknown:" in line for line in lines)


def test_hunt_without_a_bug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("hunt", "--target", "clean/toy", "--seconds", "2", "--out", str(tmp_path)) == 0
    assert re.search(r"^0 failures found in \d+ cases on clean/toy\.$", capsys.readouterr().out, re.MULTILINE)
    assert (tmp_path / "report.html").exists()


def test_hunt_where_the_other_target_cannot_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = ("--target", "stale_padding/toy", "--target", "unsupported/toy")
    assert run("hunt", *targets, "--seconds", "2", "--out", str(tmp_path)) == 1
    assert "; unsupported/toy cannot tell\n" in capsys.readouterr().out
    _, (replay,) = loads((tmp_path / "record.json").read_text())
    assert (replay.status, replay.failed, replay.tried) == (Status.UNKNOWN, 0, 0)


def test_bench_gives_rate_stages_and_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "--target", "clean/toy", "--cases", "8", "--out", str(tmp_path)) == 0
    out = capsys.readouterr().out
    for mix in ("small setup", "random mix"):
        assert re.search(rf"clean/toy {mix}: [\d.]+ cases/s \(cases: 8, setups: 1,", out)
    stages = re.findall(r"^  (\w+) +([\d.]+) ms a case +([\d.]+)%$", out, re.MULTILINE)
    names = [name for name, _, _ in stages]
    assert names == ["draw", "build", "graph", "eager", "record", "reference", "pass", "judge", "store"] * 2
    (small, _), _ = loads((tmp_path / "record.json").read_text())
    shares = sum(float(share) for _, _, share in stages[:9])
    # What is left is the loop itself; and one case is judged, and another drawn, while a third is being run.
    besides = sum(float(share) for name, _, share in stages[:9] if name in ("draw", "judge"))
    assert shares > 80
    assert shares - besides <= 101
    ratio = small.seconds / (small.stages["graph"] + small.stages["eager"])
    assert f"whole / (graph + eager) = {ratio:.2f}" in out
    # The session was opened before the clock was started.
    assert small.stages["build"] == 0


@pytest.mark.parametrize(
    ("mix", "shown", "not_shown"), [("small", "small setup", "random"), ("rounds", "random", "small")]
)
def test_bench_of_one_mix(
    mix: str, shown: str, not_shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", "--target", "clean/toy", "--cases", "4", "--mix", mix, "--out", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert shown in out and not_shown not in out


def test_bench_of_a_failing_target_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "--target", "graph_differs/toy", "--cases", "4", "--out", str(tmp_path)) == 1
    assert re.search(r"verdicts were FAIL", capsys.readouterr().out)


@pytest.mark.exhaustive
@pytest.mark.parametrize("growth", [[], ["memory grew from 60 to 90 MiB"]])
def test_a_night_in_which_something_grows_is_3(
    growth: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Footprint] = []

    def grown(taken: Sequence[Footprint]) -> list[str]:
        seen.extend(taken)
        return growth

    monkeypatch.setattr("fuzz.commands.night.MINUTES_MIN", 0.01)
    for module in ("fuzz.commands.night", "fuzz.footprint"):
        monkeypatch.setattr(f"{module}.FIRST_S", 0.1)
    monkeypatch.setattr("fuzz.commands.night.grown", grown)
    assert run("bench", "--target", "clean/toy", "--night", "0.05", "--out", str(tmp_path)) == (3 if growth else 0)
    output = capsys.readouterr()
    assert "clean/toy: memory grew from 60 to 90 MiB" in output.err if growth else output.err == ""
    # Each of them is a row of the table.
    assert seen and seen[0].processes > 1 and seen[-1].seconds < 30
    assert all(f"{progress.cases}" in output.out for progress in seen)


def test_terminal_has_a_live_line_and_findings_stay() -> None:
    finding = stale_found()
    text = io.StringIO()
    with Display(Console(file=text, force_terminal=True, width=300)) as display:
        progress = progress_of((finding,))
        display.tell(progress)
        display.line("[bold]not markup[/bold]")
    shown = text.getvalue()
    assert "\x1b[2K" in shown  # the live line is erased and written again
    assert line(progress) in shown
    assert "[bold]not markup[/bold]" in shown
    assert shown.count(f"slot0_padding {finding.fingerprint} failed 5 of 5") == 1


def test_plain_lines_come_now_and_then_and_findings_once() -> None:
    now = [0.0]
    text = io.StringIO()
    with Display(Console(file=text, force_terminal=False, width=300), clock=lambda: now[0]) as display:
        for second in range(12):
            now[0] = float(second)
            display.tell(progress_of(()))
    assert text.getvalue().splitlines() == [line(progress_of(()))] * 3
