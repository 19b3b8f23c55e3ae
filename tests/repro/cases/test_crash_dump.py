"""Crash dumps of sglang: read as data, without a line of theirs being run; what is no dump is refused in one line."""

from __future__ import annotations

import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from repro.__main__ import main
from repro.cases import crash_dump
from repro.cases.batches import BadEvidence
from repro.cases.codec import read
from repro.cases.crash_dump import Served, batches
from repro.traces.exit_codes import ExitCode
from tests.builders.project import DATA

# Written by these releases' own dump_requests_before_crash: one request that had ended, one under way.
DUMPS = [DATA / "crash_dump_0.5.13.pkl", DATA / "crash_dump_0.5.23.pkl"]
NAMES = frozenset({"speculative_algorithm", "speculative_eagle_topk", "speculative_num_steps", "page_size"})


class Harmful:
    """Pickled as a call that makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def stored(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "crash_dump_2026-11-26_01-00-00.pkl"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_a_dump_gives_requests_and_the_servers_settings(path: Path) -> None:
    dump = crash_dump.read(path)
    ended, running = dump.requests
    assert (ended.prompt, ended.output, ended.ended, ended.accepted) == (1000, 30, True, 2)
    assert (running.prompt, running.output, running.ended, running.accepted) == (333, 5, False, None)
    assert not ended.guessed and ended.end - ended.start == pytest.approx(6, abs=0.01)
    assert dump.settings["speculative_eagle_topk"] == 4 and dump.settings["page_size"] == 16
    assert dump.command == "/srv/sglang/launch_server.py --model-path /models/x --speculative-algorithm EAGLE"


def test_batches_follow_arrivals_and_ends() -> None:
    first = Served(prompt=100, output=40, start=0.0, end=8.0, ended=True, accepted=2)
    second = Served(prompt=10, output=5, start=4.0, end=5.0, ended=False)
    rows = [[(row.request, row.length) for row in batch.rows] for batch in batches([first, second])]
    assert rows == [[("0", 100)], [("0", 120), ("1", 10)], [("0", 140), ("1", 15)], [("1", 15)]]
    assert [batch.rows[0].accepted for batch in batches([first, second])] == [2, 2, 2, None]
    assert {len(batch.rows) for batch in batches([first, second], most=1)} == {1}


@pytest.mark.parametrize("folder", [True, False])
def test_a_case_of_a_dump_marks_what_is_guessed(
    folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("repro.commands.case.argument_names", lambda targets: NAMES)
    place = tmp_path / "host" / "crash_dump_2026-11-26_01-00-00.pkl"
    place.parent.mkdir()
    place.write_bytes(DUMPS[1].read_bytes())
    out = tmp_path / "dump.case.json"
    words = ["case", "from-crash-dump", str(tmp_path if folder else place), "--out", str(out)]
    assert main(words) == ExitCode.PASS
    seed = read(out)
    assert (seed.case.setup.topk, seed.case.setup.page_size, seed.case.setup.algorithm) == (4, 16, "EAGLE")
    assert [len(step.requests) for step in seed.case.steps] == [1, 2, 2, 1]
    assert any("lengths: grown evenly" in line for line in seed.about["guessed"])
    assert any("do not stream" in line for line in seed.about["missing"])
    assert "api_key" not in capsys.readouterr().out


def test_without_settings_the_launch_command_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.commands.case.argument_names", lambda targets: NAMES)
    request = b"(csglang.srt.managers.io_struct\nGenerateReqInput\n)R}F0\nF1\nt"
    command = b"S'launch_command'\nS'x --speculative-algorithm EAGLE --page-size 8'\n"
    path = stored(tmp_path, b"(S'server_args'\nNS'requests'\n(" + request + b"l" + command + b"d.")
    assert main(["case", "from-crash-dump", str(path)]) == ExitCode.PASS
    seed = read(path.with_suffix(".case.json"))
    assert (seed.case.setup.algorithm, seed.case.setup.page_size) == ("EAGLE", 8)
    assert any("of 1 requests by their letters" in line for line in seed.about["guessed"])


def test_nothing_of_a_dump_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    harm = tmp_path / "made"
    path = stored(tmp_path, pickle.dumps({"requests": [Harmful(harm)]}))
    assert main(["case", "from-crash-dump", str(path)]) == ExitCode.ERROR
    assert not harm.exists()
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and f"it asks for {os.mkdir.__module__}.mkdir, which no crash dump has" in errors[0]


def test_an_object_that_sglang_writes_is_inert() -> None:
    # sglang.x.Y("touch file") by REDUCE, then BUILD: the name is never imported.
    text = b"csglang.srt.utils\nrun_shell\n(S'touch file'\ntR(dS'a'\nI1\nsb."
    record = crash_dump._Reader(io.BytesIO(text)).load()
    assert isinstance(record, crash_dump.Record)
    assert (record.arguments, record.values) == (("touch file",), {"a": 1})


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_a_dump_that_is_cut_is_refused_wherever(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    for end in [*range(0, len(content) - 1, len(content) // 60), len(content) - 1]:
        with pytest.raises(BadEvidence, match=r"cut before its end|without the key"):
            crash_dump.read(stored(tmp_path, content[:end]))


def test_a_damaged_dump_is_read_or_refused(tmp_path: Path) -> None:
    content = DUMPS[0].read_bytes()
    refused = 0
    for place in range(0, len(content), len(content) // 120):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        try:
            crash_dump.read(stored(tmp_path, bytes(damaged)))
        except BadEvidence:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no pickle, or cut"),
        (b"hello\n", "no pickle, or cut"),
        (pickle.dumps([1, 2]), "without the key requests"),
        (pickle.dumps({"requests": []}), "a dump of no request"),
        (pickle.dumps({"requests": [(1, 2)]}), "request 0 is no input"),
        (pickle.dumps({"requests": [(1, {}, float("nan"), 2)]}), "request 0 is no input"),
        # A number of an object as no memory holds them.
        (b"\x80\x04Nr" + struct.pack("<I", 2**32 - 1), "no pickle, or cut"),
    ],
)
def test_what_is_no_dump_is_refused_in_a_line(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored(tmp_path, content)
    assert main(["case", "from-crash-dump", str(path)]) == ExitCode.ERROR
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and words in errors[0] and str(path) in errors[0]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_folder_without_a_dump_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["case", "from-crash-dump", str(tmp_path)]) == ExitCode.ERROR
    assert "no file *.pkl in this folder" in capsys.readouterr().err
