"""Rows that commands put into the ledger: all of what they did, also when they are killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fuzz.__main__
import repro.__main__
from repro.cases import codec
from repro.cases.case import Target
from repro.cases.codec import BadSeed, Seed
from repro.ledger.merge import check
from repro.ledger.read import read
from repro.ledger.run import LedgerRun, asked_for, check_of_finding, check_of_outcome, new_run, same_run, wanted
from repro.ledger.unfinished import NOT_ENDED
from repro.ledger.write import RUN_VARIABLE, VARIABLE
from repro.shrinking.replay import Outcome
from repro.traces.finding import Finding, Status, Verdict, fingerprint
from repro.traces.trace import End, Termination
from repro.upstream.fixes import FIXES
from repro.upstream.prove import ProofRow
from tests.builders.project import PROJECT, in_front
from tests.builders.sample_rows import CASE, case_row

TARGET = Target("0.5.13", "emulated")
PADDING = Verdict(oracle="slot0_padding", status=Status.FAIL, where="padded rows")
STAGED = Verdict(oracle="staged", status=Status.FAIL, where="row 1")
STALE = fingerprint("toy", "triton", "slot0_padding", "padded rows of req_pool_indices")
FINE = Verdict(oracle="staged", status=Status.PASS)
DOUBT = Verdict(oracle="graph_equals_eager", status=Status.UNKNOWN, where="a tie")
FIX = FIXES[0]
NOT_COVERED = ProofRow(fix=FIX, proof=FIX.proofs[0], engine="cuda", reason="there is no such kernel")
ABOUT = {"expect": {"<0.5.13": "fail by slot0_padding", ">=0.5.13": "pass"}}


def outcome(*runs: tuple[Verdict, ...], how: Termination = Termination.DONE, sglang: str = "0.5.13") -> Outcome:
    return Outcome(
        seed=Path("seeds/a.json"),
        case=CASE,
        target=TARGET,
        runs=runs,
        statuses=tuple(max(verdict.status for verdict in verdicts) for verdicts in runs),
        ended=End(how=how, detail="no such class"),
        facts={"sglang": sglang, "torch": "2.11"},
        seconds={"graph": 0.5, "eager": 0.25},
    )


def test_a_seed_is_checked_against_what_it_says_of_the_release() -> None:
    assert wanted(ABOUT, outcome(sglang="0.5.12")) == ("FAIL", "slot0_padding")
    assert wanted(ABOUT, outcome(sglang="0.5.13")) == ("PASS", "")
    assert wanted({"expect": {"<0.5": "pass"}}, outcome()) == ("", "")
    assert wanted(ABOUT, outcome(sglang="main")) == wanted({}, outcome()) == ("", "")
    with pytest.raises(BadSeed):
        wanted({"expect": {"never": "pass"}}, outcome())


@pytest.mark.parametrize(
    ("result", "oracle", "status", "failed", "where"),
    [
        (outcome((FINE,), (FINE,)), "", "PASS", 0, ""),
        (outcome((PADDING, STAGED), (PADDING,)), "", "FAIL", 2, "padded rows"),
        (outcome((PADDING, STAGED), (PADDING,)), "staged", "FAIL", 1, "row 1"),
        (outcome((PADDING,), (FINE,)), "staged", "UNKNOWN", 1, "padded rows"),
        (outcome((DOUBT, FINE)), "", "UNKNOWN", 0, ""),
        (outcome(how=Termination.UNSUPPORTED), "", "UNSUPPORTED", 0, ""),
        (outcome(how=Termination.ERROR), "", "ERROR", 0, ""),
        (replace(outcome((FINE,)), errors=("the worker ended",)), "", "ERROR", 0, ""),
        (replace(outcome((PADDING,)), errors=("the worker ended",)), "", "ERROR", 1, "padded rows"),
    ],
)
def test_what_an_outcome_comes_to(result: Outcome, oracle: str, status: str, failed: int, where: str) -> None:
    row = check_of_outcome("1", result, "", oracle)
    assert (row.status, row.failed, row.where, row.tried) == (status, failed, where, len(result.runs))
    assert (row.subject, row.target, row.runner, row.seconds) == ("seed:a.json", str(TARGET), "toy", 0.75)
    assert bool(row.reason) == (status in ("UNKNOWN", "UNSUPPORTED", "ERROR"))
    assert (row.fingerprint != "") == (failed > 0)


def test_a_finding_is_seen_again_only_by_its_own_failure() -> None:
    both = outcome((PADDING, STAGED), (PADDING,), (FINE,))
    for verdict, failed in ((PADDING, 2), (STAGED, 1)):
        row = check_of_finding("1", both, verdict.fingerprint)
        assert (row.subject, row.status, row.failed) == (f"finding:{verdict.fingerprint}", "FAIL", failed)
    other = check_of_finding("1", outcome((PADDING,)), STAGED.fingerprint)
    assert (other.status, other.fingerprint) == ("UNKNOWN", PADDING.fingerprint)
    assert other.reason == "fails in another way: slot0_padding at padded rows"
    assert check_of_finding("1", outcome((FINE,)), STAGED.fingerprint).status == "PASS"


def test_without_a_ledger_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert asked_for(None) is None
    with new_run(None, "seeds") as book:
        book.outcome(outcome((FINE,)), ABOUT)
        book.finding(Finding(case=CASE, target=TARGET, verdict=PADDING, failed=1, tried=1))
        book.case_row(case_row(book.run))
        book.proof(NOT_COVERED)
        assert book.found_again(outcome((PADDING,)), PADDING.fingerprint).status == "FAIL"
    assert isinstance(book, LedgerRun) and list(tmp_path.iterdir()) == []


def test_a_proof_that_was_not_made_is_a_row_that_says_why(tmp_path: Path) -> None:
    with new_run(tmp_path / "l.db", "fixes") as book:
        book.proof(NOT_COVERED)
    (row,) = read(tmp_path / "l.db").fixes
    assert (row.number, row.runner, row.engine) == (FIX.number, FIX.proofs[0].runner, "cuda")
    assert (row.status, row.role, row.target, row.detail) == ("UNSUPPORTED", "", "", "there is no such kernel")


def test_a_command_can_be_a_part_of_another_ones_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "l.db"))
    assert asked_for(None) == tmp_path / "l.db"
    with new_run(asked_for(None), "nightly") as whole:
        monkeypatch.setenv(RUN_VARIABLE, whole.run)
        with new_run(asked_for(None), "seeds") as part:
            part.outcome(outcome((FINE,)), ABOUT)
        assert not read(tmp_path / "l.db").runs[0].ended
        monkeypatch.delenv(RUN_VARIABLE)
    history = read(tmp_path / "l.db")
    (run,) = history.runs
    assert (run.kind, [row.run for row in history.checks]) == ("nightly", [run.id])
    assert run.ended


def test_a_run_knows_where_it_took_place(tmp_path: Path) -> None:
    with new_run(tmp_path / "l.db", "seeds") as book:
        book.outcome(outcome((FINE,), sglang="0.5.12"), {})
        book.outcome(outcome((FINE,), sglang="0.5.13"), {})
        with same_run(tmp_path / "l.db", book.run) as part:
            part.outcome(outcome((FINE,), sglang="0.5.14"), {})
    (run,) = read(tmp_path / "l.db").runs
    assert (
        set(run.facts["sglang"].split(", ")) == {"0.5.12", "0.5.13", "0.5.14"}
        and run.facts["torch"] == "2.11"
        and run.facts["python"]
    )


@pytest.mark.slow
def test_a_campaign_and_a_replay_of_what_it_found(tmp_path: Path) -> None:
    words = ["run", "--target", "stale_padding/toy", "--cases", "6", "--ledger", str(tmp_path / "l.db")]
    assert fuzz.__main__.main([*words, "--out", str(tmp_path / "out")]) == 1
    history = check(tmp_path / "l.db")
    (run,), (row,) = history.runs, history.campaigns
    assert (run.kind, row.run, row.campaign.cases) == ("campaign", run.id, 6)
    assert sum(count.count for count in history.cases) == 6
    assert {failure.fingerprint for failure in row.campaign.findings} == {
        finding.fingerprint for finding in history.findings
    }
    for failure in row.campaign.findings:
        (stored,) = (stored for stored in history.findings if stored.fingerprint == failure.fingerprint)
        assert (stored.failed, stored.tried, stored.cell) == (failure.failed, failure.tried, failure.cell)
        assert codec.loads(stored.seed_text).case == failure.case
    words = [row.campaign.findings[0].seed, "--target", "stale_padding/toy", "--target", "clean/toy", "--quiet"]
    assert repro.__main__.main(["run", *words, "--ledger", str(tmp_path / "l.db")]) == 1
    history = check(tmp_path / "l.db")
    assert [(checked.target, checked.status) for checked in history.checks] == [
        ("stale_padding/toy", "FAIL"),
        ("clean/toy", "PASS"),
    ]
    assert history.runs[1].kind == "seeds"


@pytest.mark.slow
def test_a_campaign_that_told_nothing_at_its_end_is_put_together_from_its_cases(tmp_path: Path) -> None:
    words = ["run", "--target", "stale_padding/toy", "--cases", "30", "--ledger", str(tmp_path / "l.db")]
    assert fuzz.__main__.main([*words, "--out", str(tmp_path / "out")]) == 1
    (whole,) = (row.campaign for row in read(tmp_path / "l.db").campaigns)
    connection = sqlite3.connect(tmp_path / "l.db")
    connection.execute("DELETE FROM campaigns")
    connection.commit()
    (rest,) = (row.campaign for row in check(tmp_path / "l.db").campaigns)
    for name in ("target", "runner", "backend", "cases", "judged", "replays", "verdicts", "transitions"):
        assert getattr(rest, name) == getattr(whole, name), name
    assert rest.stopped == NOT_ENDED
    assert {(finding.fingerprint, finding.failed, finding.case, finding.cell) for finding in rest.findings} == {
        (finding.fingerprint, finding.failed, finding.case, finding.cell) for finding in whole.findings
    }


@pytest.mark.slow
def test_the_workers_of_a_crew_write_into_one_run(tmp_path: Path) -> None:
    words = ["run", "--target", "stale_padding/toy", "--cases", "40", "--workers", "2", "--out", str(tmp_path / "out")]
    assert fuzz.__main__.main([*words, "--ledger", str(tmp_path / "l.db")]) == 1
    history = check(tmp_path / "l.db")
    (run,), (row,) = history.runs, history.campaigns
    assert sum(count.count for count in history.cases) == row.campaign.cases == 40
    assert {stored.fingerprint for stored in history.findings} == {
        finding.fingerprint for finding in row.campaign.findings
    }
    assert {stored.run for stored in history.findings} == {run.id}


@pytest.mark.slow
def test_a_hunt_tries_its_findings_on_the_other_targets(tmp_path: Path) -> None:
    words = ["hunt", "--target", "stale_padding/toy", "--target", "clean/toy", "--seconds", "4"]
    assert fuzz.__main__.main([*words, "--out", str(tmp_path / "out"), "--ledger", str(tmp_path / "l.db")]) == 1
    history = check(tmp_path / "l.db")
    assert history.runs[0].kind == "hunt"
    assert {(checked.subject, checked.target, checked.status) for checked in history.checks} == {
        (f"finding:{finding.fingerprint}", "clean/toy", "PASS") for finding in history.findings
    }


@pytest.mark.slow
def test_a_killed_campaign_leaves_all_that_it_told_of(tmp_path: Path) -> None:
    words = ["run", "--target", "stale_padding/toy", "--minutes", "1", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "fuzz", *words, "--ledger", str(tmp_path / "l.db")]
    environment = {**os.environ, "PYTHONPATH": in_front(PROJECT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    for line in process.stdout:
        if f"slot0_padding {STALE} found" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    history = check(tmp_path / "l.db")
    assert STALE in {stored.fingerprint for stored in history.findings}
    assert not history.runs[0].ended
    (row,) = history.campaigns
    assert row.campaign.stopped == NOT_ENDED and row.campaign.cases == sum(count.count for count in history.cases)
    assert STALE in {failure.fingerprint for failure in row.campaign.findings}


@pytest.mark.slow
def test_the_ledgers_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codec.write(tmp_path / "a.json", Seed(case=CASE))
    words = ["run", str(tmp_path / "a.json"), "--target", "clean/toy", "--quiet"]
    for name in ("one.db", "two.db"):
        repro.__main__.main([*words, "--ledger", str(tmp_path / name)])
    capsys.readouterr()
    sources = [str(tmp_path / name) for name in ("one.db", "two.db")]
    assert repro.__main__.main(["ledger", "merge", str(tmp_path / "both.db"), *sources]) == 0
    assert "one.db: 1 new runs, 1 new rows" in capsys.readouterr().out
    assert repro.__main__.main(["ledger", "check", str(tmp_path / "both.db")]) == 0
    assert "sound; 2 runs" in capsys.readouterr().out
    assert repro.__main__.main(["ledger", "show", str(tmp_path / "both.db")]) == 0
    assert "run 2: seeds on " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["ledger", "check", "BAD"],
        ["ledger", "show", "BAD"],
        ["ledger", "merge", "out.db", "BAD"],
        ["ledger", "show", "absent.db"],
        ["run", "a.json", "--target", "clean/toy", "--ledger", "BAD"],
        ["fixes", "--fix", "23037", "--ledger", "BAD"],
    ],
)
def test_a_bad_ledger_is_one_line_and_3(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("BAD").write_text("no database " * 100)
    codec.write(Path("a.json"), Seed(case=CASE))
    assert repro.__main__.main(words) == 3
    output = capsys.readouterr()
    assert output.err.startswith(f"error: {words[-1]}: ") and output.err.count("\n") == 1
    assert output.out == "" and not Path("out.db").exists()


@pytest.mark.slow
def test_a_campaign_on_a_bad_ledger_is_one_line_and_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "BAD").write_text("no database " * 100)
    words = ["run", "--target", "clean/toy", "--cases", "1", "--out", str(tmp_path / "out")]
    assert fuzz.__main__.main([*words, "--ledger", str(tmp_path / "BAD")]) == 3
    output = capsys.readouterr()
    assert "BAD: not an eagleeye ledger" in output.err and output.err.count("\n") == 1
