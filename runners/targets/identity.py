"""A digest of all that verdicts on a target depend on: its sources, the harness's and the versions of the packages
that both are run with. Two runs of a case under one digest say the same, so that one may be kept for the other."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

from repro.cases.case import Target
from runners.targets.environments import PROJECT, import_path, interpreter, sglang_path

# Of ours: what makes, drives, records and judges a run.
_HARNESS = ("oracles", "runners", "repro/cases", "repro/traces")
_PACKAGES = ("torch", "triton", "numpy", "transformers", "tokenizers", "orjson", "msgspec", "einops")
# Variables of eagleeye that name places and change no run.
_PLACES = ("EAGLEEYE_CACHE", "EAGLEEYE_EXAMPLES", "EAGLEEYE_KERNELS", "EAGLEEYE_LEDGER", "EAGLEEYE_RUN")


def identity(target: Target, cache: Path | None = None) -> str:
    """16 hex digits. NotUsable if the target is not there; OSError if a file cannot be read."""
    digest = hashlib.sha256()
    for text in _environment(target, cache):
        digest.update(f"{text}\0".encode())
    _add(digest, sglang_path(target, cache) / "sglang", ())
    for folder in _HARNESS:
        _add(digest, PROJECT / folder, (".py",))
    return digest.hexdigest()[:16]


def _environment(target: Target, cache: Path | None) -> Iterator[str]:
    """The engine, the machine, and every version: a package's folder in front names its own."""
    yield from (target.engine, platform.machine(), platform.python_version(), str(interpreter(target, cache)))
    yield from (path.name for path in import_path(target, cache)[1:])
    for name in _PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"{name} is not there"
    yield from sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith(("EAGLEEYE_", "SGLANG_")) and name not in _PLACES
    )


def _add(digest: hashlib._Hash, folder: Path, suffixes: Sequence[str]) -> None:
    """All files below this folder with these suffixes, whatever they are if there are none, by their names and
    contents. Folders that are links count, too: an overlay has them."""
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            if not suffixes or name.endswith(tuple(suffixes)):
                path = Path(parent, name)
                digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
