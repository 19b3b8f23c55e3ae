"""--target here/ENGINE: the release of sglang that this very Python imports."""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from repro.cases.case import Target
from repro.commands import cli
from runners.targets import environments
from runners.targets.doctor import examination
from runners.targets.environments import import_path


class Distribution:
    """The metadata of an installed sglang. url: its origin."""

    version = "0.5.23"

    def __init__(self, url: str) -> None:
        self.url = url

    def read_text(self, name: str) -> str:
        return f'{{"url": "{self.url}"}}'


def test_it_is_the_release_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "distribution", lambda name: Distribution("https://example.org/sglang.whl"))
    assert cli.target("here/cuda") == Target("0.5.23", "cuda")


@pytest.mark.parametrize("engine", ["", "gpu"])
def test_it_needs_an_engine(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "distribution", lambda name: Distribution(""))
    with pytest.raises(argparse.ArgumentTypeError, match="with an engine of"):
        cli.target(f"here/{engine}")


def test_a_folder_is_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "distribution", lambda name: Distribution("file:///src/sglang/python"))
    with pytest.raises(argparse.ArgumentTypeError, match="name it, /src/sglang/python@ENGINE"):
        cli.target("here/cuda")


def test_an_environment_without_sglang_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> Distribution:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(cli, "distribution", distribution)
    with pytest.raises(argparse.ArgumentTypeError, match="imports no sglang"):
        cli.target("here/cuda")


def test_nothing_lies_in_front_of_it_and_the_doctor_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "own_sglang", lambda: "0.5.23")
    monkeypatch.setattr("runners.targets.doctor.own_sglang", lambda: "0.5.23")
    assert import_path(Target("0.5.23", "cuda"), tmp_path) == ()
    (line,) = [line for line in examination(tmp_path)[0] if "in this environment" in line]
    assert line.startswith("0.5.23 ")
