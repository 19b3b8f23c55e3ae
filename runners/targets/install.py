"""Putting releases of sglang into the cache, with pip, so that one is either whole or not there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.cases.atomic_file import write_text
from runners.targets import packages
from runners.targets.environments import (
    MARKER,
    NotUsable,
    checked_release,
    installed,
    packages_directory,
    targets_directory,
)

# A release takes 30 to 55 MB, its download up to 13 more.
SPACE_NEEDED = 150 << 20
_PART = ".part-"
_PIP = ("install", "--no-deps", "--only-binary=:all:", "--no-compile", "--retries=2")
_LOCK = ".lock"

# pip's words for a package index that was not reached, and for a full disk.
_NO_NETWORK = re.compile(
    r"NewConnectionError|Failed to establish|name resolution|ConnectTimeout|ReadTimeout|ProxyError|"
    r"Network is unreachable|Max retries exceeded|Connection refused|SSLError"
)
_NO_SPACE = re.compile(r"No space left on device|Errno 28|Disk quota exceeded")
_NO_MATCH = re.compile(r"No matching distribution found|Could not find a version")
_UNKNOWN = re.compile(r"No matching distribution found for (\S+)")
_AVAILABLE = re.compile(r"Available versions: ([^,\s]+)")
_KNOWN = re.compile(r"from versions: ([^)]*)\)")


# Seconds that a command has to end by itself after an interrupt.
STOP_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A run of pip: its exit code and all it printed."""

    code: int
    output: str


Pip = Callable[[Sequence[str]], Ran]


def run_pip(arguments: Sequence[str]) -> Ran:
    """Run the pip of this interpreter, with the user's own configuration of it."""
    return run_command([sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments])


def run_command(command: Sequence[str]) -> Ran:
    """Run a command to its end. Where that is interrupted, all that it has started ends, too."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    ) as process:
        try:
            output, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGINT)  # so that pip removes its temporary folders
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return Ran(code=process.returncode, output=output)


def install(release: str, cache: Path | None = None, *, pip: Pip = run_pip, say: Callable[[str], None] = print) -> bool:
    """Put a release into the cache, and the packages that it wants in front. False if all is there already.
    NotUsable, in one line, if that cannot be done; what was begun is then gone, or will be at the next install."""
    checked_release(release)
    new = _install_release(release, cache, pip, say)
    return _install_packages(release, cache, pip, say) or new


def newest(pip: Pip = run_pip) -> str:
    """The newest release of sglang that pip lists for this Python. NotUsable if it lists none."""
    ran = pip(["index", "versions", "sglang"])
    match = _AVAILABLE.search(ran.output)
    if ran.code or match is None:
        raise NotUsable(reason("list the releases of sglang", Path(), ran.output))
    return checked_release(match.group(1))


def _install_release(release: str, cache: Path | None, pip: Pip, say: Callable[[str], None]) -> bool:
    """True if it was not there."""
    if any(entry.release == release for entry in installed(cache)):
        return False
    targets = targets_directory(cache)
    try:
        targets.mkdir(parents=True, exist_ok=True)
        with only_one(targets, say):
            # While this one waited, another may have installed the same release.
            if any(entry.release == release for entry in installed(cache)):
                return False
            _remove_remains(targets, release)
            need_space(targets, SPACE_NEEDED)
            _fetch(release, targets, pip)
    except OSError as error:
        raise NotUsable(f"cannot install sglang {release} in {targets}: {error.strerror or error}") from error
    return True


def _install_packages(release: str, cache: Path | None, pip: Pip, say: Callable[[str], None]) -> bool:
    """True if any was not there."""
    folder = packages_directory(cache)
    if not packages.absent(release, folder):
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with only_one(folder, say):
            for requirement in packages.absent(release, folder):
                need_space(folder, SPACE_NEEDED)
                _fetch_package(requirement, folder, pip)
    except OSError as error:
        raise NotUsable(f"cannot install {release}'s packages in {folder}: {error.strerror or error}") from error
    return True


def _fetch_package(requirement: str, folder: Path, pip: Pip) -> None:
    """Install beside and rename."""
    part = folder / f"{_PART}{requirement}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        ran = pip([*_PIP, "--target", str(part), requirement])
        if ran.code:
            raise NotUsable(reason(f"install {requirement}", folder, ran.output))
        os.sync()
        part.rename(packages.directory(requirement, folder))
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def only_one(targets: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of this directory. The system lets go of it if we die."""
    with (targets / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another install in {targets}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_remains(targets: Path, release: str) -> None:
    """Remove what interrupted installs left. Under the lock no other process is at work, so all of it is dead."""
    for path in [*targets.glob(f"{_PART}*"), targets / release]:
        if path.exists():
            shutil.rmtree(path)


def need_space(folder: Path, needed: int) -> None:
    """NotUsable if the disk of this folder has not so many bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise NotUsable(
            f"not enough disk space in {folder}: {free >> 20} MB free, {needed >> 20} MB needed; "
            "another place can be named by --cache or EAGLEEYE_CACHE"
        )


def _fetch(release: str, targets: Path, pip: Pip) -> None:
    """Install beside, write the marker, rename: only the last makes it visible."""
    part = targets / f"{_PART}{release}"
    try:
        ran = pip([*_PIP, "--target", str(part), f"sglang=={release}"])
        if ran.code:
            raise NotUsable(reason(f"install sglang {release}", targets, ran.output))
        if not (part / "sglang" / "srt").is_dir():
            raise NotUsable(f"sglang {release} is not what was expected: it has no sglang/srt")
        files, size = contents(part)
        write_text(part / MARKER, json.dumps({"release": release, "files": files, "bytes": size}) + "\n")
        os.sync()
        part.rename(targets / release)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def contents(path: Path) -> tuple[int, int]:
    """The number of files under a release's directory and their bytes; compiled ones, which come and go, left out."""
    files = size = 0
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if name != MARKER:
                files += 1
                size += (Path(folder) / name).lstat().st_size
    return files, size


def damage(path: Path) -> str:
    """The damage of a release's directory that has the marker; empty if its contents are as they were."""
    try:
        marker = json.loads((path / MARKER).read_text())
        files, size = contents(path)
    except (OSError, ValueError) as error:
        return f"cannot be read: {error}"
    if (files, size) == (marker.get("files"), marker.get("bytes")):
        return ""
    return f"{files} files of {size} bytes, but {marker.get('files')} of {marker.get('bytes')} were installed"


def reason(deed: str, place: Path, output: str, python: str = "{}.{}".format(*sys.version_info)) -> str:
    """Why pip could not do this deed ("install sglang 0.5.13"), its pages as one line. place: where it was to write."""
    if _NO_SPACE.search(output):
        return f"cannot {deed}: no space left on the disk of {place} or of pip's temporary files"
    known = _KNOWN.search(output)
    if _NO_NETWORK.search(output) and not (known and known.group(1) not in ("", "none")):
        return f"cannot {deed}: pip reached no package index (is there a network?)"
    if _NO_MATCH.search(output):
        unknown = _UNKNOWN.search(output)
        what = unknown.group(1).replace("==", " ") if unknown else deed.partition(" ")[2]
        newest = f"; the newest that it offers is {known.group(1).split(', ')[-1]}" if known else ""
        return f"pip knows no {what} that fits Python {python}{newest}"
    if "No module named pip" in output:
        return f"cannot {deed}: {sys.executable} has no pip; to make an environment: make setup"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    last = (errors or lines or ["it printed nothing"])[-1]
    return f"cannot {deed}: pip says: {last.removeprefix('ERROR: ')[:300]}"
