"""Attacked from outside: what a crashed server left, and settings. Whatever they are, a command ends with a result, or
with one clear line and exit code 3."""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuzz import __main__ as fuzz
from repro import __main__ as repro
from runners.recorder import ring, rows
from tests.builders.project import DATA
from tests.builders.recordings import written
from tests.builders.refusals import refusal
from tests.hostile.test_faults_altered import NUMBERS, altered, chance_of, ends_well, torn

pytestmark = pytest.mark.slow

DUMPS = (DATA / "crash_dump_0.5.13.pkl", DATA / "crash_dump_0.5.23.pkl")
TABLE = "step,request,length,accepted\n0,a,12,1\n0,b,9,\n1,a,14,2\n"
LOG = (
    "server_args=ServerArgs(speculative_algorithm='EAGLE', speculative_eagle_topk=4, page_size=1)\n"
    "[2026-01-01 00:00:00] Decode batch, #running-req: 2, #token: 40, token usage: 0.1, accept len: 2.0\n"
)


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """No release needs to be installed."""
    monkeypatch.setattr("repro.commands.case.argument_names", lambda targets: frozenset(rows.SETTINGS))


def altered_pickle(path: Path, chance: random.Random) -> bytes:
    """The dump with a number or a name in it that is another."""
    content = bytearray(path.read_bytes())
    place = chance.randrange(len(content))
    content[place : place + chance.choice((1, 2, 4))] = chance.randbytes(chance.choice((1, 2, 4)))
    return bytes(content)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_crash_dump(number: int, tmp_path: Path) -> None:
    chance = chance_of(number)
    path = tmp_path / "crash_dump_2026-11-26_01-00-00.pkl"
    harm = torn if number % 2 else lambda content, chance: altered_pickle(DUMPS[number % 4 // 2], chance)
    path.write_bytes(harm(DUMPS[number % 4 // 2].read_bytes(), chance))
    ends_well(repro.main, "case", "from-crash-dump", path)


def said(content: bytes, facts: Any) -> bytes:
    """The ring with these facts, whose checksum is right."""
    text = json.dumps(facts).encode(errors="surrogatepass")[: ring._FACTS_SIZE]
    whole = bytearray(content)
    for place in (ring._FACTS_AT, ring._FACTS_AT + ring._FACTS_SIZE):
        head = ring._FACTS.pack(9, len(text), zlib.crc32(text))
        whole[place : place + len(head) + len(text)] = head + text
    return bytes(whole)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_ring(number: int, tmp_path: Path) -> None:
    chance, path = chance_of(number), written(tmp_path, 8)
    content = path.read_bytes()
    facts = ring.read(content).facts
    path.write_bytes(said(content, altered(facts, chance)) if number % 2 else torn(content, chance))
    ends_well(repro.main, "case", "from-recording", path)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_table_or_a_log(number: int, tmp_path: Path) -> None:
    chance, path = chance_of(number), tmp_path / "evidence.txt"
    text, source = ((TABLE, "from-trace"), (LOG, "from-log"))[number % 2]
    path.write_bytes(torn(text.encode(), chance))
    ends_well(repro.main, "case", source, path, "--out", tmp_path / "case.json")


HOSTILE: dict[str, Callable[[Path], Path]] = {
    "a device without an end": lambda folder: Path("/dev/zero"),
    "a silent pipe": lambda folder: _pipe(folder / "pipe"),
    "a folder": lambda folder: folder,
    "deep": lambda folder: _file(folder, b"a = " + b"[" * 100_000),
    "no text": lambda folder: _file(folder, b"\xff\xfe\x00" * 100),
    "a pickle that calls": lambda folder: _file(folder, b"cos\nsystem\n(S'touch harmed'\ntR."),
    "a pickle without an end": lambda folder: _file(folder, b"\x80\x04" + b"(" * 20_000),
    "a pickle of a huge text": lambda folder: _file(folder, b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40)),
    "a pickle of itself": lambda folder: _file(folder, pickle.dumps(_itself())),
}


def _pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _file(folder: Path, content: bytes) -> Path:
    path = folder / "hostile"
    path.write_bytes(content)
    return path


def _itself() -> dict[str, Any]:
    form: dict[str, Any] = {"requests": []}
    form["requests"].append((form, form, 1.0, 2.0))
    return form


@pytest.mark.parametrize("source", ["from-trace", "from-log", "from-recording", "from-crash-dump"])
@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_evidence_that_is_none(
    make: Callable[[Path], Path], source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repro.cases.bounded_file.WAIT_S", 0.1)
    monkeypatch.chdir(tmp_path)
    refusal(repro.main, "case", source, make(tmp_path), "--out", tmp_path / "case.json")
    assert not (tmp_path / "harmed").exists() and not (tmp_path / "case.json").exists()


SETTINGS = {
    "deep": "target = " + "[" * 100_000,
    "a huge number": "target = " + "9" * 5000,
    "another type": "target = 1",
    "another key": "targets = '0.5.13/emulated'",
    "a command for the log's reader": "ledger = 1\n'::error::x' = 1",
    "no target": "target = '../../x'",
    "nested": "[target]\na = 1",
    "twice": "target = 'a'\ntarget = 'b'",
    "no text": "\x00",
}


@pytest.mark.parametrize("text", SETTINGS.values(), ids=SETTINGS)
def test_settings_that_are_none(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "eagleeye.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EAGLEEYE_SETTINGS", raising=False)
    refusal(repro.main, "settings")
    refusal(fuzz.main, "run", "--cases", "1")


@pytest.mark.parametrize("name", ["a device without an end", "a silent pipe", "a folder", "deep", "no text"])
def test_a_place_of_settings_that_is_none(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.cases.bounded_file.WAIT_S", 0.1)
    monkeypatch.setenv("EAGLEEYE_SETTINGS", str(HOSTILE[name](tmp_path)))
    refusal(repro.main, "settings")


@pytest.mark.parametrize("name", ["a device without an end", "a silent pipe", "no text"])
@pytest.mark.parametrize("option", ["--like", "--near"])
def test_a_server_that_a_campaign_is_to_be_like(
    option: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repro.cases.bounded_file.WAIT_S", 0.1)
    monkeypatch.setattr("fuzz.commands.run.argument_names", lambda targets: frozenset(rows.SETTINGS))
    words = ("--target", "clean/toy", "--cases", "1", "--out", tmp_path / "out")
    refusal(fuzz.main, "run", *words, option, HOSTILE[name](tmp_path))
