"""The bill of materials of a release names what the requirements pin, with the hashes that pip is given."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.builders.project import PROJECT

PINNED = ("emulated", "torch", "ray")

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        not (PROJECT / ".venv" / "release" / "bin" / "cyclonedx-py").exists(),
        reason="what makes a release is not installed: make setup-checks",
    ),
]


def test_it_names_each_pinned_requirement(tmp_path: Path) -> None:
    path = tmp_path / "sbom.json"
    subprocess.run(["make", "--silent", "sbom", f"SBOM={path}"], cwd=PROJECT, check=True, capture_output=True)
    document = json.loads(path.read_text())
    texts = [(PROJECT / "requirements" / f"{name}.txt").read_text() for name in PINNED]
    pins = {pin for text in texts for pin in re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE)}
    assert {(part["name"], part["version"]) for part in document["components"]} == pins
    hashes = {
        entry["content"]
        for part in document["components"]
        for reference in part.get("externalReferences", ())
        for entry in reference.get("hashes", ())
    }
    assert hashes == {digest for text in texts for digest in re.findall(r"--hash=sha256:([0-9a-f]{64})", text)}
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    about = document["metadata"]["component"]
    assert (document["bomFormat"], about["name"], about["version"]) == ("CycloneDX", "eagleeye", project["version"])
