"""Installed packages and those of workflows are pinned and known by their hashes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.builders.project import PROJECT

FOLDER = PROJECT / "requirements"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_every_requirement_is_pinned_and_but_for_torch_has_hashes(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("#", "-r "))]
    pins = [line for line in lines if not line.startswith(" ")]
    assert pins and all(re.fullmatch(r"[\w.-]+==[\w.]+( \\)?", pin) for pin in pins)
    if path.stem == "torch":
        assert {pin.partition("==")[0] for pin in pins} == {"torch", "torchvision"}
    else:
        text = "\n".join(lines)
        assert all(re.search(re.escape(pin) + r"\n {4}--hash=sha256:[0-9a-f]{64}\b", text) for pin in pins)


def test_workflows_use_actions_by_their_commits() -> None:
    paths = (*sorted((PROJECT / ".github" / "workflows").glob("*.yml")), PROJECT / "action.yml")
    used = [line for path in paths for line in path.read_text().splitlines() if "uses:" in line]
    assert used and all(re.fullmatch(r" +(?:- )?uses: [\w/-]+@[0-9a-f]{40}  # v[\d.]+", line) for line in used)
