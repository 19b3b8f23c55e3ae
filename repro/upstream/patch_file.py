"""A patch as people have it, from git diff or a pull request, applied to a release or a checkout: what the files of
sglang become. Files outside sglang (its tests, its documentation) are left out and named."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from repro.upstream.rig import Contents, Refused

_HEADER = re.compile(r"^(?:---|\+\+\+) (?:\"?)([^\t\n\"]+)", re.MULTILINE)
_PACKAGE = re.compile(r"^(?:[ab]/)?(?:python/)?(sglang/.+)$")
_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Patched:
    """contents: of the files that change. left_out: the files of the patch that are not sglang's own."""

    contents: Contents
    left_out: tuple[str, ...]


def applied(patch: Path, source: Path) -> Patched:
    """What the patch makes of the sglang at this import path. Refused, naming the file, if it does not apply."""
    text = _read(patch)
    files = [name for name in dict.fromkeys(_HEADER.findall(text)) if name != "/dev/null"]
    if not files:
        raise Refused(f"{patch}: no patch: no line begins with --- or +++")
    renamed = {name: match.group(1) for name in files if (match := _PACKAGE.match(name))}
    left_out = tuple(name.split("/", 1)[-1] for name in files if name not in renamed)
    if not renamed:
        raise Refused(f"{patch}: changes no file of sglang: {', '.join(left_out)}")
    with tempfile.TemporaryDirectory(prefix="eagleeye-patch-") as folder:
        top = Path(folder)
        for path in set(renamed.values()):
            if (source / path).is_file():
                (top / path).parent.mkdir(parents=True, exist_ok=True)
                (top / path).write_bytes((source / path).read_bytes())
        before = {path: _contents(top / path) for path in renamed.values()}
        _apply(patch, text, top, min(name.count("/") - path.count("/") for name, path in renamed.items()))
        after = {path: _contents(top / path) for path in renamed.values()}
    changed = {path: new for path, new in after.items() if new != before[path]}
    if not changed:
        raise Refused(f"{patch}: changes nothing of the sglang at {source}")
    return Patched(contents=changed, left_out=tuple(dict.fromkeys(left_out)))


def _read(patch: Path) -> str:
    try:
        if patch.stat().st_size > _BYTES_MAX:
            raise Refused(f"{patch}: more than {_BYTES_MAX >> 20} MiB, too large for a patch")
        return patch.read_text()
    except OSError as error:
        raise Refused(f"{patch}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise Refused(f"{patch}: not UTF-8 text, from byte {error.start} on") from error


def _contents(path: Path) -> str | None:
    return path.read_bytes().decode() if path.is_file() else None


def _apply(patch: Path, text: str, top: Path, strip: int) -> None:
    # GIT_CEILING_DIRECTORIES: whatever repository lies above the temporary folder is not meant.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_CEILING_DIRECTORIES"] = str(top.parent)
    command = ["git", "apply", f"-p{strip}", "--include=sglang/*", "--whitespace=nowarn", "-"]
    try:
        done = subprocess.run(
            command, cwd=top, input=text, capture_output=True, text=True, env=environment, check=False
        )
    except FileNotFoundError:
        raise Refused("git is not installed, which applies patches") from None
    if done.returncode:
        errors = [part.removeprefix("error: ") for part in done.stderr.splitlines() if part.startswith("error: ")]
        raise Refused(f"{patch} does not apply: {'; '.join(errors[:2]) or done.stderr.strip()}")
