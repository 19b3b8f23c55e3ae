"""A failing script, followed from release to release instead of a seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro.__main__ import options_of
from repro.commands import bisect as command
from repro.commands.cli import BadInput
from repro.traces.trace import End, Termination, Trace
from repro.upstream.rig import Refused
from tests.builders import rigs

USED = rigs.rig(
    lambda target, case: (Trace(ended=End(how=Termination.DONE)), []), releases=tuple(f"0.5.{n}" for n in range(8, 24))
)
# On the import path of rigs is a release's name alone.
SCRIPT = """
import os, pathlib, sys
number = int(os.environ["PYTHONPATH"].rpartition(".")[2])
ran = pathlib.Path("ran"); ran.write_text((ran.read_text() if ran.exists() else "") + "x")
{}
sys.exit(125 if number == 9 else number >= 14)
"""


@pytest.mark.parametrize(
    ("line", "rate"),
    [("", 1.0), ("if number >= 14 and len(ran.read_text()) % 3: sys.exit(0)", 0.34)],
    ids=["always", "flaky"],
)
def test_a_failing_script_is_followed_from_release_to_release(
    line: str, rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "it.py").write_text(SCRIPT.format(line))
    options = options_of(["bisect", "--cmd", "python it.py", "--tries", "9", "--json", "range.json"])
    assert command.go(options, USED) == 0
    written = json.loads((tmp_path / "range.json").read_text())
    assert (written["cmd"], written["last_good"], written["first_bad"]) == ("python it.py", "0.5.13", "0.5.14")
    assert written["failure_rate"] == pytest.approx(rate, abs=0.25)
    skipped = [candidate["name"] for candidate in written["candidates"] if candidate["skipped"]]
    assert skipped in ([], ["0.5.9"])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "a seed or --cmd COMMAND, one of the two"),
        (["a.json", "--cmd", "true"], "a seed or --cmd COMMAND, one of the two"),
    ],
)
def test_a_seed_or_a_command_is_followed(words: list[str], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        command.go(options_of(["bisect", *words]), USED)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("'", "No closing quotation"), (" ", "--cmd: it is empty"), ("no-such-program", "--cmd no-such-program: No such")],
)
def test_a_command_that_cannot_be_run_is_refused(text: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        command.go(options_of(["bisect", "--cmd", text]), USED)
