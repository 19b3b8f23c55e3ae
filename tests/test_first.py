"""python -m repro first on the toy: the first wrong value of a failing case, and an exit code for every end."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.__main__ import main
from repro.cases import codec
from repro.cases.codec import Seed
from tests.test_repro_main import CASE


@pytest.fixture
def seed(tmp_path: Path) -> str:
    path = tmp_path / "seed.json"
    codec.write(path, Seed(about={}, case=CASE))
    return str(path)


def test_the_first_wrong_value_is_named(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["first", seed, "--target", "stale_req_pool/toy"]) == 1
    # The last batch is one short of its bucket, and the row behind it points to the request that was there before.
    assert "req_pool_indices[3" in capsys.readouterr().out


def test_a_case_that_passes_has_none(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["first", seed, "--target", "clean/toy"]) == 0
    assert "PASS: there is no wrong value to be named" in capsys.readouterr().out


def test_what_cannot_be_run_is_an_error(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["first", seed, "--target", "0.0.3/emulated"]) == 3
    assert "sglang 0.0.3 is not installed" in capsys.readouterr().err
    assert main(["first", seed, "--target", "unsupported/toy"]) == 3
    assert "the case could not be run" in capsys.readouterr().err
