"""python -m repro first on the toy: the first wrong value of a failing case, and an exit code for every end."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.__main__ import main, options_of
from repro.cases import codec
from repro.cases.codec import Seed
from repro.commands import first
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.trace import End, Termination, Trace
from tests.builders import rigs
from tests.repro.test_repro_main import CASE


@pytest.fixture
def seed(tmp_path: Path) -> str:
    path = tmp_path / "seed.json"
    codec.write(path, Seed(about={}, case=CASE))
    return str(path)


def test_the_first_wrong_value_is_named(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["first", seed, "--target", "stale_req_pool/toy"]) == 1
    # The last batch is one short of its bucket, and the row behind it points to the request that was there before.
    assert "req_pool_indices[3" in capsys.readouterr().out


def test_an_earlier_failure_does_not_hide_the_seeds_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failed(oracle: str, where: str, step: int) -> Verdict:
        cell = Cell(step=step, buffer=oracle, row=0, column=0, got="1", want="0")
        return Verdict(oracle=oracle, status=Status.FAIL, where=where, cell=cell)

    both = [failed("metadata_shape", "earlier", 0), failed("slot0_padding", "rows", 1)]
    done = Trace(ended=End(how=Termination.DONE))
    used = rigs.rig(lambda target, case: (done, both))
    path = tmp_path / "seed.json"
    for about, texts in (
        (
            {"oracle": "slot0_padding", "where": "rows"},
            ["metadata_shape[0,0]", "was stored for:", "slot0_padding[0,0]"],
        ),
        ({"oracle": "metadata_shape", "where": "earlier"}, ["metadata_shape[0,0]"]),
        ({}, ["metadata_shape[0,0]"]),
    ):
        codec.write(path, Seed(about=about, case=CASE))
        assert first.go(options_of(["first", str(path), "--target", "0.5.13/emulated"]), used) == 1
        printed = capsys.readouterr().out.splitlines()
        assert len(printed) == len(texts) and all(text in line for text, line in zip(texts, printed, strict=True))


def test_a_case_that_passes_has_none(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["first", seed, "--target", "clean/toy"]) == 0
    assert "PASS: there is no wrong value to be named" in capsys.readouterr().out


def test_what_cannot_be_run_is_an_error(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["first", seed, "--target", "0.0.3/emulated"]) == 3
    assert "sglang 0.0.3 is not installed" in capsys.readouterr().err
    assert main(["first", seed, "--target", "unsupported/toy"]) == 3
    assert "the case could not be run" in capsys.readouterr().err
