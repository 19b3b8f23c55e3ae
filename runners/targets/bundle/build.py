"""Making a bundle: all that GPU hosts without a package index need to run real sglang, as a few archives.

One shared base (what workers need), what the parent process needs (apart: the base would get in its way), one archive
per release, a list of them (bundle.json, written last) and a script that unpacks where our own code is not at hand.
The wheels are published ones, unmodified; runners/targets/bundle/pins.py says which, and what of them stays out.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from repro.cases.atomic_file import write_text
from repro.cases.bounded_file import read_bytes
from repro.cases.releases import release_order
from runners.targets.bundle import archive, flash_ops
from runners.targets.bundle.archive import Member
from runners.targets.bundle.pins import BASE, CUTLASS_SINCE, IN_FRONT, NEWER_FLASHINFER, PARENT, PYTHON
from runners.targets.bundle.wheels import Pin, fetch, members
from runners.targets.environments import MARKER, NotUsable, cache_directory, checked_release
from runners.targets.hypothesis_pin import FOLDER
from runners.targets.install import Pip, only_one, run_pip
from runners.targets.packages import BUNDLED, directory

FORMAT = 1
LIST = "bundle.json"
SUFFIX = ".tar.xz"
RELEASE = "sglang-"
_LIST_MAX = 1 << 20
_IN_FRONT = re.compile(rf"^{BUNDLED}/[^/]+/")
_SCRIPT = """\
#!/usr/bin/env bash
# unpack.sh DEST: lay this bundle out as DEST/base, DEST/parent and DEST/sglang-RELEASE, but what lies there already.
# The line that it prints last puts the Hypothesis that cases are drawn with in front of the host's own.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dest=${1:?usage: unpack.sh DEST}
mkdir -p "$dest"
pids=()
for archive in "$here"/*.tar.xz; do
  whole=$dest/$(basename "$archive" .tar.xz)
  part=$dest/.part-$(basename "$archive" .tar.xz)
  [ -d "$whole" ] && continue
  (rm -rf "$part" && mkdir "$part" && tar xJf "$archive" -C "$part" && mv "$part" "$whole") &
  pids+=($!)
done
for pid in ${pids[@]+"${pids[@]}"}; do wait "$pid"; done
[ ! -d "$dest/parent" ] || printf 'export PYTHONPATH=%q"${PYTHONPATH:+:$PYTHONPATH}"\\n' "$(cd "$dest/parent" && pwd)"
"""


def bundle(
    out: Path,
    releases: Sequence[str],
    cache: Path | None = None,
    *,
    fa3: bool = False,
    newer_flashinfer: bool = False,
    pip: Pip = run_pip,
    say: Callable[[str], None] = print,
) -> None:
    """Make `out` a bundle of these releases, beside those that it has. fa3: its base has FlashAttention 3's kernels.
    newer_flashinfer: and the flashinfer that some runners need from 0.5.18 on. NotUsable, in one line, if that cannot
    be done; archives that were finished stay, and are not made again."""
    wheels = cache_directory(cache) / "wheels"
    of_releases = {f"{RELEASE}{checked_release(release)}": (f"sglang=={release}",) for release in releases}
    archives = {"base": BASE, FOLDER: PARENT} | of_releases
    try:
        out.mkdir(parents=True, exist_ok=True)
        wheels.mkdir(parents=True, exist_ok=True)
        with only_one(wheels, say):
            _write_script(out)
            previous = listed(out) if (out / LIST).exists() else {}
            for name, texts in archives.items():
                pins = [Pin.parse(text) for text in texts]
                files = members(pins, fetch(pins, wheels, pip), also=(flash_ops.MEMBER,) if fa3 else ())
                if name == "base":
                    files |= _in_front((*IN_FRONT, *(NEWER_FLASHINFER if newer_flashinfer else ())), wheels, pip)
                entry = _archive(out, name, files, previous.get(name), say)
                previous[name] = entry
                write_text(
                    out / LIST, json.dumps({"format": FORMAT, "python": PYTHON, "archives": previous}, indent=1) + "\n"
                )
    except OSError as error:
        raise NotUsable(f"cannot make a bundle in {out}: {error.strerror or error}") from error


def _in_front(texts: Sequence[str], wheels: Path, pip: Pip) -> dict[str, Member]:
    """The packages that some releases want in front of the base's own, each in its folder."""
    pins = [Pin.parse(text) for text in texts]
    files = {}
    for pin, wheel in zip(pins, fetch(pins, wheels, pip), strict=True):
        folder = directory(str(pin), Path(BUNDLED))
        for name, member in members([pin], [wheel]).items():
            files[f"{folder}/{name}"] = dataclasses.replace(member, name=f"{folder}/{name}")
    return files


def listed(bundle: Path) -> dict[str, dict[str, Any]]:
    """The archives of a bundle by name: sha256, bytes, unpacked, files, made_from. NotUsable if it is not a bundle."""
    try:
        form = json.loads(read_bytes(bundle / LIST, _LIST_MAX))
        archives = {name: dict(entry) for name, entry in form["archives"].items()}
        if form["format"] != FORMAT:
            raise NotUsable(f"{bundle / LIST} has format {form['format']!r:.20}; this version reads {FORMAT}")
        for name, entry in archives.items():
            _need_name(name)
            if not isinstance(entry["sha256"], str) or not isinstance(entry["made_from"], str):
                raise TypeError("a digest that is not text")
            if not all(type(entry[size]) is int and entry[size] >= 0 for size in ("bytes", "unpacked", "files")):
                raise TypeError("a size that is not a number")
    except FileNotFoundError as error:
        raise NotUsable(f"{bundle} is not a complete bundle: it lacks {LIST}") from error
    except OSError as error:
        raise NotUsable(f"{bundle / LIST}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise NotUsable(f"{bundle / LIST} is not what python -m runners bundle writes: {why:.200}") from error
    return archives


def _need_name(name: str) -> None:
    """ValueError unless a bundle's archives have such names: it becomes a directory of the cache."""
    try:
        if name not in ("base", FOLDER):
            checked_release(name.removeprefix(RELEASE) if name.startswith(RELEASE) else "")
    except NotUsable as error:
        raise ValueError(f"an archive of the name {name!r:.80}") from error


def _archive(
    out: Path, name: str, members: dict[str, Member], previous: dict[str, Any] | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Write one archive, unless it is there with the same contents. Its entry in the list."""
    if name == "base":
        members |= _stand_in("xgrammar")
        if flash_ops.MEMBER in members:
            members[flash_ops.MEMBER] = flash_ops.carried(members[flash_ops.MEMBER])
    elif name.startswith(RELEASE):
        if not any(path.startswith("sglang/srt/") for path in members):
            raise NotUsable(f"the wheel of {name} is not what was expected: it has no sglang/srt")
        if release_order(name.removeprefix(RELEASE)) >= release_order(CUTLASS_SINCE):
            members |= _stand_in("cutlass")
    identity = archive.made_from(members.values())
    path = out / (name + SUFFIX)
    if previous and previous["made_from"] == identity and path.exists() and path.stat().st_size == previous["bytes"]:
        say(f"{path}: already there")
        return previous
    unpacked = sum(member.size for member in members.values())
    marker = {"files": len(members), "bytes": unpacked, "made_from": identity}
    if name.startswith(RELEASE):
        marker["release"] = name.removeprefix(RELEASE)
    part = path.with_name(f".part-{path.name}")
    try:
        archive.write(part, [*_ordered(members), _text_member(MARKER, json.dumps(marker) + "\n")])
        sha256, size = archive.digest(part), part.stat().st_size
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    say(f"{path}: {size / 1e6:.1f} MB, {len(members)} files of {unpacked / 1e6:.0f} MB")
    return {"sha256": sha256, "bytes": size, "unpacked": unpacked, "files": len(members), "made_from": identity}


def _stand_in(package: str) -> dict[str, Member]:
    member = _text_member(f"{package}/__init__.py", Path(__file__).with_name(f"{package}_standin.py").read_text())
    return {member.name: member}


def _ordered(members: dict[str, Member]) -> list[Member]:
    """Members by path: files that lie together are alike, and compress better together. So do two versions of a
    package, file by file."""
    return [members[name] for name in sorted(members, key=lambda name: (_IN_FRONT.sub("", name), name))]


def _text_member(name: str, text: str) -> Member:
    data = text.encode()
    return Member(name=name, size=len(data), mark=text, read=lambda: data)


def _write_script(out: Path) -> None:
    path = out / "unpack.sh"
    write_text(path, _SCRIPT)
    path.chmod(0o755)
