"""Attacked from outside: traces, recordings and ledgers that claim more than they hold, or hold what does not belong
there. Each is one clear line and exit code 3, and costs little."""

from __future__ import annotations

import io
import json
import re
import resource
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reports import __main__ as reports
from repro.__main__ import main
from repro.cases.case import Target
from repro.fidelity import recording
from repro.fidelity.recording import Recording
from repro.ledger.write import Ledger
from repro.traces import trace_file
from repro.traces.trace_file import Kept
from tests.builders.project import PROJECT
from tests.builders.refusals import refusal
from tests.builders.toy_traces import toy_trace
from tests.repro.ledger.test_ledger import fill
from tests.repro.test_repro_main import CASE

TRACE = toy_trace(CASE)
# The memory that a command may take to refuse a small file, beside Python's and numpy's.
MEMORY_MAX = 3 << 30


def array(head: bytes = b"", *, shape: str = "", kind: str = "|u1", version: int = 1) -> bytes:
    """An array's file, whatever it says of itself."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape or f'({len(head)},)'}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2, "little") + header + head


def packed(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def head_of(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        form: dict[str, Any] = json.loads(file["head"].tobytes())
    return form


def body_of(path: Path) -> bytes:
    with np.load(path) as file:
        body: bytes = file["body"].tobytes()
    return body


def again(path: Path, **changes: Any) -> bytes:
    head = json.dumps(head_of(path) | changes).encode()
    return packed({"head.npy": array(head), "body.npy": array(body_of(path))})


def with_member(path: Path, name: str, content: bytes, **more: Any) -> bytes:
    members = {"head.npy": array(json.dumps(head_of(path)).encode()), "body.npy": array(body_of(path))}
    return packed(members | {name: content}, **more)


def shaped(path: Path, *form: Any) -> bytes:
    """With one more array, of this type and shape."""
    head = head_of(path)
    if "seen" in head:
        return again(path, seen=[*head["seen"], [0, "graph", "more", *form]])
    return again(path, arrays=[*head["arrays"], list(form)])


def doubled(path: Path) -> bytes:
    out = io.BytesIO(path.read_bytes())
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(out, "a") as archive:
        archive.writestr("body.npy", array(b"x"))
    return out.getvalue()


def flagged(path: Path) -> bytes:
    """An archive whose members are marked as encrypted."""
    return re.sub(rb"(PK\x01\x02.{4})..", lambda match: match[1] + b"\x01\x00", path.read_bytes(), flags=re.DOTALL)


def lying(path: Path) -> bytes:
    """Members of which the list says that they unpack to 4 GB."""
    sized = b"\xf0\xff\xff\xff"
    return re.sub(rb"(PK\x01\x02.{20}).{4}", lambda match: match[1] + sized, path.read_bytes(), flags=re.DOTALL)


ATTACKS: dict[str, Callable[[Path], bytes]] = {
    "a member more": lambda path: with_member(path, "more.npy", array(b"x")),
    "a member without end": lambda path: with_member(path, "more.npy", bytes(64 << 20)),
    "a member less": lambda path: packed({"head.npy": array(b"{}")}),
    "a member twice": doubled,
    "a member elsewhere": lambda path: packed({"../head.npy": array(b"{}"), "body.npy": array()}),
    "no members": lambda path: packed({}),
    "a head that unpacks": lambda path: with_member(path, "head.npy", array(bytes(70 << 20))),
    "a body of a shape": lambda path: with_member(path, "body.npy", array(b"x", shape="(10000000000000,)")),
    "a body of a negative shape": lambda path: with_member(path, "body.npy", array(b"x", shape="(-1,)")),
    "a body of axes": lambda path: with_member(path, "body.npy", array(b"xy", shape="(2, 1)")),
    "a body of floats": lambda path: with_member(path, "body.npy", array(bytes(8), kind="<f8", shape="(1,)")),
    "a body of objects": lambda path: with_member(path, "body.npy", array(b"x", kind="|O", shape="(1,)")),
    "a body without a header": lambda path: with_member(path, "body.npy", b"x" * 100),
    "an empty body": lambda path: with_member(path, "body.npy", b""),
    "a header that is a program": lambda path: with_member(path, "body.npy", array(shape="__import__('os')")),
    "a header of another version": lambda path: with_member(path, "body.npy", array(b"x", version=3)),
    "bzip2": lambda path: with_member(path, "head.npy", array(b"{}"), method=zipfile.ZIP_BZIP2),
    "lzma": lambda path: with_member(path, "head.npy", array(b"{}"), method=zipfile.ZIP_LZMA),
    "encrypted": flagged,
    "sizes that lie": lying,
    "cut": lambda path: path.read_bytes()[:-30],
    "cut in the middle": lambda path: path.read_bytes()[: path.stat().st_size // 2],
    "a byte changed": lambda path: path.read_bytes()[:64] + b"\xff\xff" + path.read_bytes()[66:],
    "a pickle": lambda path: b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "a plain array": lambda path: array(b"x"),
    "text": lambda path: b"{}",
    "empty": lambda path: b"",
    "a head that is a list": lambda path: with_member(path, "head.npy", array(b"[]")),
    "a head that is deep": lambda path: with_member(path, "head.npy", array(b"[" * 100_000)),
    "a head that is no text": lambda path: with_member(path, "head.npy", array(b"\xff")),
    "a shape of 10^13": lambda path: shaped(path, "|u1", [10**13]),
    "a shape of 10^30": lambda path: shaped(path, "|u1", [10**30]),
    "a shape that overflows": lambda path: shaped(path, "|u1", [1 << 25, 1 << 25, 1 << 14]),
    "a long axis beside an empty one": lambda path: shaped(path, "|u1", [0, 10**13]),
    "many axes": lambda path: shaped(path, "|u1", [1] * 100),
    "a shape of truths": lambda path: shaped(path, "|u1", [True]),
    "a shape of fractions": lambda path: shaped(path, "|u1", [1.0]),
    "a shape that is none": lambda path: shaped(path, "|u1", 1),
    "objects": lambda path: shaped(path, "|O", [0]),
    "texts": lambda path: shaped(path, "<U1", [0]),
    "records": lambda path: shaped(path, "i4,i4", [0]),
    "a type that is none": lambda path: shaped(path, "nothing", [0]),
    "a type that is a list": lambda path: shaped(path, [["a", "<i8"]], [0]),
}


@pytest.fixture(params=["trace", "recording"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"{request.param}.npz"
    if request.param == "trace":
        trace_file.save(path, Kept(case=CASE, target=Target("clean", "toy"), trace=TRACE))
    else:
        recording.save(path, Recording(target=Target("clean", "toy"), observations=()))
    return path


def words(path: Path) -> list[str]:
    if path.name.startswith("trace"):
        return ["judge", str(path)]
    return ["fidelity", "--against", str(path), "--targets", "clean/toy"]


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_file_of_arrays_that_is_none(attack: Callable[[Path], bytes], kept: Path) -> None:
    kept.write_bytes(attack(kept))
    line = refusal(main, *words(kept))
    assert line.startswith(f"{kept}: ") and ("damaged" in line or "not a " in line)


def test_what_is_written_by_hand_is_read_where_it_is_right(kept: Path) -> None:
    """Else all that is refused above might be refused for another reason."""
    kept.write_bytes(again(kept))
    (trace_file if kept.name.startswith("trace") else recording).load(kept)
    kept.write_bytes(
        with_member(kept, "head.npy", array(json.dumps(head_of(kept)).encode()), method=zipfile.ZIP_STORED)
    )
    (trace_file if kept.name.startswith("trace") else recording).load(kept)


@pytest.mark.exhaustive
def test_a_small_file_takes_little_memory(kept: Path) -> None:
    """A file of 1.2 MB that unpacks to 1.1 GB."""
    kept.write_bytes(with_member(kept, "body.npy", array(bytes(1100 << 20))))

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))

    command = [sys.executable, "-m", "repro", *words(kept)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, preexec_fn=limited, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done.stderr
    assert "bytes are too many" in done.stderr


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
SCHEMAS = {
    "a view": (f"DROP TABLE fixes; CREATE VIEW fixes AS {ENDLESS}", "fixes is a view"),
    "a view beside": (f"CREATE VIEW more AS {ENDLESS}", "more is a view"),
    "a trigger": ("CREATE TRIGGER more AFTER UPDATE ON runs BEGIN DELETE FROM findings; END", "more is a trigger"),
    "a virtual table": ("CREATE VIRTUAL TABLE more USING fts5(a)", "more is a virtual table"),
    "a computed column": (
        "ALTER TABLE cases ADD COLUMN more AS (replace(verdicts, 'a', verdicts))",
        "more is a computed column",
    ),
    "a table less": ("DROP TABLE fixes", "no such table: fixes"),
    "a column less": ("ALTER TABLE fixes DROP COLUMN detail", "its table fixes has no column detail"),
    "a text without end": ("UPDATE runs SET facts = CAST(zeroblob(400000000) AS TEXT)", "too big"),
    "another schema": ("PRAGMA user_version = 99", "has schema 99"),
    "another application": ("PRAGMA application_id = 7", "another SQLite database"),
    "no JSON": ("UPDATE runs SET facts = '{'", "is damaged"),
    "a blob for a text": ("UPDATE runs SET facts = x'ff'", "is damaged"),
    "deep JSON": (f"UPDATE runs SET facts = '{'[' * 100_000}'", "is damaged"),
}


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    with Ledger.open(tmp_path / "ledger.db") as opened:
        fill(opened)
    return tmp_path / "ledger.db"


def altered(path: Path, script: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(("script", "message"), SCHEMAS.values(), ids=SCHEMAS)
def test_a_ledger_that_is_more_or_less_than_tables(script: str, message: str, ledger: Path, tmp_path: Path) -> None:
    altered(ledger, script)
    assert message in refusal(reports.main, "summary", "--ledger", ledger)
    assert message in refusal(main, "ledger", "merge", tmp_path / "out.db", ledger)


@pytest.mark.parametrize("script", [script for script, message in SCHEMAS.values() if " is a " in message])
def test_nothing_is_written_to_one(script: str, ledger: Path) -> None:
    altered(ledger, script)
    words = ("run", PROJECT / "repro/seeds/pr24401-stale-positions.json", "--target", "clean/toy", "--ledger", ledger)
    assert "not an eagleeye ledger" in refusal(main, *words)


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "empty pages": lambda data: data[:4096] + bytes(len(data) - 4096),
    "cut": lambda data: data[: len(data) // 2],
    "no database": lambda data: b"x" * 5000,
    "a page size that is none": lambda data: data[:16] + b"\x00\x03" + data[18:],
    "a newer format": lambda data: data[:18] + b"\x09\x09" + data[20:],
    "more pages than there are": lambda data: data[:28] + b"\x7f\xff\xff\xff" + data[32:],
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_damaged_ledger(harm: Callable[[bytes], bytes], ledger: Path) -> None:
    for suffix in ("-wal", "-shm"):
        ledger.with_name(ledger.name + suffix).unlink(missing_ok=True)
    ledger.write_bytes(harm(ledger.read_bytes()))
    assert str(ledger) in refusal(reports.main, "summary", "--ledger", ledger)


def test_a_ledger_that_is_a_device_or_a_folder(tmp_path: Path) -> None:
    for path in (Path("/dev/zero"), tmp_path):
        assert "no such file" in refusal(reports.main, "summary", "--ledger", path)
