"""Failing cases that campaigns share through Hypothesis's example database, in a directory and in Redis."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

import fuzz.__main__
from fuzz.draw.corpus import TRIED_MAX, SharedCorpus
from fuzz.draw.profiles import PROFILES, BadExamples, database
from fuzz.draw.rounds import enough_rounds
from repro.cases.case import Case, Request, Step, Target
from repro.traces.campaign import loads
from repro.traces.finding import Finding, Status, Verdict
from tests.builders.sample_rows import CASE

VERDICT = Verdict(oracle="slot0_padding", status=Status.FAIL, where="padded rows")


def case(*data: int) -> Case:
    return replace(CASE, steps=tuple(Step(requests=(Request(slot=1, seq_len=1, data=number),)) for number in data))


def finding(failing: Case, failed: int = 5, where: str = "padded rows") -> Finding:
    verdict = replace(VERDICT, where=where)
    return Finding(case=failing, target=Target("0.5.13", "emulated"), verdict=verdict, failed=failed, tried=5)


@pytest.fixture(params=["directory", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "directory":
        yield str(tmp_path / "examples")
        return
    pytest.importorskip("redis", reason="the package redis is not installed: pip install redis")
    if not shutil.which("redis-server"):
        pytest.skip("there is no Redis here; on Debian: apt install redis-server")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as there:
                if there.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def test_what_one_campaign_found_another_tries(place: str) -> None:
    lines: list[str] = []
    corpus, other = SharedCorpus(database(place), lines.append), SharedCorpus(database(place), lines.append)
    assert corpus.cases("toy", "triton") == []
    corpus.remember(finding(case(1, 2, 3)))
    corpus.remember(finding(case(4), where="elsewhere"))
    corpus.remember(finding(case(5), failed=0, where="seen once, and not again"))
    assert other.cases("toy", "triton") == [case(4), case(1, 2, 3)], "simplest first"
    assert other.cases("toy", "flashinfer") == other.cases("draft", "triton") == []
    corpus.remember(finding(case(1, 2)))
    assert other.cases("toy", "triton") == [case(4), case(1, 2)], "a better form replaces the one before"
    assert lines == []


def test_there_is_an_end_to_what_is_tried_again(tmp_path: Path) -> None:
    corpus = SharedCorpus(database(str(tmp_path)), print)
    for number in range(TRIED_MAX + 5):
        corpus.remember(finding(case(number), where=str(number)))
    assert len(corpus.cases("toy", "triton")) == TRIED_MAX


def test_what_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    shared = database(str(tmp_path))
    for text in (b"\xff", b"{}", b'{"format": 99}'):
        shared.save(b"eagleeye toy triton", text)
    corpus = SharedCorpus(shared, print)
    corpus.remember(finding(case(1)))
    assert corpus.cases("toy", "triton") == [case(1)]
    assert len(list(shared.fetch(b"eagleeye toy triton"))) == 4


def test_a_database_that_fails_later_is_told_of_once_and_costs_nothing() -> None:
    class Gone(InMemoryExampleDatabase):
        def save(self, key: bytes, value: bytes) -> None:
            raise ConnectionError("gone away")

    lines: list[str] = []
    corpus = SharedCorpus(Gone(), lines.append)
    corpus.remember(finding(case(1)))
    corpus.remember(finding(case(2)))
    assert lines == ["examples are not shared from here on: ConnectionError: gone away"]


def test_without_a_database_nothing_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = SharedCorpus(None, print)
    corpus.remember(finding(case(1)))
    assert corpus.cases("toy", "triton") == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("redis://127.0.0.1:1", "127.0.0.1:1"),
        ("redis://user:secret@127.0.0.1:1", "127.0.0.1:1"),
        ("https://example.org", "neither a directory nor a URL"),
        ("/dev/null/x", "Not a directory"),
    ],
)
def test_a_place_that_is_none_is_one_line(where: str, message: str) -> None:
    with pytest.raises(BadExamples) as raised:
        database(where)
    assert message in str(raised.value) and "\n" not in str(raised.value) and "secret" not in str(raised.value)


def test_property_tests_share_it_too(place: str) -> None:
    """A case that failed once is tried first, by another process as by another host."""
    tried: list[int] = []

    def failing() -> None:
        @settings(database=database(place), max_examples=500, deadline=None)
        @given(st.integers(0, 10_000))
        def small(number: int) -> None:
            tried.append(number)
            assert number < 1000

        small()

    with pytest.raises(AssertionError):
        failing()
    tried.clear()
    with pytest.raises(AssertionError):
        failing()
    assert tried[0] == 1000


@pytest.mark.slow
def test_a_campaign_begins_with_what_another_found(place: str, tmp_path: Path) -> None:
    # A number whose first case does not fail yet.
    words = ["run", "--seed", "3", "--cases", "20", "--examples", place, "--out"]
    assert fuzz.__main__.main([*words, str(tmp_path / "one"), "--target", "stale_padding/toy"]) == 1
    (first,), _ = loads((tmp_path / "one" / "record.json").read_text())
    assert min(failure.at_case for failure in first.findings) > 1
    assert fuzz.__main__.main([*words, str(tmp_path / "two"), "--target", "stale_padding/toy"]) == 1
    (second,), _ = loads((tmp_path / "two" / "record.json").read_text())
    assert second.findings[0].at_case == 1
    # Not without being asked: the same number means the same cases.
    words = ["run", "--seed", "3", "--cases", "20", "--out", str(tmp_path / "three"), "--target", "stale_padding/toy"]
    assert fuzz.__main__.main(words) == 1
    (third,), _ = loads((tmp_path / "three" / "record.json").read_text())
    assert [failure.at_case for failure in third.findings] == [failure.at_case for failure in first.findings]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_sets_how_much_is_tried(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EAGLEEYE_EXAMPLES", "redis://127.0.0.1:1")
    words = ["run", "--target", "clean/toy", "--cases", "100", "--profile", name]
    code, profile = fuzz.__main__.main(words), PROFILES[name]
    if profile.remembers:
        assert code == 3 and "127.0.0.1:1" in capsys.readouterr().err
        monkeypatch.delenv("EAGLEEYE_EXAMPLES")
        code = fuzz.__main__.main(words)
    assert code == 0
    (campaign,), _ = loads(next(tmp_path.glob("out/*/record.json")).read_text())
    assert campaign.setups == enough_rounds(100, profile.cases_per_setup)
