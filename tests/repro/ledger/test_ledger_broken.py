"""Output on a ledger; an error in the middle of writing leaves it as it was."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repro.commands.ledger import RUNS_SHOWN, shown
from repro.ledger import schema
from repro.ledger.merge import merge
from repro.ledger.read import read
from repro.ledger.schema import BadLedger
from repro.ledger.write import Ledger
from tests.builders.project import DATA
from tests.builders.sample_rows import TARGET, check_row
from tests.repro.ledger.test_ledger import fill


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        yield ledger


@pytest.mark.slow
def test_what_is_shown_of_a_ledger(ledger: Ledger) -> None:
    first = ledger.begin("seeds", facts={"not told apart": "a finding of two runners"})
    ledger.check(check_row(first))
    ledger.end(first)
    for _ in range(RUNS_SHOWN):
        fill(ledger)
    last = ledger.begin("seeds")
    ledger.check(check_row(last, "FAIL"))
    ledger.check(check_row(last, "UNSUPPORTED", "seed:b.json", reason="there is no such runner"))
    lines = list(shown(read(ledger.path)))
    count = RUNS_SHOWN + 2
    stored = f"{RUNS_SHOWN * 3} cases, {RUNS_SHOWN} campaigns, {RUNS_SHOWN} findings, {count + 1} checks"
    assert lines[0].endswith(f"{stored}, {RUNS_SHOWN} stops of fixes")
    assert lines[1] == f"the last {RUNS_SHOWN} of {count} runs:"
    runs = [line for line in lines if line.startswith("run ")]
    assert len(runs) == RUNS_SHOWN + 1 and "run 1, not told apart: a finding of two runners" in runs
    assert "1 cases FAIL, 2 cases PASS, " in runs[0] and runs[0].endswith("1 findings, 1 checks, 1 stops")
    assert " not ended: 2 checks" in runs[-2]
    states = lines[lines.index(runs[-1]) + 1 :]
    assert f"seed:b.json on {TARGET}: cannot run (there is no such runner)" in states
    (seed,) = (line for line in states if line.startswith(f"seed:a.json on {TARGET}: regressed"))
    assert f", since run {count}" in seed
    assert any(line.startswith("finding:a2dfbbbe8eea (toy/triton slot0_padding: padded rows) on ") for line in states)


def test_what_goes_wrong_in_the_middle_leaves_the_ledger_as_it_was(ledger: Ledger) -> None:
    run = ledger.begin("seeds", facts={"torch": "2.11"})
    bad: Any = {"torch": "2.12", "device": 3}
    with pytest.raises(AttributeError):
        ledger.facts(run, bad)
    ledger.facts(run, {"device": "H200"})
    (stored,) = read(ledger.path).runs
    assert (stored.facts["torch"], stored.facts["device"]) == ("2.11", "H200")


def test_a_source_that_breaks_in_the_middle_leaves_the_other_as_it_was(ledger: Ledger, tmp_path: Path) -> None:
    fill(ledger)
    source = tmp_path / "source.db"
    with Ledger.open(source) as other:
        fill(other)
    connection = sqlite3.connect(source)
    connection.execute("DROP TABLE fixes")
    connection.commit()
    connection.close()
    with pytest.raises(BadLedger, match=r"source\.db: .*no such table: fixes"):
        merge(ledger.path, [source])
    assert len(read(ledger.path).runs) == 1
    fill(ledger)


@pytest.mark.parametrize("log", [False, True])
def test_a_ledger_in_a_folder_that_nobody_may_write_to_is_read_unless_it_has_a_log(
    log: bool, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite wants a file beside it that readers share; where there is a log as well, it would be overlooked."""
    fill(ledger)
    ledger.close()
    path = ledger.path
    wal = path.with_name(f"{path.name}-wal")
    wal.touch() if log else wal.unlink(missing_ok=True)
    connect, calls = schema._connect, []

    class ReadOnly(sqlite3.Connection):
        def execute(self, *arguments: Any) -> Any:
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorname = "SQLITE_CANTOPEN"
            raise error

    def refusing(uri: str) -> sqlite3.Connection:
        calls.append(uri)
        return connect(uri) if uri.endswith("immutable=1") else sqlite3.connect(":memory:", factory=ReadOnly)

    monkeypatch.setattr(schema, "_connect", refusing)
    if log:
        with pytest.raises(BadLedger, match=r"cannot be opened: no such file, or its folder is read-only"):
            read(path)
        assert len(calls) == 1
    else:
        assert len(read(path).runs) == 1
        assert calls[-1].endswith("mode=ro&immutable=1")


def test_a_ledger_that_cannot_be_brought_up_to_date_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    shutil.copy(DATA / "ledger-1.db", path)
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE findings")
    connection.commit()
    connection.close()
    with pytest.raises(BadLedger, match=r"old\.db: "), Ledger.open(path):
        pass
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()
