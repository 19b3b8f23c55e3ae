"""Targets: where releases of sglang are kept, what a worker needs in its environment, and why one cannot be used.

Releases lie in a cache outside the checkout, one directory each, put in front on the worker's import path.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from repro.case import Target

# The releases that runners/releases has adapters for and the conformance test is run on.
ADAPTED = ("0.5.10.post1", "0.5.11", "0.5.12.post1", "0.5.13", "0.5.13.post1", "0.5.14", "0.5.15.post1")
PROJECT = Path(__file__).resolve().parent.parent
# Written last into a release's directory; without it, the directory is not taken for a whole release.
MARKER = ".eagleeye.json"

# What sglang imports on the emulated engine's way, and what it is exercised with. The pinned versions are in
# requirements/emulated.txt; here only presence counts, and the one version that is known not to work.
EMULATED_NEEDS = ("torch", "triton", "numpy", "transformers", "orjson", "pyzmq", "msgspec", "fastapi", "einops")
CUDA_NEEDS = ("torch", "triton", "transformers", "sglang-kernel", "flashinfer-python")
_TRITON_OLD, _NUMPY_TOO_NEW = (3, 6), (2, 4)

_RELEASE = re.compile(r"\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)*")
_ALWAYS = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TQDM_DISABLE": "1", "PYTHONHASHSEED": "0"}
_ENGINES = {
    "toy": {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    # One thread: workers share the cores, a fork does not copy threads, and sums come out the same every time.
    "emulated": {
        "TRITON_INTERPRET": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    },
    # The worker forks after importing sglang, whose imports ask whether there is a GPU: NVML answers that without
    # the CUDA context that no fork survives.
    "cuda": {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
}
# Left over in somebody's shell, these would turn a GPU run into something else.
_EMULATED_ONLY = ("TRITON_INTERPRET", "TORCHDYNAMO_DISABLE", "SGLANG_USE_CPU_ENGINE")


class NotUsable(Exception):
    """This target cannot be used here. The text, one line, says why and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A whole release in the cache. path: the directory that goes in front; base: dependencies behind it, or None."""

    release: str
    path: Path
    base: Path | None = None


def cache_directory(given: Path | None = None) -> Path:
    """Where targets are kept: as given, else EAGLEEYE_CACHE, else ~/.cache/eagleeye."""
    if given:
        return given.expanduser().absolute()
    named = os.environ.get("EAGLEEYE_CACHE", "")
    return Path(named or "~/.cache/eagleeye").expanduser().absolute()


def targets_directory(cache: Path | None = None) -> Path:
    """One directory per release in here."""
    return cache_directory(cache) / "targets"


def checked_release(text: str) -> str:
    """The text, if it is a version number. NotUsable otherwise: it becomes a directory and an argument of pip."""
    if not _RELEASE.fullmatch(text):
        raise NotUsable(f"{text!r} is no release of sglang: expected a version number such as {ADAPTED[0]}")
    return text


def release_order(release: str) -> tuple[tuple[int, ...], str]:
    """A sort key: releases by number, a post release behind its release."""
    numbers, rest = re.match(r"(\d+(?:\.\d+)*)(.*)", release).groups()  # type: ignore[union-attr]
    return tuple(int(number) for number in numbers.split(".")), rest


def installed(cache: Path | None = None) -> tuple[Installed, ...]:
    """The whole releases in the cache, oldest first. Bundles unpacked there (DEST/sglang-X beside DEST/base, with
    the cache or its targets directory as DEST) count as well."""
    found: dict[str, Installed] = {}
    for parent in (cache_directory(cache), targets_directory(cache)):
        for path in _directories(parent):
            release = path.name.removeprefix("sglang-")
            if _RELEASE.fullmatch(release) and is_whole(path, release):
                base = parent / "base"
                found[release] = Installed(release=release, path=path, base=base if base.is_dir() else None)
    return tuple(sorted(found.values(), key=lambda one: release_order(one.release)))


def is_whole(path: Path, release: str) -> bool:
    """Whether this directory holds all of the release, as far as its maker's own sign says."""
    if path.name.startswith("sglang-"):
        # A bundle is unpacked beside and renamed when whole, so that its directory is its own sign.
        return (path / "sglang" / "srt").is_dir()
    try:
        return bool(json.loads((path / MARKER).read_text())["release"] == release)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _directories(parent: Path) -> Iterator[Path]:
    try:
        yield from (path for path in sorted(parent.iterdir()) if path.is_dir())
    except OSError:
        return  # there is no cache yet, or none that can be read: nothing is installed


def import_path(target: Target, cache: Path | None = None) -> tuple[Path, ...]:
    """What goes in front on the worker's import path. NotUsable, with the command that helps, if it is not there.

    Empty for the toy, and where this very release is installed in the interpreter itself.
    """
    if target.engine == "toy":
        return ()
    if target.is_checkout:
        return (_checkout(target),)
    release = checked_release(target.sglang)
    for one in installed(cache):
        if one.release == release:
            return (one.path, one.base) if one.base else (one.path,)
    if _own_sglang() == release:
        return ()
    raise NotUsable(f"sglang {release} is not installed; to install it: python -m runners install {release}")


def _checkout(target: Target) -> Path:
    path = Path(target.sglang).expanduser().absolute()
    if (path / "sglang" / "srt").is_dir():
        return path
    hint = f"; did you mean {path / 'python'}?" if (path / "python" / "sglang" / "srt").is_dir() else ""
    raise NotUsable(f"{path} is no import path of sglang: there is no sglang/srt in it{hint}")


def _own_sglang() -> str:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return ""


def worker_environment(target: Target, cache: Path | None = None) -> dict[str, str]:
    """The environment of this target's worker. NotUsable if its release is not there."""
    ours = [*map(str, import_path(target, cache)), str(PROJECT)]
    theirs = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join([*ours, theirs] if theirs else ours)
    inherited = {name: value for name, value in os.environ.items() if name not in _EMULATED_ONLY}
    return {**inherited, **_ALWAYS, **_ENGINES[target.engine], "PYTHONPATH": path}


# What is missing -------------------------------------------------------------------------------------------------


@functools.cache
def gpus() -> tuple[str, ...]:
    """The names of the NVIDIA GPUs of this machine, asked of the driver's own tool: torch would touch them."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return ()
    try:
        found = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()  # a driver that does not answer is none that could be used
    return tuple(line.strip() for line in found.stdout.splitlines() if line.strip()) if found.returncode == 0 else ()


def versions(names: tuple[str, ...], path: tuple[Path, ...] = ()) -> dict[str, str]:
    """The installed versions of these distributions, for a worker with this in front; absent ones are left out."""
    where = [*map(str, path), *sys.path]
    found = {}
    for name in names:
        for distribution in importlib.metadata.distributions(name=name, path=where):
            found[name] = distribution.version
            break
    return found


def engine_lacks(engine: str, path: tuple[Path, ...] = ()) -> str:
    """Why this engine cannot be used here, and the command that helps; empty if it can."""
    if engine == "toy":
        return ""
    if engine == "cuda" and not gpus():
        return "there is no NVIDIA GPU on this machine (nvidia-smi shows none)"
    needs = CUDA_NEEDS if engine == "cuda" else EMULATED_NEEDS
    found = versions(needs, path)
    absent = [name for name in needs if name not in found]
    command = "pip install sglang" if engine == "cuda" else "make setup"
    if absent:
        return f"not installed: {', '.join(absent)}; to install them: {command}"
    if engine == "cuda" and found["torch"].endswith("+cpu"):
        return f"torch {found['torch']} has no CUDA; to install one that has: {command}"
    numpy, triton = (release_order(found[name])[0][:2] if name in found else () for name in ("numpy", "triton"))
    if engine == "emulated" and numpy >= _NUMPY_TOO_NEW and triton <= _TRITON_OLD:
        return f"numpy {found['numpy']} breaks Triton's interpreter (2.3 works); to install the pinned one: {command}"
    return ""


def lacks(target: Target, cache: Path | None = None) -> str:
    """Why this target cannot be used here, and the command that helps; empty if it can, as far as can be told
    without importing anything."""
    try:
        return engine_lacks(target.engine, import_path(target, cache))
    except NotUsable as error:
        return str(error)
