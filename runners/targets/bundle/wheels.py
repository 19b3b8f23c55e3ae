"""Wheels of a bundle: fetched by pip into a folder that is kept, and read as the files that they would install."""

from __future__ import annotations

import fnmatch
import re
import shutil
import zipfile
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from runners.targets.bundle.archive import Member
from runners.targets.bundle.pins import LEFT_OUT, PLATFORMS, PYTHON
from runners.targets.environments import NotUsable
from runners.targets.install import Pip, reason

_PART = ".part"


@dataclass(frozen=True, slots=True)
class Pin:
    """A distribution and its version. Its text form is NAME==VERSION."""

    name: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Pin:
        name, _, version = text.partition("==")
        return cls(name, version)

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


def fetch(pins: Sequence[Pin], folder: Path, pip: Pip) -> list[Path]:
    """The wheels of these pins; those that are not in the folder yet are downloaded into it. NotUsable, in one line,
    if that cannot be done."""
    absent = [pin for pin in pins if find(pin, folder) is None]
    if absent:
        _download(absent, folder, pip)
    wheels = [(pin, find(pin, folder)) for pin in pins]
    for pin, wheel in wheels:
        if wheel is None:
            raise NotUsable(f"pip says that it has downloaded {pin}, but no wheel of it is in {folder}")
    return [wheel for _, wheel in wheels if wheel]


def find(pin: Pin, folder: Path) -> Path | None:
    """The wheel of this pin for a bundle's Python and platform, if the folder has it."""
    start = f"{re.sub(r'[-_.]+', '_', pin.name)}-{pin.version}-"
    return next((path for path in sorted(folder.glob(f"{start}*.whl")) if _fits(path.stem)), None)


def _fits(stem: str) -> bool:
    """True if a wheel of this name can be installed there: NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM."""
    pythons, abi, platforms = stem.split("-")[-3:]
    interpreter = "cp" + PYTHON.replace(".", "")
    python = abi == "abi3" or any(tag == interpreter or tag.startswith("py") for tag in pythons.split("."))
    return python and (platforms == "any" or any(tag in PLATFORMS for tag in platforms.split(".")))


def _download(pins: Sequence[Pin], folder: Path, pip: Pip) -> None:
    """Download beside and move: what is interrupted leaves no half a wheel under a wheel's name."""
    part = folder / _PART
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    arguments = ["download", "--no-deps", "--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    for platform in PLATFORMS:
        arguments += ["--platform", platform]
    try:
        ran = pip([*arguments, "--retries=2", "--dest", str(part), *map(str, pins)])
        if ran.code:
            what = str(pins[0]) if len(pins) == 1 else f"{pins[0]} and {len(pins) - 1} more"
            raise NotUsable(reason(f"download {what}", folder, ran.output, PYTHON))
        for wheel in part.glob("*.whl"):
            wheel.replace(folder / wheel.name)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def members(pins: Sequence[Pin], wheels: Sequence[Path], also: Collection[str] = ()) -> dict[str, Member]:
    """The files of these wheels by name, those left out apart but for these; of files of one name, the last wheel's.
    NotUsable if one of the wheels is damaged."""
    by_name = {}
    for pin, wheel in zip(pins, wheels, strict=True):
        left_out = LEFT_OUT.get(str(pin), LEFT_OUT.get(pin.name, ()))
        file = _open(wheel)  # stays open as long as a member of it is kept
        for entry in file.infolist():
            name = "" if entry.is_dir() else _installed_name(entry.filename)
            if name and (name in also or not any(fnmatch.fnmatchcase(name, pattern) for pattern in left_out)):
                by_name[name] = _member(wheel, file, entry, name)
    return by_name


def _installed_name(name: str) -> str:
    """The place of a wheel's file below site-packages, as pip installs it; empty if elsewhere (scripts, manual
    pages)."""
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return name
    scheme, _, below = rest.partition("/")
    return below if scheme in ("purelib", "platlib") else ""


def _open(wheel: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(wheel)
    except (OSError, zipfile.BadZipFile) as error:
        raise _damaged(wheel, error) from error


def _member(wheel: Path, file: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str) -> Member:
    def read() -> bytes:
        try:
            return file.read(entry)
        except (OSError, zipfile.BadZipFile, zlib.error) as error:
            raise _damaged(wheel, error) from error

    executable = bool(entry.external_attr >> 16 & 0o100)
    return Member(name=name, size=entry.file_size, mark=f"{entry.CRC:08x}", read=read, executable=executable)


def _damaged(wheel: Path, error: Exception) -> NotUsable:
    return NotUsable(f"{wheel} is not a complete wheel ({error}); to fetch it again, remove it and repeat the command")
