"""The state of this host: installed releases, engines of each target, missing parts and the command that helps."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from repro.cases.case import Target
from repro.cases.release_list import ADAPTED
from runners.targets import pinned
from runners.targets.devices import gpus
from runners.targets.environments import (
    CUDA_NEEDS,
    EMULATED_NEEDS,
    MARKER,
    Installed,
    cache_directory,
    differences,
    engine_lacks,
    existing,
    installed,
    kernels_directory,
    lacks,
    own_environments,
    own_sglang,
)
from runners.targets.hypothesis_pin import other_cases
from runners.targets.install import contents, damage
from runners.targets.packages import versions

_SHOWN = ("torch", "triton", "numpy", "transformers")


def listing(cache: Path | None = None) -> Iterator[str]:
    """One line per installed release."""
    for release in installed(cache):
        _, size = contents(release.path)
        note = "" if release.release in ADAPTED else "   (no adapter for this release: the nearest is used)"
        yield f"{release.release:<14} {size >> 20:>4} MB  {release.path}{note}"


def examination(cache: Path | None = None) -> tuple[list[str], bool]:
    """The doctor's lines, and whether at least one real release can be run here."""
    releases = installed(cache)
    lines = list(_machine(cache))
    lines.append("")
    usable = False
    declared: dict[pinned.Difference, None] = {}
    for release in releases:
        line, fine = _release(release, cache, declared)
        lines.append(line)
        usable |= fine
    for environment in own_environments(cache):
        why = engine_lacks("cuda", (), environment.site)
        state = f"cannot be used: {why}" if why else f"torch {versions(('torch',), (), environment.site)['torch']}"
        lines.append(f"{environment.release:<14} own environment for cuda: {state}")
        usable |= not why
    if ours := own_sglang():
        lacking = {engine: lacks(Target(ours, engine), cache) for engine in ("emulated", "cuda")}
        targets = [f"--target here/{engine}" for engine, lack in lacking.items() if not lack]
        lines.append(f"{ours:<14} in this environment: {', '.join(targets) or '; '.join(lacking.values())}")
        usable |= bool(targets)
    lines += [f"does no harm: {row}" for row in declared]
    lines += [f"missing: {text}" for text in _missing(releases)]
    if why := other_cases(cache):
        lines.append(f"warning: {why}")
    return lines, usable


def _machine(cache: Path | None) -> Iterator[str]:
    yield f"python    {platform.python_version()}  {sys.executable}"
    versions_found = versions((*EMULATED_NEEDS, *CUDA_NEEDS))
    yield "packages  " + (
        ", ".join(f"{name} {versions_found[name]}" for name in _SHOWN if name in versions_found) or "none of sglang's"
    )
    names = gpus()
    yield f"gpu       {len(names)} x {names[0]}" if names else "gpu       none"
    directory = cache_directory(cache)
    yield f"cache     {directory} ({shutil.disk_usage(existing(directory)).free >> 30} GB free)"
    yield f"kernels   {kernels_directory(cache)}"


def _release(release: Installed, cache: Path | None, declared: dict[pinned.Difference, None]) -> tuple[str, bool]:
    """declared: gets the rows that it goes by."""
    wrong = damage(release.path) if (release.path / MARKER).exists() else ""
    if wrong:
        return (
            f"{release.release:<14} DAMAGED: {wrong}; to replace it: rm -r {release.path} and install it again",
            False,
        )
    path = (release.path, release.base) if release.base else (release.path,)
    engines = [engine for engine in ("emulated", "cuda") if not engine_lacks(engine, path)]
    note = "" if release.release in ADAPTED else "; no adapter for this release, the nearest is used"
    for engine in list(engines):
        target = Target(release.release, engine)
        if why := lacks(target, cache):
            engines.remove(engine)
            note += f"; {why}"
            continue
        for older in differences(target, cache):
            note += f"; {older}"
            declared |= {older.declared: None} if older.declared else {}
    return f"{release.release:<14} usable with: {', '.join(engines) or 'no engine here'}{note}", bool(engines)


def _missing(releases: tuple[Installed, ...]) -> Iterator[str]:
    """The missing parts, and the command that installs them; for a GPU there is none."""
    bases = {installation.base for installation in releases if installation.base}
    for engine in ("emulated", "cuda"):
        why = engine_lacks(engine, tuple(bases))
        if why:
            yield f"{engine} engine: {why}"
    have = {installation.release for installation in releases}
    absent = [release for release in ADAPTED if release not in have]
    if absent:
        yield f"sglang {', '.join(absent)}; to install them: python -m runners install {' '.join(absent)}"
