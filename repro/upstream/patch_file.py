"""A patch as people have it, from git diff or a pull request, applied to a release or a checkout: what the files of
sglang become. Files outside sglang (its tests, its documentation) are left out and named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from repro.cases.bounded_file import read_text
from repro.cases.own_place import temporary_folder
from repro.upstream.git import git
from repro.upstream.rig import Contents, Refused

_HEADER = re.compile(r"^(?:---|\+\+\+) (?:\"?)([^\t\n\"]+)", re.MULTILINE)
_PACKAGE = re.compile(r"^(?:[ab]/)?(?:python/)?(sglang/.+)$")
_BYTES_MAX = 16 << 20
# Every line that names a file, but for "no file": what is copied from the sglang that is patched is named by these.
_NAMED = re.compile(r"^(?:---|\+\+\+|diff --git|(?:rename|copy) (?:from|to)) \"?(?!/dev/null\s*$)(.+)$", re.MULTILINE)
_UPWARD = re.compile(r"(?:^|[/\s\"])\.\.(?:$|[/\s\"])")
_LINK = re.compile(r"^(?:(?:old|new|new file|deleted file) mode|index \S+)\s+\+?0*1[26]\d{4}\s*$", re.MULTILINE)
_NO_LINKS = "symbolic links and submodules are not applied"
_UNPACKED = re.compile(r"^(?:literal|delta) (\d{1,18})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patched:
    """contents: of the files that change. left_out: the files of the patch that are not sglang's own."""

    contents: Contents
    left_out: tuple[str, ...]


def applied(patch: Path, source: Path) -> Patched:
    """The files that the patch makes of the sglang at this import path. Refused, naming the file, if it does not
    apply."""
    text = _read(patch)
    files = [name for name in dict.fromkeys(_HEADER.findall(text)) if name != "/dev/null"]
    if not files:
        raise Refused(f"{patch}: no patch: no line begins with --- or +++")
    renamed = {name: match.group(1) for name in files if (match := _PACKAGE.match(name))}
    left_out = tuple(name.split("/", 1)[-1] for name in files if name not in renamed)
    if not renamed:
        raise Refused(f"{patch}: changes no file of sglang: {', '.join(left_out)}")
    with temporary_folder("eagleeye-patch-") as top:
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
        text = read_text(patch, _BYTES_MAX).replace("\r\n", "\n")
    except OSError as error:
        raise Refused(f"{patch}: {error.strerror or error}") from error
    for name in _NAMED.findall(text):
        if name.startswith("/") or _UPWARD.search(name):
            raise Refused(f"{patch}: names a file outside of what it changes: {name}")
    if _LINK.search(text):
        raise Refused(f"{patch}: {_NO_LINKS}")
    if sum(int(size) for size in _UNPACKED.findall(text)) > _BYTES_MAX:
        raise Refused(f"{patch}: unpacks to more than {_BYTES_MAX} bytes")
    return text


def _contents(path: Path) -> str | None:
    return path.read_bytes().decode() if path.is_file() else None


def _apply(patch: Path, text: str, top: Path, strip: int) -> None:
    # Whatever repository lies above the temporary folder is not meant.
    words = ("apply", f"-p{strip}", "--include=sglang/*", "--whitespace=nowarn", "-")
    try:
        git(top, *words, stdin=text, top=top.parent)
    except Refused as error:
        raise Refused(f"{patch} does not apply: {str(error).removeprefix('git apply: ')}") from error
    if any(path.is_symlink() for path in top.rglob("*")):
        raise Refused(f"{patch}: {_NO_LINKS}")
