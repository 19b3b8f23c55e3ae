"""Bundles: made from cached wheels, whole or refused, the same bytes each time; unpacked whole or not at all."""

from __future__ import annotations

import contextlib
import itertools
import json
import lzma
import os
import random
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from repro.case import Target
from runners import __main__ as command
from runners import archive, bundle
from runners.archive import Member
from runners.bundle import listed
from runners.environments import NotUsable, import_path, installed
from runners.install import Ran, damage
from runners.pins import BASE, LEFT_OUT
from runners.unpack import unpack
from runners.wheels import Pin, fetch, find, members

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parent.parent
# A small base in place of the real one: one of its wheels is native, one has files for elsewhere.
SMALL = ("sglang-kernel==0.4.3", "pure-eval==0.2.4")
WHEELS = {
    "sglang-kernel==0.4.3": (
        "sglang_kernel-0.4.3-cp310-abi3-manylinux2014_x86_64.whl",
        {"sgl_kernel/__init__.py": "kernels", "sgl_kernel/flash_ops.abi3.so": "1 GB", "sgl_kernel/sm100/ops.so": "b"},
    ),
    "pure-eval==0.2.4": (
        "pure_eval-0.2.4-py3-none-any.whl",
        {
            "pure_eval/__init__.py": "pure",
            "pure_eval-0.2.4.data/scripts/run": "#!python",
            "pure_eval-0.2.4.data/purelib/extra.py": "extra",
        },
    ),
    "sglang==0.5.13": (
        "sglang-0.5.13-cp312-cp312-manylinux_2_34_x86_64.whl",
        {"sglang/srt/a.py": "a" * 5000, "sglang/multimodal_gen/b.py": "b", "sglang/version.py": "0.5.13"},
    ),
    "sglang==0.5.11": ("sglang-0.5.11-py3-none-any.whl", {"sglang/srt/a.py": "old", "sglang/version.py": "0.5.11"}),
    "sglang==0.1": ("sglang-0.1-py3-none-any.whl", {"sglang/a.py": "no srt yet"}),
}


class Index:
    """A pip that downloads the wheels above. asked: what was asked of it, one tuple a call."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, arguments: Sequence[str]) -> Ran:
        folder = Path(arguments[arguments.index("--dest") + 1])
        wanted = tuple(arguments[arguments.index("--dest") + 2 :])
        self.asked.append(wanted)
        for text in wanted:
            if text not in WHEELS:
                return Ran(code=1, output=f"ERROR: No matching distribution found for {text}")
            wheel(folder, text)
        return Ran(code=0, output="Saved")


def wheel(folder: Path, text: str) -> Path:
    name, files = WHEELS[text]
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as file:
        for path, contents in files.items():
            file.writestr(path, contents)
    return folder / name


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    monkeypatch.setattr(bundle, "BASE", SMALL)
    return Index()


def make(folder: Path, index: Index, *releases: str) -> tuple[Path, list[str]]:
    said: list[str] = []
    bundle.bundle(folder / "bundle", releases, folder / "cache", pip=index, say=said.append)
    return folder / "bundle", said


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", ".eagleeye.json") and "xgrammar" not in path.parts
    }


UNPACKED = {
    "base/extra.py": "extra",
    "base/pure_eval/__init__.py": "pure",
    "base/sgl_kernel/__init__.py": "kernels",
    "sglang-0.5.13/sglang/srt/a.py": "a" * 5000,
    "sglang-0.5.13/sglang/version.py": "0.5.13",
}


def test_a_bundle_is_made_and_unpacked(tmp_path: Path, index: Index) -> None:
    made, said = make(tmp_path, index, "0.5.13")
    assert index.asked == [SMALL, ("sglang==0.5.13",)]
    assert sorted(path.name for path in made.iterdir()) == [
        "base.tar.xz",
        "bundle.json",
        "sglang-0.5.13.tar.xz",
        "unpack.sh",
    ]
    assert [line.split(":")[0] for line in said] == [str(made / "base.tar.xz"), str(made / "sglang-0.5.13.tar.xz")]
    host = tmp_path / "host"
    assert unpack(made, host) == ["base", "sglang-0.5.13"]
    assert contents(host / "targets") == UNPACKED
    # It is a release like others: found, with its base behind it, and the doctor sees what goes missing.
    (one,) = installed(host)
    assert (one.release, damage(one.path)) == ("0.5.13", "")
    path = (host / "targets" / "sglang-0.5.13", host / "targets" / "base")
    assert import_path(Target("0.5.13", "cuda"), host) == path
    (one.path / "sglang" / "version.py").unlink()
    assert damage(one.path)


def test_the_script_does_the_same(tmp_path: Path, index: Index) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    for _ in range(2):
        subprocess.run([made / "unpack.sh", tmp_path / "host" / "targets"], check=True)
    assert contents(tmp_path / "host" / "targets") == UNPACKED
    assert unpack(made, tmp_path / "host") == [], "what the script unpacked is known as the same"
    (made / "base.tar.xz").write_bytes(b"garbage")
    broken = subprocess.run([made / "unpack.sh", tmp_path / "other"], capture_output=True, check=False)
    assert broken.returncode != 0
    assert not (tmp_path / "other" / "base").exists()


def test_the_same_wheels_give_the_same_bytes(tmp_path: Path, index: Index) -> None:
    (tmp_path / "again").mkdir()
    one, two = (make(folder, index, "0.5.13")[0] for folder in (tmp_path, tmp_path / "again"))
    for name in ("base.tar.xz", "sglang-0.5.13.tar.xz", "bundle.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_wheels_and_archives_that_are_there_are_not_made_again(tmp_path: Path, index: Index) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    index.asked.clear()
    _, said = make(tmp_path, index, "0.5.11")
    assert index.asked == [("sglang==0.5.11",)]
    assert said[0] == f"{made / 'base.tar.xz'}: already there"
    assert list(listed(made)) == ["base", "sglang-0.5.13", "sglang-0.5.11"], "a bundle grows"
    shutil.rmtree(tmp_path / "cache")
    (made / "base.tar.xz").write_bytes(b"cut short")
    assert "already there" not in make(tmp_path, index, "0.5.11")[1][0]
    assert unpack(made, tmp_path / "host") == ["base", "sglang-0.5.13", "sglang-0.5.11"]


def test_unpacking_again_does_nothing_and_a_new_base_takes_the_old_ones_place(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    host = tmp_path / "host"
    unpack(made, host)
    assert unpack(made, host) == []
    monkeypatch.setattr(bundle, "BASE", SMALL[1:])
    make(tmp_path, index, "0.5.13")
    assert unpack(made, host) == ["base"]
    assert not (host / "targets" / "base" / "sgl_kernel").exists()
    assert sorted(path.name for path in (host / "targets").iterdir()) == [".lock", "base", "sglang-0.5.13"]


def spoil(made: Path, name: str) -> None:
    (made / name).write_bytes((made / name).read_bytes()[:-100])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda made: spoil(made, "base.tar.xz"), "base.tar.xz is not as it was made: copy the bundle again"),
        (lambda made: (made / "base.tar.xz").unlink(), "is no whole bundle: it has no base.tar.xz"),
        (lambda made: (made / "bundle.json").unlink(), "is no whole bundle: it has no bundle.json"),
        (lambda made: (made / "bundle.json").write_text("{}"), "is not what python -m runners bundle writes"),
        (lambda made: (made / "bundle.json").write_bytes(b"\xff"), "is not what python -m runners bundle writes"),
        (
            lambda made: (made / "bundle.json").write_text('{"format": 9, "archives": {}}'),
            "has format 9; this version reads 1",
        ),
    ],
)
def test_a_bundle_that_is_not_whole_is_refused(
    harm: Callable[[Path], object], said: str, tmp_path: Path, index: Index
) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    harm(made)
    with pytest.raises(NotUsable) as error:
        unpack(made, tmp_path / "host")
    assert said in str(error.value)
    assert not (tmp_path / "host" / "targets" / "base").exists()
    assert not list((tmp_path / "host").glob("targets/.part-*"))


def test_an_archive_of_something_else_is_refused(tmp_path: Path, index: Index) -> None:
    """Its digest is right, its contents are not what the list says: two bundles were mixed up."""
    made, _ = make(tmp_path, index, "0.5.13", "0.5.11")
    form = json.loads((made / "bundle.json").read_text())
    shutil.copy(made / "sglang-0.5.11.tar.xz", made / "sglang-0.5.13.tar.xz")
    form["archives"]["sglang-0.5.13"]["sha256"] = form["archives"]["sglang-0.5.11"]["sha256"]
    (made / "bundle.json").write_text(json.dumps(form))
    with pytest.raises(NotUsable, match="holds something else than"):
        unpack(made, tmp_path / "host")
    assert [one.release for one in installed(tmp_path / "host")] == ["0.5.11"]


@pytest.mark.parametrize("member", ["../outside", "/tmp/outside-of-everything"])
def test_an_archive_cannot_write_elsewhere(member: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.tar.xz"
    archive.write(path, [Member(name=member, size=1, mark="", read=lambda: b"x")])
    with contextlib.suppress(tarfile.FilterError):
        archive.read(path, tmp_path / "into" / "here")
    assert not (tmp_path / "into" / "outside").exists()
    assert not Path("/tmp/outside-of-everything").exists()


def test_what_a_killed_unpacking_left_is_cleared(tmp_path: Path, index: Index) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    remains = tmp_path / "host" / "targets" / ".part-base"
    (remains / "half").mkdir(parents=True)
    assert installed(tmp_path / "host") == ()
    assert unpack(made, tmp_path / "host") == ["base", "sglang-0.5.13"]
    assert contents(tmp_path / "host" / "targets") == UNPACKED and not remains.exists()


def test_no_room_is_noticed_before_anything_is_written(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(NotUsable, match="not enough disk space"):
        unpack(made, tmp_path / "host")


def test_what_pip_cannot_find_is_one_line_and_leaves_no_list(tmp_path: Path, index: Index) -> None:
    with pytest.raises(NotUsable, match=r"^pip knows no sglang 0\.5\.99 that fits Python 3\.12$"):
        make(tmp_path, index, "0.5.99")
    with pytest.raises(NotUsable, match="it has no sglang/srt"):
        make(tmp_path, index, "0.1")
    assert [path.name for path in (tmp_path / "cache" / "wheels").glob(".part*")] == []


def test_a_damaged_wheel_is_named(tmp_path: Path, index: Index) -> None:
    folder = tmp_path / "cache" / "wheels"
    folder.mkdir(parents=True)
    path = wheel(folder, "sglang-kernel==0.4.3")
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(NotUsable, match=r"sglang_kernel-0\.4\.3-.*whl is no whole wheel .* remove it and repeat"):
        make(tmp_path, index, "0.5.13")


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("pure_eval-0.2.4-py3-none-any.whl", True),
        ("pure_eval-0.2.4-py2.py3-none-any.whl", True),
        ("pure_eval-0.2.4-1-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("pure_eval-0.2.4-cp39-abi3-manylinux_2_28_x86_64.whl", True),
        ("pure_eval-0.2.4-cp311-cp311-manylinux_2_17_x86_64.whl", False),
        ("pure_eval-0.2.4-cp312-cp312-manylinux_2_17_aarch64.whl", False),
        ("pure_eval-0.2.4-cp312-cp312-macosx_11_0_arm64.whl", False),
        ("pure_eval-0.2.41-py3-none-any.whl", False),
    ],
)
def test_only_wheels_for_the_hosts_python_are_taken(name: str, fits: bool, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert (find(Pin("pure-eval", "0.2.4"), tmp_path) is not None) == fits


def test_what_pip_is_asked(tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    def pip(arguments: Sequence[str]) -> Ran:
        asked.append(arguments)
        wheel(Path(arguments[arguments.index("--dest") + 1]), "pure-eval==0.2.4")
        return Ran(code=0, output="")

    assert fetch([Pin("pure-eval", "0.2.4")], tmp_path, pip)[0].parent == tmp_path
    (words,) = asked
    assert list(words[:3]) == ["download", "--no-deps", "--only-binary=:all:"]
    assert words[words.index("--python-version") + 1] == "3.12"
    platforms = [word for before, word in itertools.pairwise(words) if before == "--platform"]
    assert "manylinux_2_34_x86_64" in platforms and "manylinux2014_x86_64" in platforms


def test_every_pin_is_exact_and_of_its_own() -> None:
    pins = [Pin.parse(text) for text in BASE]
    assert all(pin.version and pin.version[0].isdecimal() for pin in pins)
    assert len({pin.name for pin in pins}) == len(pins) > 50
    assert LEFT_OUT.keys() <= {"sglang", *(pin.name for pin in pins)}


def test_a_later_wheel_wins(tmp_path: Path) -> None:
    first, second = (tmp_path / f"{name}-1-py3-none-any.whl" for name in "ab")
    for path, text in ((first, "one"), (second, "two")):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("shared.py", text)
    found = members([Pin("a", "1"), Pin("b", "1")], [first, second])
    assert found["shared.py"].read() == b"two"


def test_an_archive_of_many_blocks_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "BLOCK", 10_000)
    noise = random.Random(7).randbytes(100_000)
    members = [
        Member(name="noise", size=len(noise), mark="", read=lambda: noise, executable=True),
        Member(name="folder/empty", size=0, mark="", read=lambda: b""),
    ]
    for threads in (1, 3):
        path = tmp_path / f"{threads}.tar.xz"
        archive.write(path, members, threads=threads)
        archive.read(path, tmp_path / str(threads))
        assert (tmp_path / str(threads) / "noise").read_bytes() == noise
        assert os.access(tmp_path / str(threads) / "noise", os.X_OK)
        assert not os.access(tmp_path / str(threads) / "folder" / "empty", os.X_OK)
    assert (tmp_path / "1.tar.xz").read_bytes() == (tmp_path / "3.tar.xz").read_bytes()
    assert len(lzma.decompress((tmp_path / "1.tar.xz").read_bytes())) > 100_000


def test_the_stand_in_for_xgrammar_satisfies_imports(tmp_path: Path, index: Index) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    unpack(made, tmp_path / "host")
    script = """
import xgrammar.testing.deep, pydantic
from xgrammar import StructuralTag, compile_grammar
from xgrammar.structural_tag import TagFormat
class Request(pydantic.BaseModel):
    tag: StructuralTag | None = None
assert Request().tag is None and issubclass(TagFormat, pydantic.BaseModel)
assert not hasattr(xgrammar, "__wrapped__")
try:
    compile_grammar("x")
except NotImplementedError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "host" / "targets" / "base")}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "this host has a stand-in for xgrammar, which only satisfies imports\n"


def test_the_commands(
    tmp_path: Path, index: Index, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, host = str(tmp_path / "bundle"), tmp_path / "host"

    def call(cache: Path, *words: str) -> tuple[int, str, str]:
        code = command.main(["--cache", str(cache), *words], pip=index)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    code, out, err = call(tmp_path / "cache", "bundle", made, "0.5.13", "0.5.11")
    assert (code, err, out.count("\n")) == (0, "", 3)
    said = f"{host / 'targets'}: base, sglang-0.5.13, sglang-0.5.11 unpacked\n"
    assert call(host, "unpack", made) == (0, said, "")
    assert call(host, "unpack", made) == (0, f"{host / 'targets'}: all of it is already there\n", "")
    monkeypatch.setenv("EAGLEEYE_CACHE", str(tmp_path / "elsewhere"))
    assert command.main(["unpack", made, "--cache", str(host)]) == 0
    assert capsys.readouterr().out.startswith(str(host))
    code, out, err = call(host, "unpack", str(tmp_path))
    assert (code, out, err) == (3, "", f"error: {tmp_path} is no whole bundle: it has no bundle.json\n")
    code, _, err = call(tmp_path / "cache", "bundle", made, "latest")
    assert code == 3 and "'latest' is no release of sglang" in err


def test_unpacking_needs_the_standard_library_and_numpy_alone() -> None:
    """On a bare host, before anything else is there."""
    script = """
import sys
class Refusing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in {"numpy", "runners", "repro"}:
            raise ImportError("not on a bare host: " + name)
sys.meta_path.insert(0, Refusing())
import runners.__main__
"""
    ran = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
