"""The identity of a failure: runner, backend, oracle and where; and histories from before that was so."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from repro.cases import codec
from repro.cases.runner_facts import RUNNER_FACTS
from repro.ledger.identities import FACT
from repro.ledger.merge import check, merge
from repro.ledger.read import read
from repro.ledger.states import measurements, states
from repro.ledger.write import Ledger
from repro.traces.campaign import dumps, loads
from repro.traces.earlier import places
from repro.traces.finding import fingerprint
from repro.upstream.fixes import SEEDS
from tests.builders.project import DATA
from tests.builders.sample_record import campaign, stale_found
from tests.builders.sample_rows import check_row, finding_row


def test_a_history_of_several_runners_is_told_apart(tmp_path: Path) -> None:
    """Made by the version before: four runners with one fingerprint, one of which alone was run again each night;
    a finding of four buffers; checks of a finding that is not stored; and trouble of either kind."""
    path = Path(shutil.copy(DATA / "history-2.db", tmp_path / "old.db"))
    history = read(path)
    stale = {row.fingerprint: row.runner for row in history.findings if row.where.endswith("rows of req_pool_indices")}
    assert sorted(stale.values()) == ["decode", "draft", "draft_extend", "multi_layer", "verify"]
    for name, runner in stale.items():
        assert name == fingerprint(runner, "triton", "slot0_padding", "padded rows of req_pool_indices")
    of_draft = {row.where: row.cell for row in history.findings if row.runner == "draft"}
    assert [where.removeprefix("padded rows of ") for where in of_draft] == [
        *("hidden_states", "req_pool_indices", "topk_index", "topk_p")
    ]
    assert [where for where, cell in of_draft.items() if cell] == ["padded rows of req_pool_indices"]
    now = {pair: state.state for pair, state in states(measurements(history)).items()}
    for runner, newer in (("decode", None), ("verify", None), ("multi_layer", "known")):
        name = next(name for name, of in stale.items() if of == runner)
        assert now["finding:" + name, "0.5.12.post1/emulated"] == "known"
        assert now.get(("finding:" + name, "0.5.13/emulated")) == newer
    finding = {finding.fingerprint for row in history.campaigns for finding in row.campaign.findings}
    assert finding < {row.fingerprint for row in history.findings}
    status = {row.reason: row.status for row in history.checks if row.reason and row.subject.startswith("seed:")}
    assert sorted(status.values()) == ["ERROR", "ERROR", "UNSUPPORTED"]
    assert status["flashinfer has no stand-in on the verify runner's way"] == "UNSUPPORTED"
    for run in history.runs:
        assert run.facts[FACT] == (
            "1 check of draft of finding 0123456789ab; 1 check of verify of finding 0123456789ab; "
            "3 cases of 0.5.10.post1/emulated verify/triton that are UNFIT"
        )
    # It is the same again where it is written, merged with itself as it was, and read once more.
    merge(tmp_path / "out.db", [path, DATA / "history-2.db"])
    with Ledger.open(path):
        pass
    for other in (check(path), read(tmp_path / "out.db")):
        assert (set(other.findings), other.runs) == (set(history.findings), history.runs)
        assert sorted(map(repr, other.checks)) == sorted(map(repr, history.checks))


def test_what_cannot_be_told_apart_is_told_and_stays(tmp_path: Path) -> None:
    """A finding whose seed is damaged keeps its row; cases that one reason explains have its kind; so do fixes."""
    path = Path(shutil.copy(DATA / "history-2.db", tmp_path / "old.db"))
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.execute("UPDATE findings SET seed_text = '{' WHERE fingerprint = 'a2dfbbbe8eea'")
        for run, text in old.execute("SELECT run, campaign FROM campaigns").fetchall():
            form = json.loads(text)
            if form.get("unfit"):
                form["unfit"] = {"the worker ended: SIGKILL": 3}
                old.execute(
                    "UPDATE campaigns SET campaign = ? WHERE run = ? AND campaign = ?", (json.dumps(form), run, text)
                )
        run = old.execute("SELECT id FROM runs LIMIT 1").fetchone()[0]
        for number, role in enumerate(("", "buggy")):
            texts = ["stale rows", "draft", "emulated", role, "", "", "UNFIT", "", "", 0.0, "", "why", "triton", ""]
            old.execute(
                f"INSERT INTO fixes VALUES ({', '.join('?' * 17)})", (str(number).encode(), run, 23037 + number, *texts)
            )
        old.commit()
    history = read(path)
    assert [(row.role, row.status) for row in history.fixes] == [("", "UNSUPPORTED"), ("buggy", "ERROR")]
    assert {count.status for count in history.cases if count.target == "0.5.10.post1/emulated"} == {"ERROR"}
    assert "a2dfbbbe8eea" in {row.fingerprint for row in history.findings}
    for run_of in history.runs:
        assert "1 finding a2dfbbbe8eea, whose seed cannot be read" in run_of.facts[FACT]
        assert "that are UNFIT" not in run_of.facts[FACT]


def test_runners_that_fail_alike_are_several_findings(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "l.db")
    run = ledger.begin("nightly")
    kinds = [("decode", "triton"), ("verify", "triton"), ("verify", "flashinfer"), ("multi_layer", "triton")]
    for runner, backend in kinds:
        name = fingerprint(runner, backend, "slot0_padding", "padded rows")
        ledger.finding(finding_row(run, name, runner=runner, backend=backend))
        status = "FAIL" if runner == "multi_layer" else "PASS"
        ledger.check(check_row(run, status, f"finding:{name}", runner=runner, backend=backend))
    history = read(ledger.path)
    assert [(row.runner, row.backend) for row in history.findings] == kinds
    assert [state.state for state in states(measurements(history)).values()] == ["fixed", "fixed", "fixed", "new"]


def test_every_stored_seed_names_its_failure_so() -> None:
    for path in SEEDS.glob("*.json"):
        seed = codec.read(path)
        setup, where = seed.case.setup, str(seed.about["where"])
        oracle = str(seed.about["oracle"])
        assert places(oracle, where) == (where,), f"{path}: one buffer"
        wrong = re.match(r"step -?\d+ (.+?)\[", str(seed.about.get("cell", "")))
        buffer = wrong[1] if wrong else ""
        # In rounds a launch is judged as one of the runner whose graph it is of.
        runners = (setup.runner, *RUNNER_FACTS[setup.runner].launches)
        names = [fingerprint(runner, setup.backend, oracle, where, buffer) for runner in runners]
        assert seed.about["fingerprint"] in names, path


def test_a_record_from_before_names_its_findings_so() -> None:
    """Made by the version before, on the toy's stale padding: four buffers in one finding."""
    text = (DATA / "record-1-padding.json").read_text()
    [campaign, _], replays = loads(text)
    stale = {finding.where: finding for finding in campaign.findings if finding.oracle == "slot0_padding"}
    names = ("hidden_states", "req_pool_indices", "topk_index", "topk_p")
    assert [where.removeprefix("padded rows of ") for where in stale] == [*names]
    assert {finding.fingerprint for finding in replays} >= {finding.fingerprint for finding in stale.values()}
    assert [where for where, finding in stale.items() if finding.cell] == ["padded rows of req_pool_indices"]
    assert loads(dumps([campaign], replays)) == ((campaign,), replays), "and is not told apart twice"


def test_what_the_reference_alone_showed_is_its_own_failure(tmp_path: Path) -> None:
    """In a ledger of the schema before, and in the record of a campaign."""
    path = Path(shutil.copy(DATA / "ledger-3.db", tmp_path / "old.db"))
    old_where = "graph and eager agree and are both wrong, window"
    old = fingerprint("toy", "triton", "graph_equals_eager", old_where)
    new = fingerprint("toy", "triton", "reference", "wrong values, window")
    with contextlib.closing(sqlite3.connect(path)) as ledger:
        ledger.execute(
            'UPDATE findings SET oracle = ?, "where" = ?, fingerprint = ?', ("graph_equals_eager", old_where, old)
        )
        ledger.execute(
            'UPDATE checks SET subject = ?, oracle = ?, "where" = ?, fingerprint = ?, runner = ?, backend = ?',
            (f"finding:{old}", "graph_equals_eager", old_where, old, "toy", "triton"),
        )
        ledger.commit()
    history = read(path)
    (finding,), (checked,) = history.findings, history.checks
    failure = ("reference", "wrong values, window", new)
    assert (finding.oracle, finding.where, finding.fingerprint) == failure
    assert (checked.oracle, checked.where, checked.fingerprint) == failure
    assert checked.subject == f"finding:{new}"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (("graph_equals_eager", "graph and eager agree and are both wrong"), ("reference", "wrong values")),
        (
            ("ended", "crashed CUDA error: misaligned address in eager"),
            ("ended", "raised CUDA error: misaligned address in eager"),
        ),
        (("ended", "crashed SIGABRT in eager"), ("ended", "crashed SIGABRT in eager")),
        (
            ("ended", "crashed CUDA error: out of memory in eager"),
            ("ended", "crashed CUDA error: out of memory in eager"),
        ),
    ],
)
def test_a_record_names_it_so(before: tuple[str, str], now: tuple[str, str]) -> None:
    form = json.loads(dumps([campaign(findings=(stale_found(),))]))
    setup = stale_found().case.setup
    values = (*before, fingerprint(setup.runner, setup.backend, *before))
    form["campaigns"][0]["findings"][0] |= dict(zip(("oracle", "where", "fingerprint"), values, strict=True))
    [read_again], _ = loads(json.dumps(form))
    (finding,) = read_again.findings
    assert (finding.oracle, finding.where) == now
    assert finding.fingerprint == fingerprint(setup.runner, setup.backend, *now)


def test_of_a_plan_the_first_wrong_buffer_is_a_part_of_the_name(tmp_path: Path) -> None:
    """One finding in two buffers is two; what was run of it was run of both."""
    path = Path(shutil.copy(DATA / "ledger-3.db", tmp_path / "old.db"))
    place = ("toy", "triton", "kv_indices", "segment of a real row")
    old, *new = (fingerprint(*place, buffer) for buffer in ("", "a", "b"))
    assert len({old, *new}) == 3
    assert fingerprint(*place[:2], "staged", "x", "a") == fingerprint(*place[:2], "staged", "x")
    named = 'oracle = ?, "where" = ?, fingerprint = ?, runner = ?, backend = ?'
    values = (*place[2:], old, *place[:2])
    with contextlib.closing(sqlite3.connect(path)) as ledger:
        cells = [json.dumps({"step": 0, "buffer": b, "row": 0, "column": 0, "got": "1", "want": "2"}) for b in "ab"]
        ledger.execute(f"UPDATE findings SET {named}, cell = ?", (*values, cells[0]))
        columns = [row[1] for row in ledger.execute("PRAGMA table_info(findings)")]
        copied = ", ".join({"key": "randomblob(16)", "cell": "?"}.get(name, f'"{name}"') for name in columns)
        ledger.execute(f"INSERT INTO findings SELECT {copied} FROM findings", (cells[1],))
        ledger.execute(f"UPDATE checks SET {named}, subject = ?", (*values, f"finding:{old}"))
        ledger.commit()
    history = read(path)
    assert [row.fingerprint for row in history.findings] == new
    assert sorted(row.subject for row in history.checks) == sorted(f"finding:{name}" for name in new)
    assert {row.fingerprint for row in history.checks} == {*new}
