"""The Hypothesis that a host draws with: whether it is the pinned one, and what helps where it is not."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from runners import __main__ as command
from runners.targets import hypothesis_pin
from runners.targets.bundle.pins import PARENT
from runners.targets.hypothesis_pin import PINNED, export, other_cases, warn_of_hypothesis_version
from tests.builders.project import PROJECT

LOCK = PROJECT / "requirements" / "emulated.txt"
NO_BUNDLE = "make setup or, without a package index, python -m runners unpack BUNDLE"


def put_hypothesis(folder: Path, version: str) -> Path:
    """A Hypothesis, as far as its version goes."""
    made = folder / f"hypothesis-{version}.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hypothesis\nVersion: {version}\n")
    return folder


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host that imports from this folder alone, in its bundles' Python."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(hypothesis_pin, "PYTHON", "{}.{}".format(*sys.version_info))
    return tmp_path / "site"


def test_the_bundle_and_this_environment_draw_with_the_same_and_all_that_it_needs() -> None:
    assert set(PARENT) <= {line.removesuffix(" \\") for line in LOCK.read_text().splitlines()}
    needed = [text for text in importlib.metadata.requires("hypothesis") or () if "extra ==" not in text]
    assert needed and len(needed) == len(PARENT) - 1
    assert all(text.startswith(pin.partition("==")[0]) for text, pin in zip(needed, PARENT[1:], strict=True))


def test_the_pinned_one_is_nothing_to_speak_of(host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_hypothesis(host, PINNED)
    assert other_cases(tmp_path) == ""
    # Only what an import would find counts: the one in front.
    sys.path.insert(0, str(put_hypothesis(tmp_path / "front", "6.1")))  # the fixture's own list
    assert other_cases(tmp_path).startswith("Hypothesis 6.1 draws other cases")
    sys.path.insert(0, str(put_hypothesis(tmp_path / "parent", PINNED)))
    warn_of_hypothesis_version(tmp_path)
    assert capsys.readouterr() == ("", "")


def test_another_one_and_none_are_named_with_the_command_that_helps(host: Path, tmp_path: Path) -> None:
    assert other_cases(tmp_path) == f"without Hypothesis no case is drawn; to have {PINNED}: {NO_BUNDLE}"
    put_hypothesis(host, "6.1")
    text = f"Hypothesis 6.1 draws other cases than the pinned {PINNED}, or none; to install that one: "
    assert other_cases(tmp_path) == text + NO_BUNDLE
    put_hypothesis(tmp_path / "targets" / "parent", "6.2")
    assert other_cases(tmp_path) == text + NO_BUNDLE, "an older bundle's is of no use"


@pytest.mark.parametrize("folder", ["parent", "targets/parent"])
def test_what_was_unpacked_only_needs_to_be_put_in_front(
    folder: str, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_hypothesis(host, "6.1")
    unpacked = put_hypothesis(tmp_path / folder, PINNED)
    assert other_cases(tmp_path).endswith(f"; to install that one: {export(unpacked)}")
    monkeypatch.setattr(hypothesis_pin, "PYTHON", "3.99")
    assert other_cases(tmp_path).endswith(NO_BUNDLE), "this Python could not import it"


def test_who_draws_says_it_in_a_line_aside(host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_hypothesis(host, "6.1")
    warn_of_hypothesis_version(tmp_path)
    assert capsys.readouterr() == ("", f"warning: {other_cases(tmp_path)}\n")


def test_the_doctor_says_it(host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def warnings() -> list[str]:
        command.main(["--cache", str(tmp_path), "doctor"])
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]

    put_hypothesis(host, "6.1")
    put_hypothesis(tmp_path / "targets" / "parent", PINNED)
    assert warnings() == [f"warning: {other_cases(tmp_path)}"]
    sys.path.insert(0, str(tmp_path / "targets" / "parent"))  # the fixture's own list
    assert warnings() == []
