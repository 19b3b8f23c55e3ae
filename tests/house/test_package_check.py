"""Packages in docs/findings: each text holds what a reader needs, and the same as the files beside it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.builders.project import PROJECT
from tests.tools.package_check import files_of

FINDINGS = PROJECT / "docs" / "findings"
PACKAGES = sorted(FINDINGS.glob("*/issue.md"))


@pytest.mark.parametrize("issue", PACKAGES, ids=lambda issue: issue.parent.name)
def test_the_text_holds_the_files_beside_it(issue: Path) -> None:
    files = files_of(issue.read_text())
    folder = issue.parent
    (test,) = folder.glob("test_*.py")
    beside = {"repro.py": folder / "repro_sglang.py", "candidate.diff": folder / "candidate.diff", "test_it.py": test}
    for name, path in beside.items():
        assert files[name].rstrip() == path.read_text().rstrip()
        if path.suffix == ".py":
            ast.parse(files[name])
    assert files["candidate.diff"].startswith("--- a/python/sglang/")


def test_there_are_packages() -> None:
    assert PACKAGES


def test_a_text_without_a_patch_is_no_package() -> None:
    text = "### Reproducer\n\n```python\npass\n```\n\n### Test\n\n```python\npass\n```\n"
    with pytest.raises(KeyError, match="Candidate patch"):
        files_of(text)
