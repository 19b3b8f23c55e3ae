"""The ledger: what is stored comes back, old files are brought up to date, and trouble is one clear line."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repro.ledger import schema
from repro.ledger.merge import check, merge
from repro.ledger.read import CASE_COLUMNS, History, read
from repro.ledger.rows import CampaignRow, CaseCount
from repro.ledger.schema import BadLedger
from repro.ledger.write import Ledger
from tests.builders.project import DATA, PROJECT
from tests.builders.sample_record import campaign
from tests.builders.sample_rows import CASE, SEED_TEXT, case_row, check_row, finding_row, fix_row

CAMPAIGN = campaign()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "deep" / "ledger.db") as opened:
        yield opened


def fill(ledger: Ledger) -> str:
    run = ledger.begin("campaign", command="python -m fuzz run", facts={"torch": "2.11"})
    for status in ("PASS", "PASS", "FAIL"):
        ledger.case(case_row(run, status, target=str(CAMPAIGN.target)))
    ledger.finding(finding_row(run))
    ledger.check(check_row(run))
    ledger.fix(fix_row(run))
    ledger.campaign(CampaignRow(run=run, campaign=CAMPAIGN))
    ledger.end(run, {"device": "NVIDIA H200"})
    return run


def test_what_is_stored_comes_back(ledger: Ledger) -> None:
    run = fill(ledger)
    history = read(ledger.path)
    (stored,) = history.runs
    assert (stored.id, stored.kind, stored.command) == (run, "campaign", "python -m fuzz run")
    assert stored.started <= stored.ended
    assert stored.facts["torch"] == "2.11" and stored.facts["device"] == "NVIDIA H200" and stored.facts["python"]
    counted: dict[str, Any] = {
        "run": run,
        "target": str(CAMPAIGN.target),
        "runner": "draft",
        "backend": "triton",
        "topk": 2,
        "num_steps": 3,
    }
    assert set(history.cases) == {
        CaseCount(**counted, status="PASS", count=2, replays=6, seconds=0.5),
        CaseCount(**counted, status="FAIL", count=1, replays=3, seconds=0.25),
    }
    for rows, expected in (
        (history.findings, finding_row(run)),
        (history.checks, check_row(run)),
        (history.fixes, fix_row(run)),
        (history.campaigns, CampaignRow(run=run, campaign=CAMPAIGN)),
    ):
        (row,) = rows
        assert row.at
        assert replace(row, at="") == expected
    named = [dict(zip(CASE_COLUMNS, row, strict=True)) for row in history.case_rows()]
    assert [record["status"] for record in named] == ["PASS", "PASS", "FAIL"]
    first = case_row(run, target=str(CAMPAIGN.target))
    assert named[0] | {"at": ""} == {name: getattr(first, name) for name in CASE_COLUMNS}


def test_a_finding_is_told_once_in_the_form_stored_last(ledger: Ledger) -> None:
    run = ledger.begin("campaign")
    ledger.finding(finding_row(run, "first", failed=0, tried=0))
    ledger.finding(finding_row(run, "second"))
    ledger.finding(finding_row(run, "first", failed=4, tried=5))
    other = ledger.begin("campaign")
    ledger.finding(finding_row(other, "first", failed=1))
    rows = [(row.run, row.fingerprint, row.failed) for row in read(ledger.path).findings]
    assert rows == [(run, "first", 4), (run, "second", 5), (other, "first", 1)]


def test_a_reader_sees_what_was_stored_before_it_and_disturbs_nobody(ledger: Ledger) -> None:
    run = ledger.begin("campaign")
    ledger.case(case_row(run))
    rows = read(ledger.path).case_rows()
    next(rows)
    ledger.case(case_row(run))
    assert len(list(read(ledger.path).case_rows())) == 2
    assert list(rows) == []


def test_an_empty_ledger_has_an_empty_history(ledger: Ledger) -> None:
    assert read(ledger.path) == History(path=ledger.path)


def test_merging_joins_and_counts_nothing_twice(tmp_path: Path) -> None:
    runs = []
    for name in ("a.db", "b.db"):
        with Ledger.open(tmp_path / name) as ledger:
            runs.append(fill(ledger))
    sources = [tmp_path / "a.db", tmp_path / "b.db"]
    joined = merge(tmp_path / "both.db", sources)
    assert [(merged_file.runs, merged_file.rows) for merged_file in joined] == [(1, 7), (1, 7)]
    once = read(tmp_path / "both.db")
    assert {run.id for run in once.runs} == set(runs)
    assert len(list(once.case_rows())) == 6
    assert len(once.findings) == len(once.checks) == len(once.fixes) == len(once.campaigns) == 2
    again = merge(tmp_path / "both.db", [*sources, tmp_path / "both.db"])
    assert [(merged_file.runs, merged_file.rows) for merged_file in again] == [(0, 0)] * 3
    assert read(tmp_path / "both.db") == once


def test_merging_again_completes_a_run_that_was_under_way(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.db") as ledger:
        run = ledger.begin("campaign")
        ledger.case(case_row(run))
        merge(tmp_path / "out.db", [tmp_path / "a.db"])
        ledger.case(case_row(run, "FAIL"))
        ledger.end(run, {"device": "H200"})
    merge(tmp_path / "out.db", [tmp_path / "a.db"])
    merged, source = read(tmp_path / "out.db"), read(tmp_path / "a.db")
    assert merged.runs == source.runs and merged.cases == source.cases
    assert merged.runs[0].ended and merged.runs[0].facts["device"] == "H200"


def test_a_source_that_is_none_is_named_before_anything_is_written(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.db") as ledger:
        fill(ledger)
    with pytest.raises(BadLedger, match=r"absent\.db: no such file"):
        merge(tmp_path / "out.db", [tmp_path / "a.db", tmp_path / "absent.db"])
    assert not (tmp_path / "out.db").exists()


def test_a_sound_ledger_is_found_sound(ledger: Ledger) -> None:
    fill(ledger)
    assert check(ledger.path) == read(ledger.path)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DELETE FROM runs", "rows of cases belong to no run"),
        ("UPDATE findings SET seed_text = '{}'", "seed of finding a2dfbbbe8eea"),
        ("UPDATE findings SET cell = '{'", "a row makes no sense"),
        ("UPDATE campaigns SET campaign = '{}'", "a row makes no sense"),
        ("UPDATE runs SET facts = 'x'", "a row makes no sense"),
    ],
)
def test_what_is_unsound_is_named(ledger: Ledger, statement: str, message: str) -> None:
    fill(ledger)
    connection = sqlite3.connect(ledger.path)
    connection.execute(statement)
    connection.commit()
    with pytest.raises(BadLedger, match=message):
        check(ledger.path)


def refusals(path: Path) -> list[str]:
    """The refusals of writing and of reading this file: one line each."""
    texts = []
    for use in (Ledger.open, read, check):
        with pytest.raises(BadLedger) as raised:
            use(path)
        texts.append(str(raised.value))
    assert all(text.startswith(f"{path}: ") and "\n" not in text for text in texts)
    return texts


def test_a_corrupt_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"no database" * 1000)
    assert all("not an eagleeye ledger" in text for text in refusals(path))


def test_a_file_with_a_torn_page(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        run = ledger.begin("campaign")
        for _ in range(500):
            ledger.case(case_row(run))
    content = bytearray(path.read_bytes())
    content[8192 : len(content) - 4096] = os.urandom(len(content) - 12288)
    path.write_bytes(content)
    with pytest.raises(BadLedger, match="is damaged"):
        check(path)


def test_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        fill(ledger)
    path.write_bytes(path.read_bytes()[:6000])
    with pytest.raises(BadLedger, match="is damaged"):
        check(path)


def test_a_database_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    sqlite3.connect(path).execute("CREATE TABLE other (x)")
    assert all("another SQLite database" in text for text in refusals(path))


def test_a_newer_schema(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger.open(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert all("has schema 99, and this eagleeye knows schemas up to" in text for text in refusals(path))


def test_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(BadLedger, match="cannot be opened"):
        Ledger.open(tmp_path)
    with pytest.raises(BadLedger, match="no such file"):
        read(tmp_path)


@pytest.mark.slow
def test_a_full_disk_costs_no_more_than_the_row_in_flight(ledger: Ledger) -> None:
    run = ledger.begin("campaign")
    ledger._connection.execute("PRAGMA max_page_count = 40")
    stored = 0
    with pytest.raises(BadLedger, match="the disk is full; what had been stored before is safe"):
        for stored in range(1000):
            ledger.finding(finding_row(run, f"number {stored}"))
    assert 0 < stored < 1000
    assert [row.fingerprint for row in check(ledger.path).findings] == [f"number {n}" for n in range(stored)]
    # Somebody makes room.
    ledger._connection.execute("PRAGMA max_page_count = 4000")
    ledger.finding(finding_row(run, "afterwards"))
    assert len(check(ledger.path).findings) == stored + 1


LIMITED = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from tests.builders.sample_rows import finding_row
from repro.ledger.write import Ledger
from repro.ledger.schema import BadLedger
ledger = Ledger.open(Path({path!r}))
run = ledger.begin("campaign")
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    for number in range(10_000):
        ledger.finding(finding_row(run, str(number)))
        print(number, flush=True)
except BadLedger as error:
    print(error, file=sys.stderr)
    sys.exit(3)
"""


@pytest.mark.slow
def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    script = LIMITED.format(tests=str(PROJECT), path=str(path))
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 3
    assert "the disk refused the write" in ran.stderr and ran.stderr.count("\n") == 1
    words = ran.stdout.split()
    assert len(words) > 10
    assert [row.fingerprint for row in check(path).findings] == words


READ_ONLY = """
import os, sys
from pathlib import Path
from repro.ledger.write import Ledger
from repro.ledger.schema import BadLedger
from repro.ledger.read import read
if os.getuid() == 0:
    # The superuser may write anywhere.
    os.setuid(65534)
path = Path({path!r})
print(len(read(path).findings))
for name in (path, path.with_name("new.db")):
    try:
        Ledger.open(name)
    except BadLedger as error:
        print(error)
"""


def test_a_read_only_folder_can_be_read_and_says_that_it_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    path = folder / "ledger.db"
    with Ledger.open(path) as ledger:
        fill(ledger)
    for part in (folder, *tmp_path.parents[:-1], tmp_path):
        if part.owner() == tmp_path.owner() and not part.samefile("/tmp"):
            part.chmod(0o555 if part == folder else 0o755)
    path.chmod(0o444)
    try:
        script = READ_ONLY.format(path=str(path))
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    finally:
        folder.chmod(0o755)
    lines = ran.stdout.splitlines()
    assert lines[0] == "1", ran.stderr
    assert lines[1].startswith(f"{path}: ") and "read-only" in lines[1]
    assert lines[2].startswith(f"{path.with_name('new.db')}: ") and "read-only" in lines[2]


def test_there_is_an_old_ledger_of_every_schema() -> None:
    assert {path.name for path in DATA.glob("ledger-*.db")} == {
        f"ledger-{number}.db" for number in range(1, schema.SCHEMA + 1)
    }


@pytest.mark.parametrize("number", range(1, schema.SCHEMA + 1))
def test_an_old_ledger_is_read_as_it_is_and_brought_up_to_date_when_written(number: int, tmp_path: Path) -> None:
    path = Path(shutil.copy(DATA / f"ledger-{number}.db", tmp_path / "old.db"))
    content = path.read_bytes()
    before = read(path)
    assert path.read_bytes() == content
    assert before.runs and before.cases and before.campaigns and before.findings and before.checks and before.fixes
    assert list(before.case_rows())
    with Ledger.open(path) as ledger:
        run = fill(ledger)
    after = check(path)
    assert after.runs[: len(before.runs)] == before.runs and after.runs[-1].id == run
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (schema.SCHEMA,)


def test_a_schema_yet_to_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A migration is made in one step, by the first who writes; readers make it in memory."""
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        fill(ledger)
    now = schema.SCHEMA
    added = "ALTER TABLE cases ADD COLUMN note TEXT NOT NULL DEFAULT ''"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, added))
    monkeypatch.setattr(schema, "SCHEMA", now + 1)
    assert len(read(path).findings) == 1
    version = "PRAGMA user_version"
    assert sqlite3.connect(path).execute(version).fetchone() == (now,)
    Ledger.open(path).close()
    assert sqlite3.connect(path).execute(version).fetchone() == (now + 1,)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE good (x); CREATE TABLE runs"))
    monkeypatch.setattr(schema, "SCHEMA", now + 2)
    with pytest.raises(BadLedger):
        Ledger.open(path)
    names = [name for (name,) in sqlite3.connect(path).execute("SELECT name FROM sqlite_master")]
    assert "good" not in names and sqlite3.connect(path).execute(version).fetchone() == (now + 1,)


def test_the_sample_seed_is_one() -> None:
    assert CASE.setup.runner in SEED_TEXT
