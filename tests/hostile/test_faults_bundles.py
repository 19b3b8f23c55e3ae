"""Attacked from outside: bundles that would write elsewhere, fill memory or the disk, or are broken. Each is one clear
line and exit code 3, and nothing is left in the cache or written beside it."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.__main__ import main
from runners.targets.environments import MARKER
from tests.builders.refusals import refusal

NAME = "sglang-0.5.13"
Tar = Callable[[tarfile.TarFile], None]


def file(tar: tarfile.TarFile, name: str, content: bytes = b"x", **more: Any) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in more.items():
        setattr(info, field, value)
    tar.addfile(info, io.BytesIO(content))


def linked(tar: tarfile.TarFile, kind: bytes, name: str, to: str = "") -> None:
    file(tar, name, b"", type=kind, linkname=to)


def link_and_through(tar: tarfile.TarFile) -> None:
    linked(tar, tarfile.SYMTYPE, "out", "../../..")
    file(tar, "out/escaped")


def long_links(tar: tarfile.TarFile) -> None:
    """CVE-2025-4517: a chain of folders and links so long that a resolved name is cut before it is checked."""
    folder = "d" * 247
    name = ""
    for letter in "abcdefghijklmnop":
        linked(tar, tarfile.DIRTYPE, f"{name}{folder}")
        linked(tar, tarfile.SYMTYPE, f"{name}{letter}", folder)
        name += f"{letter}/"
    linked(tar, tarfile.SYMTYPE, f"{name}{'l' * 254}", "../" * 16)
    linked(tar, tarfile.SYMTYPE, "escape", f"{name}{'l' * 254}/../../../escaped")
    linked(tar, tarfile.LNKTYPE, "through", "escape")
    file(tar, "through", b"overwritten")


def many(tar: tarfile.TarFile) -> None:
    for number in range(40):
        file(tar, f"{number}")


def twice(tar: tarfile.TarFile) -> None:
    file(tar, "a")
    file(tar, "a")


def below_a_file(tar: tarfile.TarFile) -> None:
    file(tar, "a")
    file(tar, "a/b")


def long_header(tar: tarfile.TarFile) -> None:
    file(tar, "a", pax_headers={"comment": "x" * 200_000})


def sparse(tar: tarfile.TarFile) -> None:
    stated = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,1",
        "GNU.sparse.size": "1",
    }
    file(tar, "a", pax_headers=stated)


def negative(tar: tarfile.TarFile) -> None:
    file(tar, "a", pax_headers={"size": "-512"})


def nested(tar: tarfile.TarFile) -> None:
    """A header of a header of a header: tarfile goes into each."""
    for _ in range(3000):
        file(tar, "a", b"10 a=bcde\n", type=tarfile.XHDTYPE)


TARS: dict[str, tuple[Tar, str]] = {
    "folder above": (lambda tar: file(tar, "../escaped"), "no name below its folder"),
    "folder above, further in": (lambda tar: file(tar, "a/../../escaped"), "no name below its folder"),
    "absolute": (lambda tar: file(tar, "/tmp/eagleeye-escaped"), "no name below its folder"),
    "dot": (lambda tar: file(tar, "./a"), "no name below its folder"),
    "empty part": (lambda tar: file(tar, "a//b"), "no name below its folder"),
    "name in a long header": (lambda tar: file(tar, f"../{'é' * 200}"), "no name below its folder"),
    "symbolic link": (lambda tar: linked(tar, tarfile.SYMTYPE, "a", "/etc/passwd"), "no regular file"),
    "file through a link": (link_and_through, "no regular file"),
    "long links": (long_links, "no regular file"),
    "hard link": (lambda tar: linked(tar, tarfile.LNKTYPE, "a", "../../../escaped"), "no regular file"),
    "folder": (lambda tar: linked(tar, tarfile.DIRTYPE, "a"), "no regular file"),
    "pipe": (lambda tar: linked(tar, tarfile.FIFOTYPE, "a"), "no regular file"),
    "character device": (lambda tar: linked(tar, tarfile.CHRTYPE, "a"), "no regular file"),
    "block device": (lambda tar: linked(tar, tarfile.BLKTYPE, "a"), "no regular file"),
    "unknown type": (lambda tar: linked(tar, b"Z", "a"), "no regular file"),
    "sparse": (sparse, "no regular file"),
    "global header": (lambda tar: file(tar, "a", b"10 a=bcde\n", type=tarfile.XGLTYPE), "no regular file"),
    "more bytes than stated": (lambda tar: file(tar, "a", b"x" * 300_000), "more than the 3 files"),
    "more files than stated": (many, "more than the 3 files"),
    "a name twice": (twice, "File exists"),
    "a file as a folder": (below_a_file, "cannot unpack"),
    "a long header": (long_header, "states a size"),
    "a negative size": (negative, "cannot be unpacked"),
    "nested headers": (nested, "cannot be unpacked"),
    "nothing": (lambda tar: None, "does not hold what"),
}


def bundle(folder: Path, tar: Tar, **more: Any) -> Path:
    """A bundle of one archive with a right digest; two files of 100,000 bytes are stated."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        tar(archive)
    return listed(folder, lzma.compress(made.getvalue()), **more)


def listed(folder: Path, content: bytes, name: str = NAME, **more: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / f"{NAME}.tar.xz").write_bytes(content)
    entry = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "unpacked": 100_000,
        "files": 2,
        "made_from": "0123456789abcdef",
    }
    (folder / "bundle.json").write_text(json.dumps({"format": 1, "archives": {name: entry | more}}))
    return folder


def everything(folder: Path) -> dict[str, int]:
    """All that lies below a folder, with its size."""
    return {str(path.relative_to(folder)): path.lstat().st_size for path in sorted(folder.rglob("*"))}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Path]:
    """A folder in whose midst a bundle is unpacked; nothing in it changes but that the cache's own folder is made."""
    world = tmp_path / "a" / "b"
    world.mkdir(parents=True)
    (tmp_path / "escaped").write_text("as it was")
    yield world
    left = {name for name in everything(tmp_path) if not name.startswith("a/b/bundle")}
    assert left <= {"a", "a/b", "a/b/host", "a/b/host/targets", "a/b/host/targets/.lock", "escaped"}
    assert (tmp_path / "escaped").read_text() == "as it was" and not Path("/tmp/eagleeye-escaped").exists()


def unpacked(made: Path) -> str:
    return refusal(main, "unpack", made, "--cache", made.parent / "host")


@pytest.mark.parametrize(("tar", "words"), TARS.values(), ids=TARS)
def test_an_archive_that_is_not_one_of_a_bundle(tar: Tar, words: str, world: Path) -> None:
    assert words in unpacked(bundle(world / "bundle", tar))


def right(tar: tarfile.TarFile) -> None:
    file(tar, "sglang/a.py", b"x" * 99_999)
    file(tar, f"{'deep/' * 40}b.py", b"x", mode=0o4777)
    file(tar, MARKER, json.dumps({"made_from": "0123456789abcdef"}).encode())


def test_one_that_is_right_is_unpacked_without_the_rights_that_it_states(tmp_path: Path) -> None:
    """Else all that is refused above might be refused for another reason."""
    made = bundle(tmp_path / "bundle", right)
    assert main(["unpack", str(made), "--cache", str(tmp_path / "host")]) == 0
    odd = tmp_path / "host" / "targets" / NAME / "deep/" / ("deep/" * 39) / "b.py"
    assert odd.stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("stated", [{"files": 1}, {"files": 3}, {"unpacked": 99_999}, {"unpacked": 100_001}])
def test_what_is_stated_is_what_is_there(stated: dict[str, int], world: Path) -> None:
    words = unpacked(bundle(world / "bundle", right, **stated))
    assert "more than the" in words or "does not hold what" in words


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "no archive": lambda content: b"x" * 5000,
    "cut": lambda content: content[: len(content) // 2],
    "cut at its end": lambda content: content[:-1],
    "a byte changed": lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
    "no compression": lzma.decompress,
    "garbage behind": lambda content: content + b"garbage",
    "compressed garbage": lambda content: lzma.compress(b"x" * 5000),
    "a tar that is cut": lambda content: lzma.compress(lzma.decompress(content)[:1500]),
    "more than memory holds": lambda content: lzma.compress(bytes(64 << 20)),
}


def noise(tar: tarfile.TarFile) -> None:
    file(tar, "sglang/a.py", hashlib.shake_128(b"noise").digest(90_000))


@pytest.mark.parametrize("harm", BROKEN.values(), ids=BROKEN)
def test_a_broken_archive_with_a_right_digest(harm: Callable[[bytes], bytes], world: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        noise(archive)
    words = unpacked(listed(world / "bundle", harm(lzma.compress(made.getvalue()))))
    assert "cannot be unpacked" in words or "does not hold what" in words


NAMES = (
    "../../evil",
    "/tmp/evil",
    "..",
    ".",
    "",
    "sglang-",
    "sglang-..",
    "sglang-0.5.13/../x",
    "base\n",
    "other",
    ".lock",
)


@pytest.mark.parametrize("name", NAMES)
def test_an_archives_name_is_one_of_a_bundles(name: str, world: Path) -> None:
    assert "an archive of the name" in unpacked(listed(world / "bundle", b"", name=name))


ENTRIES: dict[str, dict[str, Any]] = {
    "negative": {"unpacked": -1},
    "a truth": {"files": True},
    "a text": {"bytes": "12"},
    "a fraction": {"files": 2.0},
    "no digest": {"sha256": None},
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_an_entry_of_the_list_has_sizes(entry: dict[str, Any], world: Path) -> None:
    assert "is not what python -m runners bundle writes" in unpacked(listed(world / "bundle", b"", **entry))


LISTS = {
    "nested": ("[" * 100_000, "is not what"),
    "no object": ("[]", "is not what"),
    "large": (" " * (2 << 20), "bytes are too many"),
    "a huge number": ('{"format": ' + "9" * 5000 + "}", "is not what"),
}


@pytest.mark.parametrize(("text", "words"), LISTS.values(), ids=LISTS)
def test_a_list_that_is_none(text: str, words: str, world: Path) -> None:
    made = listed(world / "bundle", b"")
    (made / "bundle.json").write_text(text)
    assert words in unpacked(made)


def test_more_than_the_disk_holds_is_noticed_first(world: Path) -> None:
    assert "not enough disk space" in unpacked(bundle(world / "bundle", right, unpacked=1 << 60))


def test_a_list_without_an_end(world: Path) -> None:
    made = listed(world / "bundle", b"")
    (made / "bundle.json").unlink()
    (made / "bundle.json").symlink_to("/dev/zero")
    assert "bytes are too many" in unpacked(made)
