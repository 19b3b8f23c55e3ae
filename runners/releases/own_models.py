"""sglang's own models alone: it would serve one that it cannot import by Transformers' code, and log a warning."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from runners.recording.observer import HarnessError

_MODELS = "sglang.srt.models"


def require() -> None:
    """Make each model that sglang cannot import a HarnessError with the reason."""
    loader: Any = importlib.import_module("sglang.srt.model_loader.utils")
    loader.resolve_transformers_arch = _refuse


def _refuse(_: object, architectures: Sequence[str]) -> NoReturn:
    """Replaces the function that finds a model of Transformers'."""
    reasons = "; ".join(f"{name}: {_reason(name)}" for name in architectures)
    raise HarnessError(f"sglang cannot import its own model, and would serve Transformers': {reasons}")


def _reason(architecture: str) -> str:
    """The error by which the module of this class cannot be imported. sglang's registry keeps the name alone."""
    package: Any = importlib.import_module(_MODELS)
    for path in sorted(Path(package.__path__[0]).glob("*.py")):
        if re.search(rf"^class {architecture}\b", path.read_text(), re.MULTILINE):
            try:
                importlib.import_module(f"{_MODELS}.{path.stem}")
            except Exception as error:  # any that a module raises
                return f"{type(error).__name__}: {error}"
            return "its module is not in sglang's registry"
    return "no module defines it"
