"""Reports in the terminal and from the command line; every kind of bad input is one clear line and exit 3."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from sample_record import (
    BUGGY,
    FIXED,
    campaign,
    stale_found,
    stale_replays,
    stale_report,
)

from reports import terminal
from reports.__main__ import main
from repro.record import Campaign, Replay, dumps

pytestmark = pytest.mark.slow

STALE = stale_found()


def shown(*, terminal_width: int | None, campaigns: Sequence[Campaign], replays: Sequence[Replay]) -> str:
    file = io.StringIO()
    width = terminal_width or 40
    console = Console(
        file=file,
        width=width,
        force_terminal=terminal_width is not None,
        color_system="standard" if terminal_width else "auto",
    )
    terminal.show(console, campaigns, replays)
    terminal.show_verdicts(console, campaigns)
    return file.getvalue()


def test_plain_lines_where_nobody_watches() -> None:
    text = shown(terminal_width=None, campaigns=[campaign(BUGGY, (STALE,), 31)], replays=stale_replays(STALE))
    lines = text.splitlines()
    assert "\x1b" not in text
    assert f"  python -m repro run {STALE.seed} --target 0.5.10.post1/emulated" in lines
    assert (
        "  fails on 0.5.10.post1/emulated; passes on 0.5.11/emulated and 0.5.13/emulated; "
        "not known on 0.5.15.post1/emulated"
    ) in lines
    assert re.search(r"^0\.5\.10\.post1/emulated +slot0_padding +111 +22 +31$", text, re.MULTILINE)


def test_terminal_shows_a_table_and_obeys_no_text() -> None:
    hostile = replace(STALE, where="[bold]x[/bold] \x1b[2J \u202e", seed="[/]")
    stranger = replace(stale_replays(STALE)[0], fingerprint="other", line="[red]in a table[/red] [/]")
    text = shown(terminal_width=200, campaigns=[campaign(BUGGY, (hostile,), 31)], replays=[stranger])
    assert "[red]in a table[/red] [/]" in text
    assert "─" in text and "\x1b[" in text
    assert "[bold]x[/bold] \\x1b[2J \\u202e" in text
    assert "python -m repro run '[/]' --target" in text


def test_html_command_writes_the_page(tmp_path: Path) -> None:
    one, two, out = tmp_path / "one.json", tmp_path / "two.json", tmp_path / "report.html"
    one.write_text(dumps([campaign(BUGGY, (STALE,), 31)], stale_replays(STALE)))
    two.write_text(dumps([campaign(FIXED)]))
    command = [sys.executable, "-m", "reports", "html", str(one), str(two), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{out}\n", "")
    assert out.read_text(encoding="utf-8") == stale_report()


def test_summary_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.json"
    path.write_text(dumps([campaign(BUGGY, (STALE,), 31)], stale_replays(STALE)))
    assert main(["summary", str(path)]) == 0
    assert f"FAIL slot0_padding: {STALE.where}" in capsys.readouterr().out


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
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"reports: {path}: ")
        assert said.err.count("\n") == 1
    assert not out.exists()


def test_files_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, binary = tmp_path / "good.json", tmp_path / "binary.json"
    good.write_text(dumps([campaign()]))
    binary.write_bytes(b"\xff\xfe\x00")
    for arguments, said in (
        (["summary", str(tmp_path / "absent.json")], "No such file"),
        (["summary", str(tmp_path)], "Is a directory"),
        (["summary", str(binary)], "not UTF-8"),
        (["html", str(good), "--out", str(tmp_path / "no" / "folder.html")], "No such file"),
        (["html", str(good), "--out", str(tmp_path)], "Is a directory"),
    ):
        assert main(arguments) == 3
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["html"], ["html", "x.json"], ["dance"], ["summary"]])
def test_wrong_command_line_is_bad_input(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 3
    assert capsys.readouterr().err.count("\n") == 1
