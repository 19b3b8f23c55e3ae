"""Settings: found from where one works, weaker than the command line, and refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.__main__ import options_of as of_fuzz
from repro.__main__ import main as repro
from repro.__main__ import options_of as of_repro
from repro.cases import codec
from repro.cases.case import Target
from repro.cases.codec import Seed
from repro.commands.settings import VARIABLE, BadSettings, _settings, settings
from repro.ledger.write import VARIABLE as LEDGER
from tests.repro.test_repro_main import CASE

TEXT = """target = ["clean/toy", "stale_req_pool/toy"]
ledger = "books/ledger.db"
runners = "toy"
known_issues = "known.toml"
"""
CLEAN, STALE = Target("clean", "toy"), Target("stale_req_pool", "toy")

Written = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Writes settings above the folder that one works in."""
    place = tmp_path / "project" / "below"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    monkeypatch.delenv(VARIABLE, raising=False)

    def write(text: str, name: str = "eagleeye.toml") -> Path:
        path = tmp_path / "project" / name
        path.write_text(text)
        _settings.cache_clear()
        return path

    return write


def test_settings_stand_in_for_what_is_not_given(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(TEXT).parent
    options = of_fuzz(["run"])
    assert options.target == [CLEAN, STALE]
    assert (options.ledger, options.known_issues) == (folder / "books" / "ledger.db", folder / "known.toml")
    assert of_fuzz(["run", "--no-known-issues"]).known_issues is None
    assert of_repro(["run", "a.json"]).target == [CLEAN, STALE]
    assert of_repro(["first", "a.json"]).target == CLEAN
    assert of_repro(["run", "a.json", "--known-issues"]).known_issues == folder / "known.toml"
    assert of_repro(["run", "a.json"]).known_issues is None
    monkeypatch.setenv(LEDGER, "/elsewhere.db")
    assert of_fuzz(["run"]).ledger is None


def test_the_command_line_wins(written: Written) -> None:
    written(TEXT)
    words = ["--target", "ended/toy", "--ledger", "mine.db", "--known-issues", "mine.toml"]
    options = of_fuzz(["run", *words])
    assert options.target == [Target("ended", "toy")]
    assert (options.ledger, options.known_issues) == (Path("mine.db"), Path("mine.toml"))
    twice = of_repro(["run", "a.json", "--target", "a/toy", "--target", "b/toy"])
    assert twice.target == [Target("a", "toy"), Target("b", "toy")]
    # A command with its own targets keeps them.
    assert of_repro(["explain", "a.json"]).target is None
    assert len(of_fuzz(["hunt"]).target) == 2 and of_fuzz(["hunt"]).target[0].engine == "emulated"


def test_a_table_of_pyproject_does_as_well_and_the_nearest_file_holds(written: Written) -> None:
    assert settings().file is None
    written("[tool.other]\nx = 1\n[tool.eagleeye]\ntarget = 'clean/toy'\n", "pyproject.toml")
    assert settings().target == (CLEAN,)
    path = written("target = 'stale_req_pool/toy'\n")
    assert settings().target == (STALE,) and settings().file == path


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("targets = 'clean/toy'", "targets: no such setting; did you mean target?"),
        ("xyz = 1", "xyz: no such setting; known are target, runners, ledger, known_issues"),
        ("target = 'clean'", "target: target 'clean': expected RELEASE/ENGINE or PATH@ENGINE"),
        ("target = 3", "target: expected a text, not 3"),
        ("runners = ['draf']", "runners: draf: no such runner; did you mean draft or draft_v1?"),
        ("target = ", "eagleeye.toml: Invalid value"),
    ],
)
def test_bad_settings_are_3_and_one_line(
    text: str, refusal: str, written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(text)
    assert repro(["settings"]) == 3
    shown = capsys.readouterr()
    assert f"error: {path}" in shown.err and refusal in shown.err and shown.err.count("\n") == 1


def test_a_file_that_is_named_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/eagleeye.toml")
    with pytest.raises(BadSettings, match="there is no such file"):
        settings()
    monkeypatch.setenv(VARIABLE, "")  # pieces of a cluster's command have none
    assert settings().file is None


def test_the_command_says_what_holds_and_from_where(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(TEXT)
    assert repro(["settings"]) == 0
    shown = capsys.readouterr().out
    assert f"settings: {path}" in shown and f"clean/toy, stale_req_pool/toy ({path})" in shown


def test_a_seed_runs_on_the_target_of_the_settings(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    written("target = 'stale_req_pool/toy'\n")
    codec.write(Path("seed.json"), Seed(about={}, case=CASE))
    assert repro(["run", "seed.json"]) == 1
    assert "stale_req_pool/toy" in capsys.readouterr().out
