"""pytest -m nightly: what each measurement comes to, and whole runs on toys, red and green."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import yaml

from repro.ledger.explain import Explained
from repro.ledger.known import Issue
from repro.ledger.read import History, read
from repro.ledger.rows import CampaignRow
from repro.ledger.states import State
from repro.traces.finding import Status, Verdict, fingerprint
from tests.builders.project import PROJECT
from tests.builders.sample_record import campaign, stale_found
from tests.builders.sample_rows import TARGET, check_row, fix_row
from tests.nightly.gate import Color, changes, judge_campaign, judge_check, judge_fix, judge_issue, measured, summary

ISSUE = Issue(
    title="stale rows",
    link="https://example.org/1",
    probes=("seed:a.json",),
    targets=("<=0.5.10.post1",),
    explains=("draft/triton slot0_padding",),
    expires=date(2027, 6, 1),
)
BEFORE = State(subject="seed:a.json", target=TARGET, state="passing", measured="1")
NEVER = replace(BEFORE, state="cannot run", measured="")


@pytest.mark.parametrize(
    ("status", "other", "before", "issue", "color"),
    [
        ("PASS", {}, None, None, Color.GREEN),
        ("PASS", {"expected": "PASS"}, None, None, Color.GREEN),
        ("PASS", {"expected": "FAIL"}, None, None, Color.RED),
        ("PASS", {}, None, ISSUE, Color.RED),
        ("PASS", {"subject": "seed:b.json"}, None, ISSUE, Color.GREEN),
        ("FAIL", {}, None, None, Color.RED),
        ("FAIL", {"expected": "PASS"}, None, None, Color.RED),
        ("FAIL", {"expected": "FAIL"}, None, None, Color.GREEN),
        ("FAIL", {"fingerprint": "f"}, None, ISSUE, Color.RED),
        ("UNKNOWN", {}, None, None, Color.SKIPPED),
        ("UNKNOWN", {}, BEFORE, None, Color.RED),
        ("UNKNOWN", {"fingerprint": "f", "reason": "fails in another way"}, None, None, Color.RED),
        ("UNKNOWN", {"fingerprint": "f", "reason": "fails in another way"}, None, ISSUE, Color.RED),
        ("UNSUPPORTED", {}, None, None, Color.SKIPPED),
        ("UNSUPPORTED", {}, NEVER, None, Color.SKIPPED),
        ("UNSUPPORTED", {}, BEFORE, None, Color.RED),
        ("ERROR", {}, None, None, Color.RED),
        ("ERROR", {"fingerprint": "f", "expected": "FAIL"}, NEVER, ISSUE, Color.RED),
    ],
)
def test_what_a_check_comes_to(
    status: str, other: dict[str, str], before: State | None, issue: Issue | None, color: Color
) -> None:
    judged = judge_check(check_row("2", status, **other), before, issue)
    assert judged.color == color
    assert bool(judged.text) == (color is not Color.GREEN)


def test_a_failure_is_known_where_an_experiment_says_so() -> None:
    verdict = Verdict(oracle="staged", status=Status.FAIL, where="here")
    for reason, color in (
        (Explained(issues=(ISSUE,)), Color.KNOWN),
        (Explained(issues=(ISSUE,), left=(verdict,)), Color.RED),
        (Explained(issues=(ISSUE,), doubt="it cannot be run"), Color.RED),
        (Explained(), Color.RED),
    ):
        for status, expected in (("FAIL", ""), ("FAIL", "PASS"), ("UNKNOWN", "")):
            row = check_row("2", status, fingerprint="f", expected=expected, reason="fails in another way")
            assert judge_check(row, None, ISSUE, reason).color == color
            assert judge_check(row, None, None, reason).color == color
    left = judge_check(check_row("2", "FAIL", fingerprint="f"), None, ISSUE, Explained(left=(verdict,))).text
    assert "by more than the known issue stale rows" in left and "staged at here" in left


def test_what_a_campaign_comes_to() -> None:
    clean, failing = campaign(), campaign(findings=(stale_found(),))
    nothing = replace(clean, judged=0, unsupported={"no such class": 3})
    known = replace(clean, known={str(ISSUE): 3})
    for done, before, color in (
        (clean, (), Color.GREEN),
        (failing, (), Color.RED),
        (known, (), Color.KNOWN),
        (replace(failing, known={str(ISSUE): 3}), (), Color.RED),
        (nothing, (), Color.SKIPPED),
        (nothing, (nothing,), Color.SKIPPED),
        (nothing, (nothing, clean), Color.RED),
        (replace(clean, errors={"KeyError": 1}), (), Color.RED),
        (replace(clean, error="disk full"), (), Color.RED),
        (replace(clean, stopped="interrupted"), (), Color.RED),
    ):
        assert judge_campaign(done, before).color == color, done
    assert stale_found().seed in judge_campaign(failing, ()).text


def test_what_a_fix_comes_to() -> None:
    holds, fails = fix_row("1"), fix_row("1", problem="does not pass")
    missing = fix_row("1", role="", status="UNSUPPORTED", detail="no such runner yet")
    for rows, code, color in (
        ([holds, holds], 0, Color.GREEN),
        ([holds, fails], 1, Color.RED),
        ([holds, missing], 2, Color.GREEN),
        ([missing], 2, Color.SKIPPED),
        ([missing], 3, Color.RED),
        ([], 3, Color.RED),
        ([], 2, Color.SKIPPED),
    ):
        assert judge_fix(rows, code, "said so").color == color, (rows, code)
    assert "said so" in judge_fix([], 3, "said so").text


def test_an_expired_issue_is_red() -> None:
    assert judge_issue(ISSUE, date(2027, 5, 31)).color == Color.GREEN
    assert judge_issue(ISSUE, date(2027, 6, 1)).color == Color.RED


def history(letters: str) -> History:
    words = {"p": "PASS", "f": "FAIL", "x": "UNSUPPORTED"}
    rows = [check_row(str(number), words[letter], at=str(number)) for number, letter in enumerate(letters, 1)]
    return History(path=Path("l.db"), checks=tuple(rows))


@pytest.mark.parametrize(
    ("letters", "lines"),
    [
        ("f", ["new"]),
        ("ff", []),
        ("fff", []),
        ("fp", ["fixed"]),
        ("fpf", ["regressed"]),
        ("pf", ["regressed"]),
        ("p", []),
        ("pp", []),
        ("x", []),
        ("xp", []),
        ("fx", []),
    ],
)
def test_changes_since_the_last_run(letters: str, lines: list[str]) -> None:
    seen_changes = changes(history(letters), str(len(letters)))
    assert [text.partition(":")[0] for text in seen_changes] == lines


def test_nothing_measured_is_noticed() -> None:
    assert measured(history("p"), "1") and measured(history("f"), "1")
    assert not measured(history("x"), "1") and not measured(history("p"), "2")
    assert measured(History(path=Path("l.db"), fixes=(fix_row("1"),)), "1")
    for judged in (0, 1):
        row = CampaignRow(run="1", campaign=replace(campaign(), judged=judged))
        assert measured(History(path=Path("l.db"), campaigns=(row,)), "1") == bool(judged)


def test_a_summary_escapes_what_it_tells() -> None:
    text = "\n".join(summary(history("f"), "1", ["<script>alert(1)</script> | *bold* [x](y)\n# head"], []))
    assert "nightly: red" in text
    assert "\\<script\\>alert(1)\\</script\\> \\| \\*bold\\* [x]\\(y) # head" in text
    assert "| 0.5.13/emulated | 0 | 0 | 1 | 0 |" in text
    assert "nightly: green" in next(summary(history("p"), "1", [], []))


def test_a_summary_says_which_fixes_hold() -> None:
    rows = [
        fix_row("1"),
        fix_row("1", role="fixed"),
        fix_row("1", number=26292, problem="it still fails"),
        fix_row("1", number=26292, role="fixed"),
        fix_row("1", number=27338, role="", target=""),
        fix_row("2", number=26335, problem="in another run"),
    ]
    text = "\n".join(summary(History(path=Path("l.db"), fixes=tuple(rows)), "1", [], []))
    for number, holds in ((23037, "yes"), (26292, "no"), (27338, "not covered")):
        (line,) = (line for line in text.splitlines() if f"{number} stale rows" in line)
        assert line.endswith(f"| emulated | {holds} |")
    assert "26335" not in text


STALE = fingerprint("toy", "triton", "slot0_padding", "padded rows of req_pool_indices")
KNOWN = """
[[issue]]
title = "planted"
link = "https://example.org/1"
probes = ["finding:{stale}"]
targets = ["stale_padding/toy"{more}]
setups = ["runner == toy"]
explains = [
    "toy/triton slot0_padding: padded rows of hidden_states",
    "toy/triton slot0_padding: padded rows of req_pool_indices",
    "toy/triton slot0_padding: padded rows of topk_index",
    "toy/triton slot0_padding: padded rows of topk_p",
    "toy/triton kv_indices: segment of a padded row [kv_indices]",
]
expires = {expires}
"""


class Runs:
    """Nightly runs on one ledger, each with a file of known issues of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "seeds").mkdir()

    def command(self, *words: str, known: str = "", targets: str = "clean/toy,stale_padding/toy") -> list[str]:
        (self.folder / "known.toml").write_text(known)
        command = [sys.executable, "-m", "pytest", "-m", "nightly", "--target", targets, "--minutes", "0.04"]
        command += ["-k", "not flashinfer"]
        command += [f"--ledger={self.folder / 'l.db'}", f"--known-issues={self.folder / 'known.toml'}"]
        return [*command, f"--seeds={self.folder / 'seeds'}", f"--junitxml={self.folder / 'junit.xml'}", *words]

    def __call__(self, *words: str, **named: str) -> tuple[int, str]:
        command = self.command(*words, **named)
        environment = {**os.environ, "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md")}
        environment |= {"EAGLEEYE_EXAMPLES": str(self.folder / "examples")}
        ran = subprocess.run(
            command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.exhaustive
def test_a_week_of_nightly_runs(tmp_path: Path) -> None:
    run = Runs(tmp_path)
    # A failure that nobody knows of.
    code, output = run("-n", "2")
    assert code == 1, output
    assert "red because:" in output and f"slot0_padding {STALE}" in output and "is RED" in output
    (first,) = read(tmp_path / "l.db").runs
    assert first.kind == "nightly" and first.ended
    summary_text = (tmp_path / "summary.md").read_text()
    assert summary_text.startswith("## eagleeye nightly: red")
    assert f"new: finding:{STALE} on stale_padding/toy" in summary_text
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert {part.get("name") for part in suite.iter("property")} == {"red"}
    # It is put down as known, and is measured on every target.
    code, output = run(known=KNOWN.format(stale=STALE, more="", expires="2099-01-01"))
    assert (code, "is GREEN" in output) == (0, True), output
    history = read(tmp_path / "l.db")
    second = history.runs[-1].id
    checks = {row.target: row.status for row in history.checks if row.run == second}
    assert checks == {"clean/toy": "PASS", "stale_padding/toy": "FAIL"}
    assert "eagleeye nightly: green" in (tmp_path / "summary.md").read_text()
    # It has gone from one of the targets; and somebody has to look at it again.
    code, output = run(
        "-k", "not campaign", known=KNOWN.format(stale=STALE, more=', "clean/toy"', expires="2020-01-01")
    )
    assert code == 1, output
    assert f"finding:{STALE} on clean/toy passes now: take this target out of the known issue" in output
    assert "the known issue has expired" in output
    assert len({run.id for run in read(tmp_path / "l.db").runs}) == 3


@pytest.mark.slow
def test_bad_input_is_one_line(tmp_path: Path) -> None:
    run = Runs(tmp_path)
    code, output = run(known="[[issue]]\n")
    assert code == 3 and "issue 1: expires is missing" in output and "Traceback" not in output
    code, output = run(targets="0.0.1/emulated")
    assert code == 4 and "0.0.1/emulated: sglang 0.0.1 is not installed" in output
    (tmp_path / "l.db").write_text("no database " * 100)
    code, output = run()
    assert code == 3 and "not an eagleeye ledger" in output and "Traceback" not in output


@pytest.mark.slow
def test_the_workflow_runs_what_the_readme_says(tmp_path: Path) -> None:
    """Its command is one that pytest takes, on what is there."""
    workflow = yaml.safe_load((PROJECT / ".github" / "workflows" / "nightly.yml").read_text())
    (command,) = (step["run"] for step in workflow["jobs"]["nightly"]["steps"] if step.get("name") == "Nightly")
    assert command.startswith(".venv/bin/python -m pytest -m nightly ")
    words = command.replace(".venv/bin/python", sys.executable) + " --collect-only"
    environment = os.environ | {"TARGETS": "clean/toy,stale_padding/toy", "MINUTES": "1", "PROFILE": "soak"}
    environment |= {"EAGLEEYE_LEDGER": str(tmp_path / "l.db"), "EAGLEEYE_EXAMPLES": str(tmp_path / "examples")}
    words = words.replace("out/nightly.xml", str(tmp_path / "nightly.xml"))
    ran = subprocess.run(
        ["bash", "-ec", words], cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "test_campaign[stale_padding/toy toy triton]" in ran.stdout
    assert "test_seed[pr23037-stale-padding-clean/toy]" in ran.stdout
    assert not (tmp_path / "l.db").exists()


def test_no_other_run_has_nightly_tests(request: pytest.FixtureRequest) -> None:
    assert not any("nightly/test_jobs" in item.nodeid for item in request.session.items)


def test_the_profile_is_the_one_that_pytest_runs_under() -> None:
    script = (
        "import json; from hypothesis import settings; from fuzz.draw.profiles import register; register('soak');"
        "settings.load_profile('soak'); s = settings();"
        "print(json.dumps([s.max_examples, s.derandomize, repr(s.database), s.deadline]))"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True)
    examples, derandomize, database, deadline = json.loads(ran.stdout)
    assert (examples, derandomize, deadline) == (10_000, False, None)
    assert "DirectoryBasedExampleDatabase" in database
