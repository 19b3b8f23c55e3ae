"""Unpacking a bundle into the cache, so that each archive is either whole there or not there.

A bare host does this with its own Python: this module and what it imports need the standard library and numpy.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from runners.targets.bundle import archive
from runners.targets.bundle.build import RELEASE, SUFFIX, listed
from runners.targets.environments import MARKER, NotUsable, targets_directory
from runners.targets.install import contents, need_space, only_one, run_command

_PART = ".part-"
_OLD = ".old-"
_MARKER_MAX = 1 << 16

Entry = Mapping[str, Any]


def unpack(
    bundle: Path, cache: Path | None = None, releases: Sequence[str] = (), *, say: Callable[[str], None] = print
) -> list[str]:
    """Put a bundle's archives into the cache, of its releases only these if any are named; the names of those that
    were not there yet. NotUsable, in one line, if that cannot be done. An archive that is missing or damaged is
    noticed before anything is unpacked; after that, whole ones stay, and of the others nothing is left."""
    entries = _asked_for(bundle, releases)
    targets = targets_directory(cache)
    try:
        absent = {name: entry for name, entry in entries.items() if not _is_there(targets / name, entry)}
        if not absent:
            return []
        _need_whole(bundle, absent)
        targets.mkdir(parents=True, exist_ok=True)
        with only_one(targets, say):
            need_space(targets, sum(entry["unpacked"] for entry in absent.values()))
            # Decompression lets go of the interpreter, so that threads are enough.
            with archive.threads_for(os.cpu_count() or 1) as pool:
                done = [pool.submit(_unpack, bundle, name, entry, targets) for name, entry in absent.items()]
                wait(done)
            for unpacked in done:
                unpacked.result()
    except OSError as error:
        raise NotUsable(f"cannot unpack {bundle} in {targets}: {error.strerror or error}") from error
    return list(absent)


def compile_bytecode(folders: Sequence[Path]) -> None:
    """Bytecode by this interpreter, on all cores: the first worker would make it, file by file, in twenty seconds."""
    # It fails at examples of another Python's, which are not imported.
    run_command([sys.executable, "-W", "ignore", "-m", "compileall", "-q", "-j", "0", *map(str, folders)])


def _asked_for(bundle: Path, releases: Sequence[str]) -> dict[str, Entry]:
    """These releases' archives, or every release's, and those that all of them need."""
    entries = listed(bundle)
    known = [name.removeprefix(RELEASE) for name in entries if name.startswith(RELEASE)]
    for release in releases:
        if release not in known:
            raise NotUsable(f"{bundle} has no sglang {release}; it has {', '.join(known) or 'no release'}")
    left_out = {RELEASE + missing_from for missing_from in known if releases and missing_from not in releases}
    return {name: entry for name, entry in entries.items() if name not in left_out}


def _need_whole(bundle: Path, entries: Mapping[str, Entry]) -> None:
    """NotUsable unless these archives are there, and as they were made."""
    missing = [name for name in entries if not (bundle / (name + SUFFIX)).is_file()]
    if missing:
        have = [name.removeprefix(RELEASE) for name in entries if name.startswith(RELEASE) and name not in missing]
        partly = have and all(name.startswith(RELEASE) for name in missing)
        helps = (
            f"; name the releases that were carried: python -m runners unpack {bundle} {' '.join(have)}"
            if partly
            else ""
        )
        lacking = ", ".join(name + SUFFIX for name in missing)
        raise NotUsable(f"{bundle} is not a complete bundle: it lacks {lacking}{helps}")
    for name, entry in entries.items():
        path = bundle / (name + SUFFIX)
        if path.stat().st_size != entry["bytes"] or archive.digest(path) != entry["sha256"]:
            raise NotUsable(f"{path} differs from when the bundle was made: copy the bundle again")


def _is_there(path: Path, entry: Entry) -> bool:
    """True if this directory was unpacked from an archive of the same contents."""
    try:
        return bool(json.loads((path / MARKER).read_text())["made_from"] == entry["made_from"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _unpack(bundle: Path, name: str, entry: Entry, targets: Path) -> None:
    """Unpack beside, put what was there before aside, rename: only the last makes it visible."""
    path, part, old = bundle / (name + SUFFIX), targets / (_PART + name), targets / (_OLD + name)
    for remains in (part, old):
        shutil.rmtree(remains, ignore_errors=True)
    try:
        archive.read(path, part, files_max=entry["files"] + 1, bytes_max=entry["unpacked"] + _MARKER_MAX)
        if not _is_there(part, entry) or contents(part) != (entry["files"], entry["unpacked"]):
            raise NotUsable(f"{path} does not hold what {bundle} lists")
        whole = targets / name
        if whole.exists():
            whole.rename(old)
        part.rename(whole)
    except archive.BadArchive as error:
        raise NotUsable(f"{path} cannot be unpacked: {error}") from error
    finally:
        for remains in (part, old):
            shutil.rmtree(remains, ignore_errors=True)
