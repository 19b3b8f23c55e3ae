"""The build backend: setuptools. A wheel is built of a copy of this checkout whose packages lie in eagleeye/home.

Workers put the folder of eagleeye's packages in front on their import path. Were that site-packages, a release with an
environment of its own would import the wrong torch; and generic names would meet others of an environment.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from setuptools import build_meta
from setuptools.build_meta import build_editable, get_requires_for_build_editable, prepare_metadata_for_build_editable

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "prepare_metadata_for_build_editable",
]

PACKAGES = ("fuzz", "oracles", "repro", "reports", "runners")
# In place of the tables of pyproject.toml that say what is installed.
SCRIPTS = '[project.scripts]\neagleeye = "eagleeye.console:main"\n'
CONTENTS = """[tool.setuptools]
packages = ["eagleeye"]

[tool.setuptools.package-data]
eagleeye = ["py.typed", "home/**"]
"""


def build_wheel(wheel_directory: str, *arguments: Any) -> str:
    """The name of the wheel that was written there."""
    out, before = str(Path(wheel_directory).resolve()), Path.cwd()
    with tempfile.TemporaryDirectory(prefix="eagleeye-wheel-") as text:
        _copy(before, Path(text))
        os.chdir(text)
        try:
            return build_meta.build_wheel(out, *arguments)
        finally:
            os.chdir(before)


def build_sdist(*_: Any, **__: Any) -> NoReturn:
    raise SystemExit("eagleeye has no source distribution: build the wheel from a checkout")


def _copy(project: Path, folder: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "public")
    shutil.copytree(project / "fuzz" / "public" / "eagleeye", folder / "eagleeye", ignore=ignored)
    for package in PACKAGES:
        shutil.copytree(project / package, folder / "eagleeye" / "home" / package, ignore=ignored)
    for name in ("README.md", "LICENSE"):
        shutil.copy(project / name, folder)
    text = (project / "pyproject.toml").read_text()
    text = re.sub(r"^\[project\.scripts\]\n(?:\S.*\n)+", SCRIPTS, text, flags=re.MULTILINE)
    text = re.sub(
        r"^\[tool\.setuptools\.packages\.find\]\n(?:\S.*\n|\n(?!\[tool\.pytest))+", CONTENTS, text, flags=re.MULTILINE
    )
    text = re.sub(
        r"^build-backend = .*\nbackend-path = .*\n",
        'build-backend = "setuptools.build_meta"\n',
        text,
        flags=re.MULTILINE,
    )
    (folder / "pyproject.toml").write_text(text)
