"""Stand-ins for sglang's objects: they have what they are given, and say what they lack."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from repro.cases.runner_facts import RUNNER_FACTS
from runners.recording.observer import HarnessError
from runners.releases.adapters.stood_in import STOOD_IN, stood_in
from runners.releases.adapters.verify_eager.family import NotStoodIn, StandIn, of_class
from tests.builders.project import PROJECT

pytestmark = pytest.mark.emulated


@dataclass
class Batch:
    """A batch class as a release may have it: `mode` must be given, `adapter` may be None, `rows` and `ready` have
    defaults."""

    mode: int
    adapter: str | None
    ready: bool = False
    rows: list[int] = field(default_factory=list)

    def size(self) -> int:
        return len(self.rows)


def test_a_batch_has_its_class_and_the_defaults_of_it() -> None:
    batch = of_class(Batch, rows=[1, 2])
    assert isinstance(batch, Batch)
    assert (batch.adapter, batch.ready, batch.rows, batch.size()) == (None, False, [1, 2], 2)
    assert of_class(Batch).rows is not of_class(Batch).rows


@pytest.mark.parametrize("made", [of_class(Batch), StandIn(what="Batch", rid="0")])
def test_what_it_lacks_is_an_error_with_its_name(made: Any) -> None:
    with pytest.raises(NotStoodIn, match="the stand-in for sglang's Batch has no mode") as raised:
        made.mode  # noqa: B018 (to ask is what raises)
    assert isinstance(raised.value, HarnessError) and isinstance(raised.value, AttributeError)
    # sglang may ask whether there is something.
    assert getattr(made, "mode", None) is None and not hasattr(made, "mode")


def test_every_runner_says_what_is_real() -> None:
    assert STOOD_IN.keys() <= RUNNER_FACTS.keys()
    for runner in RUNNER_FACTS:
        assert stood_in(runner).startswith("real: ") and "; by hand: " in stood_in(runner)


def test_what_is_hidden_is_as_absent_as_if_it_were_not_installed(tmp_path: Path) -> None:
    """On a GPU host sgl_kernel is installed, and does not load where no device is visible."""
    package = tmp_path / "native"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('no device')")
    (package / "part.py").write_text("")
    (tmp_path / "native-1.dist-info").mkdir()
    (tmp_path / "native-1.dist-info" / "METADATA").write_text("Name: native\nVersion: 1\n")
    program = """if True:
        import importlib.metadata, importlib.util
        from runners.engines.standins import native_imports
        assert importlib.util.find_spec("native")
        native_imports.hide("native")
        assert importlib.util.find_spec("native") is None
        for name in ("native", "native.part"):
            try:
                __import__(name)
            except ModuleNotFoundError as error:
                assert error.name == "native", error
            else:
                raise AssertionError(name)
        assert importlib.metadata.version("native") == "1"
        native_imports.stand_in("native", "native.part")
        import native.part
        import json.tool
        """
    path = f"{tmp_path}:{PROJECT}"
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": path}, check=True)
