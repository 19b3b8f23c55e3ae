"""Reports in the terminal and from the command line; every kind of bad input is one clear line and exit 3."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from reports import terminal
from reports.__main__ import main
from reports.markdown import markdown
from reports.records import history_of
from repro.cases.case import Target
from repro.ledger.known import load
from repro.ledger.read import CASE_COLUMNS, History
from repro.ledger.rows import CaseRow
from repro.ledger.write import Ledger
from repro.traces.campaign import dumps
from tests.builders import sample_ledger
from tests.builders.sample_record import (
    BUGGY,
    FIXED,
    campaign,
    stale_found,
    stale_replays,
    stale_report,
)

pytestmark = pytest.mark.slow

STALE = stale_found()


def shown(*, terminal_width: int | None, history: History) -> str:
    file = io.StringIO()
    width = terminal_width or 40
    console = Console(
        file=file,
        width=width,
        force_terminal=terminal_width is not None,
        color_system="standard" if terminal_width else "auto",
    )
    terminal.show(console, history)
    return file.getvalue()


def test_plain_lines_where_nobody_watches() -> None:
    history = history_of([campaign(BUGGY, (STALE,), 31)], stale_replays(STALE))
    text = shown(terminal_width=None, history=history)
    lines = text.splitlines()
    assert "\x1b" not in text
    assert f"  python -m repro run {STALE.seed} --target 0.5.10.post1/emulated" in lines
    assert (
        "  new on 0.5.10.post1/emulated 5/5; passing on 0.5.11/emulated and 0.5.13/emulated; "
        "unknown on 0.5.15.post1/emulated"
    ) in lines
    assert "  emulated: fails on 0.5.10.post1, fixed in 0.5.11" in lines
    assert re.search(r"^0\.5\.10\.post1/emulated +slot0_padding +111 +22 +31$", text, re.MULTILINE)


def test_terminal_shows_a_table_and_obeys_no_text() -> None:
    hostile = replace(STALE, where="[bold]x[/bold] \x1b[2J \u202e", seed="[/]")
    stranger = replace(stale_replays(STALE)[0], fingerprint="other", seed="[red]in a table[/red] [")
    text = shown(terminal_width=200, history=history_of([campaign(BUGGY, (hostile,), 31)], [stranger]))
    assert "seed red] [" in text.replace("[/", "")
    assert "─" in text and "\x1b[" in text
    assert "[bold]x[/bold] \\x1b[2J \\u202e" in text
    assert "python -m repro run '[/]' --target" in text


def test_summary_of_a_ledger_tells_the_matrix_and_what_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", "--ledger", str(stored(tmp_path / "one.db"))]) == 0
    text = capsys.readouterr().out
    assert "Regressed on 0.5.14/cuda." in text
    assert "  regressed: #26335 kv_move, triton on 0.5.14/cuda" in text.splitlines()
    [line] = [line for line in text.splitlines() if line.startswith("fix #23037")][:1]
    assert re.split(r"\s{2,}", line) == ["fix #23037 draft, triton", "known 3/3", "fixed", *["passing"] * 5]


def test_markdown_is_for_a_pull_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "--markdown", "--ledger", str(stored(tmp_path / "one.db"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "## eagleeye"
    assert "- **regressed**: `#26335 kv_move, triton` on `0.5.14/cuda`" in lines
    assert (
        "| fix `#23037 draft, triton` | known 3/3 | fixed | passing | passing | passing | passing | passing |" in lines
    )
    [head, ruler] = [line for line in lines if line.startswith(("| |", "|---"))][:2]
    assert head.count("|") == ruler.count("|") == 9


def test_markdown_obeys_no_text() -> None:
    hostile = "`x` | [a](javascript:b) <img src=x> @everyone #1\n# heading"
    failure = replace(STALE, where=hostile, oracle=hostile, target="/@everyone|<b>@toy")
    text = markdown(history_of([campaign(Target("/@everyone|<b>", "toy"), (failure,))], []))
    outside = re.sub(r"`[^`\n]*`", "", text)
    assert not re.search(r"(?<!\\)[<>]|(?<!\w)@\w|\]\(", outside) and "javascript" not in outside
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {3}


def test_tables_are_written_for_other_tools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = stored(tmp_path / "one.db")
    assert main(["summary", "--ledger", str(ledger), "--csv", str(tmp_path / "csv")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(list((tmp_path / "csv").iterdir())) == 9
    with (tmp_path / "csv" / "cases.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["digest"] for row in rows] == [row[6] for row in sample_ledger.case_rows(20)]
    with (tmp_path / "csv" / "states.csv").open(newline="") as file:
        states = {(row["subject"], row["release"], row["engine"]): row["state"] for row in csv.DictReader(file)}
    assert states["#26335 kv_move, triton", "0.5.14", "cuda"] == "regressed"


def test_parquet_says_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["summary", "--ledger", str(stored(tmp_path / "one.db")), "--parquet", str(tmp_path / "out")]) == 3
    assert capsys.readouterr().err.startswith("error: --parquet needs pyarrow, which is not installed: ")
    assert not (tmp_path / "out").exists()


def test_parquet_files_can_be_read(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: make setup-checks")
    import pandas as pd

    ledger = stored(tmp_path / "one.db")
    assert main(["summary", "--ledger", str(ledger), "--parquet", str(tmp_path / "out")]) == 0
    frame = pd.read_parquet(tmp_path / "out" / "cases.parquet")
    assert frame["digest"].tolist() == [row[6] for row in sample_ledger.case_rows(20)]
    assert len(list((tmp_path / "out").iterdir())) == 9


def test_html_command_reads_a_ledger(tmp_path: Path) -> None:
    ledger, out = stored(tmp_path / "one.db"), tmp_path / "report.html"
    assert main(["html", "--ledger", str(ledger), "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert "Cases (20)" in text and 'id="fix-26335-kv_move-triton"' in text


def test_bad_ledgers_are_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.db").write_text("no ledger at all, but long enough to be taken for something" * 20)
    for path in (tmp_path / "absent.db", tmp_path / "text.db", tmp_path):
        for command in (["html", "--out", str(tmp_path / "report.html")], ["summary"]):
            assert main([*command, "--ledger", str(path)]) == 3
            output = capsys.readouterr()
            assert output.out == "" and output.err.startswith("error: ") and output.err.count("\n") == 1
            assert str(path) in output.err
    assert not (tmp_path / "report.html").exists()


def stored(path: Path) -> Path:
    """A ledger with the sample's history and 20 cases."""
    rows = sample_ledger.case_rows(20)
    history = sample_ledger.history(3, rows)
    with Ledger.open(path) as ledger:
        names = {run.id: ledger.begin(run.kind, command=run.command, facts=run.facts) for run in history.runs}
        for row in rows:
            named: dict[str, Any] = dict(zip(CASE_COLUMNS, row, strict=True))
            ledger.case(CaseRow(**(named | {"run": names[row[0]]})))
        for campaign in history.campaigns:
            ledger.campaign(replace(campaign, run=names[campaign.run]))
        for finding in history.findings:
            ledger.finding(replace(finding, run=names[finding.run]))
        for check in history.checks:
            ledger.check(replace(check, run=names[check.run]))
        for fix in history.fixes:
            ledger.fix(replace(fix, run=names[fix.run]))
        for run in names.values():
            ledger.end(run)
    return path


def test_html_command_writes_the_page(tmp_path: Path) -> None:
    first, two, out = tmp_path / "one.json", tmp_path / "two.json", tmp_path / "report.html"
    first.write_text(dumps([campaign(BUGGY, (STALE,), 31)], stale_replays(STALE)))
    two.write_text(dumps([campaign(FIXED)]))
    command = [sys.executable, "-m", "reports", "html", str(first), str(two), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{out}\n", "")
    assert out.read_text(encoding="utf-8") == stale_report(load())


def test_summary_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.json"
    path.write_text(dumps([campaign(BUGGY, (STALE,), 31)], stale_replays(STALE)))
    assert main(["summary", str(path)]) == 0
    assert f"FAIL draft/triton slot0_padding: {STALE.where} (" in capsys.readouterr().out


def changed(**parts: object) -> str:
    """A record with parts of its campaign replaced."""
    form = json.loads(dumps([campaign(BUGGY, (STALE,))]))
    form["campaigns"][0].update(parts)
    return json.dumps(form)


BAD = {
    "empty": "",
    "no JSON": "{'a': 1",
    "deep": "[" * 100_000,
    "a list": "[]",
    "another format": '{"format": 99}',
    "cut off": dumps([campaign()])[:-40],
    "nothing in it": '{"format": 1}',
    "a campaign that is a text": '{"format": 1, "campaigns": ["x"], "elsewhere": []}',
    "seconds that are a text": changed(seconds="long"),
    "cases that are a list": changed(cases=[1]),
    "verdicts of the wrong kind": changed(verdicts={"ended": {"pass": "many"}}),
    "a target that is none": changed(target="somewhere"),
    "an unknown part": changed(colour="blue"),
    "a finding without a case": changed(findings=[{"target": "x"}]),
    "a transition of texts": changed(transitions_missing=[{"runner": 1}]),
    "a replay without a status": '{"format": 1, "campaigns": [], "elsewhere": [{"seed": "x"}]}',
}


@pytest.mark.parametrize("name", BAD)
def test_bad_record_is_one_clear_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "bad.json", tmp_path / "report.html"
    path.write_text(BAD[name])
    for command in (["html", str(path), "--out", str(out)], ["summary", str(path)]):
        assert main(command) == 3
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith(f"error: {path}: ")
        assert output.err.count("\n") == 1
    assert not out.exists()


def test_files_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, binary = tmp_path / "good.json", tmp_path / "binary.json"
    good.write_text(dumps([campaign()]))
    binary.write_bytes(b"\xff\xfe\x00")
    for arguments, output in (
        (["summary", str(tmp_path / "absent.json")], "No such file"),
        (["summary", str(tmp_path)], "Is a directory"),
        (["summary", str(binary)], "not UTF-8"),
        (["html", str(good), "--out", str(tmp_path / "no" / "folder.html")], "No such file"),
        (["html", str(good), "--out", str(tmp_path)], "Is a directory"),
    ):
        assert main(arguments) == 3
        error = capsys.readouterr().err
        assert output in error and error.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["html"], ["html", "x.json"], ["dance"], ["summary", "--csv"]])
def test_wrong_command_line_is_bad_input(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["summary"], ["summary", "x.json", "--ledger", "x.db"], ["html", "--out", "x"]])
def test_a_report_is_of_a_ledger_or_of_records(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 3
    assert "expected either --ledger DB or" in capsys.readouterr().err
