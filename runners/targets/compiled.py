"""Kernels compiled on this host before, and the message to a worker if there are none."""

from __future__ import annotations

from pathlib import Path

from repro.cases.case import Target
from runners.targets.environments import kernels_directory

# The backend that is run first, where nothing was compiled yet.
COLD = "EAGLEEYE_COLD"


def has_kernels(cache: Path | None = None) -> bool:
    """True if workers have compiled anything yet."""
    return kernels_directory(cache).is_dir() and any(kernels_directory(cache).iterdir())


def cold(target: Target, backend: str = "") -> dict[str, str]:
    """More variables for a worker where nothing was compiled yet; none where something was. backend: of its first
    setup."""
    return {COLD: backend} if target.engine == "cuda" and not has_kernels() else {}
