"""Unpacking a bundle into the cache, so that each archive is either whole there or not there.

A bare host does this with its own Python: this module and what it imports need the standard library and numpy.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import tarfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from runners import archive
from runners.bundle import SUFFIX, listed
from runners.environments import MARKER, NotUsable, targets_directory
from runners.install import need_space, only_one

_PART = ".part-"
_OLD = ".old-"


def unpack(bundle: Path, cache: Path | None = None, *, say: Callable[[str], None] = print) -> list[str]:
    """Put all archives of a bundle into the cache; the names of those that were not there yet. NotUsable, in one
    line, if that cannot be done: whole archives stay, of the others nothing is left."""
    entries = listed(bundle)
    targets = targets_directory(cache)
    try:
        targets.mkdir(parents=True, exist_ok=True)
        absent = {name: entry for name, entry in entries.items() if not _is_there(targets / name, entry)}
        if not absent:
            return []
        with only_one(targets, say):
            need_space(targets, sum(entry["unpacked"] for entry in absent.values()))
            # Decompression lets go of the interpreter, so that threads are enough.
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                done = [pool.submit(_unpack, bundle, name, entry, targets) for name, entry in absent.items()]
            for one in done:
                one.result()
    except OSError as error:
        raise NotUsable(f"cannot unpack {bundle} in {targets}: {error.strerror or error}") from error
    return list(absent)


def _is_there(path: Path, entry: Mapping[str, Any]) -> bool:
    """Whether this directory was unpacked from an archive of the same contents."""
    try:
        return bool(json.loads((path / MARKER).read_text())["made_from"] == entry["made_from"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _unpack(bundle: Path, name: str, entry: Mapping[str, Any], targets: Path) -> None:
    """Unpack beside, put what was there before aside, rename: only the last makes it visible."""
    path, part, old = bundle / (name + SUFFIX), targets / (_PART + name), targets / (_OLD + name)
    if not path.is_file():
        raise NotUsable(f"{bundle} is no whole bundle: it has no {path.name}")
    if archive.digest(path) != entry["sha256"]:
        raise NotUsable(f"{path} is not as it was made: copy the bundle again")
    for remains in (part, old):
        shutil.rmtree(remains, ignore_errors=True)
    try:
        archive.read(path, part)
        if not _is_there(part, entry):
            raise NotUsable(f"{path} holds something else than {bundle} says")
        whole = targets / name
        if whole.exists():
            whole.rename(old)
        part.rename(whole)
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise NotUsable(f"{path} cannot be unpacked: {error}") from error
    finally:
        for remains in (part, old):
            shutil.rmtree(remains, ignore_errors=True)
