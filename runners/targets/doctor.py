"""What is installed, which engine each target can use here, what is missing and the command that helps."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from repro.cases.release_list import ADAPTED
from runners.targets.devices import gpus
from runners.targets.environments import (
    CUDA_NEEDS,
    EMULATED_NEEDS,
    MARKER,
    Installed,
    cache_directory,
    engine_lacks,
    existing,
    installed,
    kernels_directory,
    own_environments,
    versions,
)
from runners.targets.hypothesis_pin import other_cases
from runners.targets.install import contents, damage

_SHOWN = ("torch", "triton", "numpy", "transformers")


def listing(cache: Path | None = None) -> Iterator[str]:
    """One line per installed release."""
    for one in installed(cache):
        _, size = contents(one.path)
        note = "" if one.release in ADAPTED else "   (no adapter of its own: the nearest is used)"
        yield f"{one.release:<14} {size >> 20:>4} MB  {one.path}{note}"


def examination(cache: Path | None = None) -> tuple[list[str], bool]:
    """The doctor's lines, and whether at least one real release can be run here."""
    releases = installed(cache)
    lines = list(_machine(cache))
    lines.append("")
    usable = False
    for one in releases:
        line, fine = _release(one)
        lines.append(line)
        usable |= fine
    for own in own_environments(cache):
        why = engine_lacks("cuda", (), own.site)
        state = f"cannot be used: {why}" if why else f"torch {versions(('torch',), (), own.site)['torch']}"
        lines.append(f"{own.release:<14} own environment for cuda: {state}")
        usable |= not why
    lines += [f"missing: {text}" for text in _missing(releases)]
    if why := other_cases(cache):
        lines.append(f"warning: {why}")
    return lines, usable


def _machine(cache: Path | None) -> Iterator[str]:
    yield f"python    {platform.python_version()}  {sys.executable}"
    found = versions((*EMULATED_NEEDS, *CUDA_NEEDS))
    yield "packages  " + (", ".join(f"{name} {found[name]}" for name in _SHOWN if name in found) or "none of sglang's")
    names = gpus()
    yield f"gpu       {len(names)} x {names[0]}" if names else "gpu       none"
    directory = cache_directory(cache)
    yield f"cache     {directory} ({shutil.disk_usage(existing(directory)).free >> 30} GB free)"
    yield f"kernels   {kernels_directory(cache)}"


def _release(one: Installed) -> tuple[str, bool]:
    wrong = damage(one.path) if (one.path / MARKER).exists() else ""
    if wrong:
        return f"{one.release:<14} DAMAGED: {wrong}; to replace it: rm -r {one.path} and install it again", False
    path = (one.path, one.base) if one.base else (one.path,)
    engines = [engine for engine in ("emulated", "cuda") if not engine_lacks(engine, path)]
    note = "" if one.release in ADAPTED else "; no adapter of its own, the nearest is used"
    return f"{one.release:<14} usable with: {', '.join(engines) or 'no engine here'}{note}", bool(engines)


def _missing(releases: tuple[Installed, ...]) -> Iterator[str]:
    """What is not there and the command that changes it. A missing GPU has none."""
    bases = {one.base for one in releases if one.base}
    for engine in ("emulated", "cuda"):
        why = engine_lacks(engine, tuple(bases))
        if why:
            yield f"{engine} engine: {why}"
    have = {one.release for one in releases}
    absent = [release for release in ADAPTED if release not in have]
    if absent:
        yield f"sglang {', '.join(absent)}; to install them: python -m runners install {' '.join(absent)}"
