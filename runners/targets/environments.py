"""Targets: where releases of sglang are kept, what a worker needs in its environment, and why one cannot be used.

Releases lie in a cache outside the checkout, one directory each, put in front on the worker's import path. On a GPU
host a release may also have a Python environment of its own, with the torch and the kernels that it pins.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from repro.cases.case import Target
from repro.cases.release_list import ADAPTED
from repro.cases.releases import release_order
from runners.targets import packages, pinned
from runners.targets.devices import VISIBLE, gpus, visible
from runners.targets.overlay import overlay_at
from runners.targets.packages import versions

PROJECT = Path(__file__).resolve().parents[2]
# Written last into a release's directory; without it, the directory is not taken for a whole release.
MARKER = ".eagleeye.json"

# What sglang imports on the emulated engine's way, and what it is exercised with. The pinned versions are in
# requirements/emulated.txt; here only presence counts, and the one version that is known not to work.
EMULATED_NEEDS = ("torch", "triton", "numpy", "transformers", "orjson", "pyzmq", "msgspec", "fastapi", "einops")
CUDA_NEEDS = ("torch", "triton", "transformers", "sglang-kernel", "flashinfer-python")
_TRITON_OLD, _NUMPY_TOO_NEW = (3, 6), (2, 4)

_RELEASE = re.compile(r"\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)*")
_ALWAYS = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TQDM_DISABLE": "1", "PYTHONHASHSEED": "0"}
# Of arrays from 128 KB to 32 MB (more glibc does not take) each page would be a fault anew at every step. Not emulated,
# where sglang's memory is the host's: what it reads before it wrote it would be what lay there before.
_KEEPS_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_ENGINES = {
    "toy": _ONE_THREAD,
    # One thread: workers share the cores, a fork does not copy threads, and sums come out the same every time.
    "emulated": {
        "TRITON_INTERPRET": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        **_ONE_THREAD,
    },
    # The worker forks after importing sglang, whose imports ask whether there is a GPU: NVML answers that without
    # the CUDA context that no fork survives. What sglang compiles are a few small kernels: Inductor's pool of processes
    # takes longer to start than these, in every session. What is computed on the host is small: threads of many
    # sessions would only get in each other's way.
    "cuda": {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"} | _ONE_THREAD | _KEEPS_MEMORY,
}
# What turns sglang's own probes on, before and after 0.5.13; and eagleeye's own variable for it.
PROBES = "EAGLEEYE_PROBES"
_PROBES_ON = {
    "SGLANG_SPEC_NAN_DETECTION": "1",
    "SGLANG_SPEC_OOB_DETECTION": "1",
    "SGLANG_ENABLE_ASYNC_ASSERT": "1",
}
# What says where kernels that were compiled on this host are kept, and the folder for it.
_KERNELS = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "CUDA_CACHE_PATH": "driver",
}
# Left over in a shell, these would turn a GPU run into something else.
_EMULATED_ONLY = ("TRITON_INTERPRET", "TORCHDYNAMO_DISABLE", "SGLANG_USE_CPU_ENGINE")


class NotUsable(Exception):
    """This target cannot be used here. The text, one line, says why and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A whole release in the cache. path: the directory that goes in front; base: dependencies behind it, or None."""

    release: str
    path: Path
    base: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseVenv:
    """A release's own Python environment."""

    release: str
    path: Path

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def site(self) -> tuple[Path, ...]:
        """The folders of its packages."""
        return tuple(self.path.glob("lib/python3*/site-packages"))


def cache_directory(folder: Path | None = None) -> Path:
    """The folder of targets: as given, else EAGLEEYE_CACHE, else ~/.cache/eagleeye."""
    if folder:
        return folder.expanduser().absolute()
    named = os.environ.get("EAGLEEYE_CACHE", "")
    return Path(named or "~/.cache/eagleeye").expanduser().absolute()


def targets_directory(cache: Path | None = None) -> Path:
    """One directory per release in here."""
    return cache_directory(cache) / "targets"


def environments_directory(cache: Path | None = None) -> Path:
    """One Python environment per release in here."""
    return cache_directory(cache) / "environments"


def packages_directory(cache: Path | None = None) -> Path:
    """One directory per package that goes in front of some release, in here: this Python's, as some are compiled."""
    return cache_directory(cache) / "packages" / str(sys.implementation.cache_tag)


def kernels_directory(cache: Path | None = None) -> Path:
    """The folder of kernels that workers compile: EAGLEEYE_KERNELS, else in the cache."""
    named = os.environ.get("EAGLEEYE_KERNELS", "")
    return Path(named).expanduser().absolute() if named else cache_directory(cache) / "kernels"


def overlays_directory(target: Target, cache: Path | None = None) -> Path:
    """Overlays of this target's release lie in here: those over its own environment are others than those over the
    release in the cache."""
    overlays = cache_directory(cache) / "overlays"
    return overlays / "environments" if own_environment(target, cache) else overlays


def release_under(target: Target) -> str:
    """The release that an overlay was made from; of any other target, what it names."""
    overlay = overlay_at(_absolute(target.sglang)) if target.is_checkout else None
    return overlay.release if overlay else target.sglang


def _absolute(text: str) -> Path:
    return Path(text).expanduser().absolute()


def checked_release(text: str) -> str:
    """The text, if it is a version number. NotUsable otherwise: it becomes a directory and an argument of pip."""
    if not _RELEASE.fullmatch(text):
        raise NotUsable(f"{text!r} is not a release of sglang: expected a version number such as {ADAPTED[0]}")
    return text


def installed(cache: Path | None = None) -> tuple[Installed, ...]:
    """The whole releases in the cache, oldest first. Bundles unpacked there (DEST/sglang-X beside DEST/base, with
    the cache or its targets directory as DEST) count as well."""
    releases: dict[str, Installed] = {}
    for parent in (cache_directory(cache), targets_directory(cache)):
        for path in _directories(parent):
            release = path.name.removeprefix("sglang-")
            if _RELEASE.fullmatch(release) and is_whole(path, release):
                base = parent / "base"
                entry = Installed(release=release, path=path, base=base if base.is_dir() else None)
                # Of the two kinds, the one that was installed for this very Python goes first.
                releases[release] = releases.get(release, entry) if path.name != release else entry
    return tuple(sorted(releases.values(), key=lambda entry: release_order(entry.release)))


def own_environments(cache: Path | None = None) -> tuple[ReleaseVenv, ...]:
    """The releases that have a whole environment of their own, oldest first."""
    environments = [
        ReleaseVenv(release=path.name, path=path)
        for path in _directories(environments_directory(cache))
        if _RELEASE.fullmatch(path.name) and is_whole(path, path.name)
    ]
    return tuple(sorted(environments, key=lambda environment: release_order(environment.release)))


def own_environment(target: Target, cache: Path | None = None) -> ReleaseVenv | None:
    """The environment that this target's worker runs in, if its release has one: the real engine's alone, as the
    emulated one needs other versions than a release pins."""
    environments = own_environments(cache) if target.engine == "cuda" else ()
    release = release_under(target) if environments else ""
    return next((environment for environment in environments if environment.release == release), None)


def interpreter(target: Target, cache: Path | None = None) -> Path:
    """The Python that this target's worker runs in."""
    environment = own_environment(target, cache)
    return environment.python if environment else Path(sys.executable)


def is_whole(path: Path, release: str) -> bool:
    """True if this directory holds all of the release, by the marker of its maker."""
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
    """The folders in front on the worker's import path. NotUsable, with the command that helps, if one is not there.

    Empty for the toy, and where this very release is installed in the worker's interpreter itself. Behind an overlay
    goes what its release needs.
    """
    if target.engine == "toy":
        return ()
    if target.is_checkout:
        release = release_under(target)
        behind = import_path(Target(release, target.engine), cache) if release != target.sglang else ()
        return (_checkout(target), *(behind or _front(target, packages.checkout_release(_checkout(target)), cache)))
    if own_environment(target, cache):
        return ()
    release = checked_release(target.sglang)
    if target.engine == "cuda" and own_sglang() == release:
        return ()
    for installation in installed(cache):
        if installation.release == release:
            front = (installation.path, *_front(target, release, cache, installation.base))
            return (*front, installation.base) if installation.base else front
    if own_sglang() == release:
        return ()
    raise NotUsable(f"sglang {release} is not installed; to install it: python -m runners install {release}")


def _front(target: Target, release: str, cache: Path | None, base: Path | None = None) -> tuple[Path, ...]:
    """The packages that this release wants in front, in one environment with all others. base: a bundle's, which has
    its own. NotUsable if one is not there without which the emulated engine runs nothing."""
    folder = base / packages.BUNDLED if base else packages_directory(cache)
    row = packages.overlay(release)
    lacking = packages.absent(release, folder)
    if lacking and not base and target.engine == "emulated":
        raise NotUsable(
            f"sglang {target.sglang} needs {' '.join(lacking)} in front, which is not in the cache; "
            f"to install it: python -m runners install {release if _RELEASE.fullmatch(release) else row.since}"
        )
    requirements = (*row.requirements, *(row.bundled if base else ()))
    return tuple(path for text in requirements if (path := packages.directory(text, folder)).is_dir())


def sglang_path(target: Target, cache: Path | None = None) -> Path:
    """The directory in which the worker of this target finds the package sglang. NotUsable if it has no such
    directory."""
    environment = own_environment(target, cache)
    front = import_path(target, cache)
    if front:
        return front[0]
    where = environment.site if environment else [Path(str(importlib.metadata.distribution("sglang").locate_file("")))]
    for path in where:
        if (path / "sglang" / "srt").is_dir():
            return path
    raise NotUsable(f"the sources of sglang {target.sglang} are in none of {', '.join(map(str, where))}")


def _checkout(target: Target) -> Path:
    path = _absolute(target.sglang)
    if (path / "sglang" / "srt").is_dir():
        return path
    hint = f"; did you mean {path / 'python'}?" if (path / "python" / "sglang" / "srt").is_dir() else ""
    raise NotUsable(f"{path} is not an import path of sglang: it has no sglang/srt{hint}")


def own_sglang() -> str:
    """The release of sglang that is installed in this very environment; empty if none is."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return ""


def worker_environment(target: Target, cache: Path | None = None, *, device: str = "") -> dict[str, str]:
    """The environment of this target's worker. NotUsable if its release is not there. device: the one GPU that a
    worker of the cuda engine is to see, as CUDA_VISIBLE_DEVICES names it; without it, those that we see."""
    imports = [*map(str, import_path(target, cache)), str(PROJECT)]
    inherited_path = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join([*imports, inherited_path] if inherited_path else imports)
    inherited = {name: value for name, value in os.environ.items() if name not in _EMULATED_ONLY}
    variables = {**_kernels(cache), **inherited, **_ALWAYS, **_ENGINES[target.engine], "PYTHONPATH": path}
    if os.environ.get(PROBES, "0") not in ("", "0"):
        variables |= _PROBES_ON
    if device and target.engine == "cuda":
        variables[VISIBLE] = device
    environment = own_environment(target, cache)
    if environment:
        # Kernels are compiled by programs that pip puts beside the interpreter.
        variables["PATH"] = os.pathsep.join([str(environment.python.parent), os.environ.get("PATH", os.defpath)])
    return variables


def _kernels(cache: Path | None) -> dict[str, str]:
    """Nothing where we may not write: then compilers keep to their own places."""
    directory = kernels_directory(cache)
    writable = os.access(existing(directory), os.W_OK)
    return {name: str(directory / folder) for name, folder in _KERNELS.items()} if writable else {}


def existing(path: Path) -> Path:
    """The path, or the nearest one above it that is there."""
    return next(place for place in (path, *path.parents) if place.exists())


def whole_record(target: Target) -> dict[str, str]:
    """More variables for a worker whose record is compared with another target's: KV contents and the noise of eager
    are recorded and the reference in float64 is asked in every step; dot products of float32 are computed as such, not
    in Triton's shorter format."""
    variables = {"EAGLEEYE_RECORD": "whole", "EAGLEEYE_REFERENCE": "1"}
    return variables | {"TRITON_F32_DEFAULT": "ieee"} if target.engine == "cuda" else variables


def waiting(target: Target) -> dict[str, str]:
    """More variables for a worker in which every launch is waited for, so that an error comes out where it was made;
    none where that is always so."""
    return {"CUDA_LAUNCH_BLOCKING": "1"} if target.engine == "cuda" else {}


def bare_loop() -> dict[str, str]:
    """More variables for a worker that only measures what sglang's own work costs: it records no more than the time,
    as the stage `bare`."""
    return {"EAGLEEYE_RECORD": "bare"}


def device_lacks(engine: str) -> str:
    """Why this machine has no device for this engine; empty if it has."""
    if engine != "cuda":
        return ""
    if not gpus():
        return "there is no NVIDIA GPU on this machine (nvidia-smi shows none)"
    if not visible(len(gpus())):
        return f"{VISIBLE}={os.environ[VISIBLE]!r} names no GPU of this machine"
    return ""


def engine_lacks(engine: str, path: tuple[Path, ...] = (), behind: tuple[Path, ...] | None = None) -> str:
    """Why this engine cannot be used here, and the command that helps; empty if it can. path, behind: as for
    versions()."""
    if engine == "toy":
        return ""
    if lack := device_lacks(engine):
        return lack
    needs = CUDA_NEEDS if engine == "cuda" else EMULATED_NEEDS
    numbers = versions(needs, path, behind)
    absent = [name for name in needs if name not in numbers]
    command = "make setup-cuda" if engine == "cuda" else "make setup"
    if absent:
        offline = " or, without a package index, python -m runners unpack BUNDLE" if engine == "cuda" else ""
        return f"not installed: {', '.join(absent)}; to install them: {command}{offline}"
    if engine == "cuda" and numbers["torch"].endswith("+cpu"):
        return f"torch {numbers['torch']} has no CUDA; to install one that has: {command}"
    numpy, triton = (
        release_order(numbers[name]).release[:2] if name in numbers else () for name in ("numpy", "triton")
    )
    if engine == "emulated" and numpy >= _NUMPY_TOO_NEW and triton <= _TRITON_OLD:
        return f"numpy {numbers['numpy']} breaks Triton's interpreter (2.3 works); to install the pinned one: {command}"
    return ""


def lacks(target: Target, cache: Path | None = None) -> str:
    """Why this target cannot be used here, and the command that helps; empty if it can, as far as can be seen
    without importing anything."""
    if target.engine == "toy":
        return ""
    if lack := device_lacks(target.engine):
        return lack
    try:
        environment, path = own_environment(target, cache), import_path(target, cache)
        if lack := engine_lacks(target.engine, path, environment.site if environment else None):
            return lack
        bundled = any(entry.base in path for entry in installed(cache) if entry.base)
        python = None if bundled else interpreter(target, cache)
        return pinned.complaint(release_under(target), target.engine, differences(target, cache), python)
    except NotUsable as error:
        return str(error)


def differences(target: Target, cache: Path | None = None) -> tuple[pinned.Older, ...]:
    """The packages that workers of this target would import older than its release pins. NotUsable if it is not
    there."""
    environment, path = own_environment(target, cache), import_path(target, cache)
    behind = environment.site if environment else tuple(map(Path, sys.path))
    required = next(filter(None, map(packages.required, (*path, *behind))), ())
    release = packages.checkout_release(path[0]) if target.is_checkout else target.sglang
    return tuple(pinned.older(required, versions(pinned.names(required), path, behind), release, target.engine))
