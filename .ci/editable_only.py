"""The build backend: setuptools for `pip install -e .`, and a refusal of everything else.

Workers put the folder of the checkout in front on their import path. Installed, that folder would be site-packages,
and a release with an environment of its own would import the wrong torch.
"""

from __future__ import annotations

from typing import Any, NoReturn

from setuptools.build_meta import build_editable, get_requires_for_build_editable, prepare_metadata_for_build_editable

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "prepare_metadata_for_build_editable",
]


def build_wheel(*_: Any, **__: Any) -> NoReturn:
    raise SystemExit("eagleeye runs from a checkout only: pip install -e .")


def build_sdist(*_: Any, **__: Any) -> NoReturn:
    raise SystemExit("eagleeye runs from a checkout only: pip install -e .")
