"""Bundles as they are unpacked: each archive whole or not at all, and nothing of a bundle that is not whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from repro.cases.case import Target
from runners import __main__ as command
from runners.targets import hypothesis_pin
from runners.targets.bundle import archive, build
from runners.targets.bundle.archive import Member
from runners.targets.bundle.build import listed
from runners.targets.bundle.unpack import unpack
from runners.targets.environments import NotUsable, import_path, installed
from runners.targets.install import damage
from tests.builders.project import PROJECT
from tests.builders.small_wheels import SMALL, UNPACKED, Index, contents, make, small_index

pytestmark = pytest.mark.slow


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    return small_index(monkeypatch)


def test_a_bundle_is_unpacked(tmp_path: Path, index: Index) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    host = tmp_path / "host"
    assert unpack(made, host) == ["base", "parent", "sglang-0.5.13"]
    assert contents(host / "targets") == UNPACKED
    # It is a release like others: found, with its base behind it, and the doctor sees what goes missing.
    (release,) = installed(host)
    assert (release.release, damage(release.path)) == ("0.5.13", "")
    path = (host / "targets" / "sglang-0.5.13", host / "targets" / "base")
    assert import_path(Target("0.5.13", "cuda"), host) == path
    (release.path / "sglang" / "version.py").unlink()
    assert damage(release.path)


def test_the_script_does_the_same(tmp_path: Path, index: Index) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    targets = tmp_path / "host" / "targets"
    for _ in range(2):
        ran = subprocess.run([made / "unpack.sh", targets], capture_output=True, text=True, check=True)
        assert ran.stdout == hypothesis_pin.export(targets / "parent") + "\n", "the line of python -m runners unpack"
    assert contents(tmp_path / "host" / "targets") == UNPACKED
    assert unpack(made, tmp_path / "host") == [], "what the script unpacked is known as the same"
    (made / "base.tar.xz").write_bytes(b"garbage")
    broken = subprocess.run([made / "unpack.sh", tmp_path / "other"], capture_output=True, check=False)
    assert broken.returncode != 0 and not broken.stdout
    assert not (tmp_path / "other" / "base").exists()


def test_unpacking_again_does_nothing_and_a_new_base_takes_the_old_ones_place(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    host = tmp_path / "host"
    unpack(made, host)
    assert unpack(made, host) == []
    monkeypatch.setattr(build, "BASE", SMALL[1:])
    make(tmp_path, index, "0.5.13")
    assert unpack(made, host) == ["base"]
    assert not (host / "targets" / "base" / "sgl_kernel").exists()
    assert sorted(path.name for path in (host / "targets").iterdir()) == [".lock", "base", "parent", "sglang-0.5.13"]


def spoil(made: Path, name: str) -> None:
    (made / name).write_bytes((made / name).read_bytes()[:-100])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda made: spoil(made, "base.tar.xz"),
            "base.tar.xz differs from when the bundle was made: copy the bundle again",
        ),
        (
            lambda made: spoil(made, "sglang-0.5.13.tar.xz"),
            "sglang-0.5.13.tar.xz differs from when the bundle was made",
        ),
        (lambda made: (made / "base.tar.xz").unlink(), "is not a complete bundle: it lacks base.tar.xz"),
        (lambda made: (made / "parent.tar.xz").unlink(), "is not a complete bundle: it lacks parent.tar.xz"),
        (
            lambda made: (made / "sglang-0.5.13.tar.xz").unlink(),
            "is not a complete bundle: it lacks sglang-0.5.13.tar.xz",
        ),
        (lambda made: (made / "bundle.json").unlink(), "is not a complete bundle: it lacks bundle.json"),
        (lambda made: (made / "bundle.json").write_text("{}"), "is not what python -m runners bundle writes"),
        (lambda made: (made / "bundle.json").write_bytes(b"\xff"), "is not what python -m runners bundle writes"),
        (
            lambda made: (made / "bundle.json").write_text('{"format": 9, "archives": {}}'),
            "has format 9; this version reads 1",
        ),
    ],
)
def test_a_bundle_that_is_not_whole_is_refused(
    harm: Callable[[Path], object], message: str, tmp_path: Path, index: Index
) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    harm(made)
    with pytest.raises(NotUsable) as error:
        unpack(made, tmp_path / "host")
    assert message in str(error.value) and "python -m runners unpack" not in str(error.value), (
        "there is nothing to name"
    )
    assert not (tmp_path / "host").exists(), "noticed before anything is unpacked"


def test_of_a_bundle_carried_in_part_the_releases_that_are_named(tmp_path: Path, index: Index) -> None:
    made, _ = make(tmp_path, index, "0.5.13", "0.5.11")
    (made / "sglang-0.5.11.tar.xz").unlink()
    host = tmp_path / "host"
    wanting = f"{made} is not a complete bundle: it lacks sglang-0.5.11.tar.xz"
    for releases, message in (
        ((), f"{wanting}; name the releases that were carried: python -m runners unpack {made} 0.5.13"),
        (
            ("0.5.13", "0.5.11"),
            f"{wanting}; name the releases that were carried: python -m runners unpack {made} 0.5.13",
        ),
        (("0.5.11",), wanting),
        (("0.5.13", "0.5.14"), f"{made} has no sglang 0.5.14; it has 0.5.13, 0.5.11"),
        (("base",), f"{made} has no sglang base; it has 0.5.13, 0.5.11"),
    ):
        with pytest.raises(NotUsable) as error:
            unpack(made, host, releases)
        assert str(error.value) == message
        assert not host.exists()
    assert unpack(made, host, ["0.5.13"]) == ["base", "parent", "sglang-0.5.13"]
    assert contents(host / "targets") == UNPACKED
    assert unpack(made, host, ["0.5.13"]) == []


def test_archives_are_not_needed_any_more_once_they_are_unpacked(tmp_path: Path, index: Index) -> None:
    made, _ = make(tmp_path, index, "0.5.13", "0.5.11")
    unpack(made, tmp_path / "host", ["0.5.13"])
    for name in ("base", "parent", "sglang-0.5.13"):
        (made / f"{name}.tar.xz").unlink()
    assert unpack(made, tmp_path / "host") == ["sglang-0.5.11"]
    (made / "sglang-0.5.11.tar.xz").unlink()
    assert unpack(made, tmp_path / "host") == []


def test_a_bundle_from_before_it_had_a_part_for_the_parent(tmp_path: Path, index: Index) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    form = json.loads((made / "bundle.json").read_text())
    del form["archives"]["parent"]
    (made / "bundle.json").write_text(json.dumps(form))
    (made / "parent.tar.xz").unlink()
    assert unpack(made, tmp_path / "host") == ["base", "sglang-0.5.13"]
    ran = subprocess.run([made / "unpack.sh", tmp_path / "host" / "targets"], capture_output=True, check=True)
    assert not ran.stdout, "there is nothing to put in front"


def test_an_archive_of_something_else_is_refused(tmp_path: Path, index: Index) -> None:
    """Its digest is right, its contents are not what the list says: two bundles were mixed up."""
    made, _ = make(tmp_path, index, "0.5.13", "0.5.11")
    form = json.loads((made / "bundle.json").read_text())
    shutil.copy(made / "sglang-0.5.11.tar.xz", made / "sglang-0.5.13.tar.xz")
    other = form["archives"]["sglang-0.5.11"]
    form["archives"]["sglang-0.5.13"] |= {"sha256": other["sha256"], "bytes": other["bytes"]}
    (made / "bundle.json").write_text(json.dumps(form))
    with pytest.raises(NotUsable, match="does not hold what"):
        unpack(made, tmp_path / "host")
    assert [entry.release for entry in installed(tmp_path / "host")] == ["0.5.11"]


@pytest.mark.parametrize("member", ["../outside", "/tmp/outside-of-everything"])
def test_an_archive_cannot_write_elsewhere(member: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.tar.xz"
    archive.write(path, [Member(name=member, size=1, mark="", read=lambda: b"x")])
    with pytest.raises(archive.BadArchive, match="is no name below its folder"):
        archive.read(path, tmp_path / "into" / "here", files_max=1, bytes_max=1)
    assert not (tmp_path / "into" / "outside").exists()
    assert not Path("/tmp/outside-of-everything").exists()


def test_what_a_killed_unpacking_left_is_cleared(tmp_path: Path, index: Index) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    remains = tmp_path / "host" / "targets" / ".part-base"
    (remains / "half").mkdir(parents=True)
    assert installed(tmp_path / "host") == ()
    assert unpack(made, tmp_path / "host") == ["base", "parent", "sglang-0.5.13"]
    assert contents(tmp_path / "host" / "targets") == UNPACKED and not remains.exists()


def test_no_room_is_noticed_before_anything_is_written(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = make(tmp_path, index, "0.5.13")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(NotUsable, match="not enough disk space"):
        unpack(made, tmp_path / "host")


def test_the_stand_in_for_cutlass_satisfies_imports_and_is_none_for_flashinfer(tmp_path: Path) -> None:
    text = Path(build.__file__).with_name("cutlass_standin.py").read_text()
    for path, code in {
        "cutlass/__init__.py": text,
        "flashinfer/__init__.py": "",
        "flashinfer/norm.py": "try:\n    import cutlass\nexcept ImportError as error:\n    said = str(error)\n",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(code)
    script = """
import os
import flashinfer.norm
assert "compiles no kernels" in flashinfer.norm.said
import cutlass.cute as cute
from cutlass import Float32, Int64
from cutlass.utils import HardwareInfo

@cute.jit
def kernel(x: cute.Tensor, y: cute.Pointer | None = None):
    return x

class Kernel(HardwareInfo):
    size = 2 * Int64
assert kernel(3) == 3 and os.environ["FLASHINFER_USE_CUDA_NORM"] == "1"
try:
    cute.compile(kernel, 1)
except NotImplementedError as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "this host has a stand-in for CUTLASS, which compiles no kernels\n"


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
    assert (code, err, out.count("\n")) == (0, "", 4)
    monkeypatch.setattr(hypothesis_pin, "PYTHON", "{}.{}".format(*sys.version_info))
    text, line = (
        f"{host / 'targets'}: base, parent, sglang-0.5.11 unpacked\n",
        f"{hypothesis_pin.export(parent_of(host))}\n",
    )
    assert call(host, "unpack", made, "0.5.11") == (0, text + line, "")
    assert call(host, "unpack", made) == (0, f"{host / 'targets'}: sglang-0.5.13 unpacked\n{line}", "")
    assert call(host, "unpack", made) == (0, f"{host / 'targets'}: all of it is already there\n{line}", "")
    monkeypatch.setenv("EAGLEEYE_CACHE", str(tmp_path / "elsewhere"))
    assert command.main(["unpack", made, "--cache", str(host)]) == 0
    assert capsys.readouterr().out.startswith(str(host))
    # The option stands where it likes: in front of the releases, behind them, between them.
    for place in range(3):
        words, other = ["0.5.11", "0.5.13"], tmp_path / f"host {place}"
        words[place:place] = ["--cache", str(other)]
        assert command.main(["unpack", made, *words]) == 0
        unpacked = "base, parent, sglang-0.5.13, sglang-0.5.11"
        assert capsys.readouterr().out.startswith(f"{other / 'targets'}: {unpacked} unpacked\n")
    code, out, err = call(host, "unpack", str(tmp_path))
    assert (code, out, err) == (3, "", f"error: {tmp_path} is not a complete bundle: it lacks bundle.json\n")
    (tmp_path / "bundle" / "base.tar.xz").unlink()
    code, out, err = call(tmp_path / "other", "unpack", made)
    assert (code, out, err) == (3, "", f"error: {made} is not a complete bundle: it lacks base.tar.xz\n")
    code, _, err = call(tmp_path / "cache", "bundle", made, "latest")
    assert code == 3 and "'latest' is not a release of sglang" in err
    # An option in front of the releases must not make it all of them.
    code, out, err = call(tmp_path / "cache", "bundle", f"{made} 3", "--fa3", "0.5.11")
    assert (code, err) == (0, "") and list(listed(Path(f"{made} 3"))) == ["base", "parent", "sglang-0.5.11"]


def parent_of(host: Path) -> Path:
    return host / "targets" / "parent"


@pytest.mark.parametrize("before", ["", "/some/where:/else"])
@pytest.mark.parametrize("by", ["command", "script"])
def test_a_shell_given_the_last_line_imports_what_the_bundle_brought(
    by: str,
    before: str,
    tmp_path: Path,
    index: Index,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In front of the Hypothesis that this very Python has, whatever the folder is called."""
    made, _ = make(tmp_path, index, "0.5.13")
    host = tmp_path / "a host's"
    if by == "command":
        monkeypatch.setattr(hypothesis_pin, "PYTHON", "{}.{}".format(*sys.version_info))
        assert command.main(["unpack", str(made), "--cache", str(host)]) == 0
        printed = capsys.readouterr().out
    else:
        script = subprocess.run(
            [made / "unpack.sh", host / "targets"], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        printed = script.stdout
    words = 'eval "$1"; "$2" -c "import hypothesis; print(hypothesis.whose)"; echo "$PYTHONPATH"'
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if before:
        environment["PYTHONPATH"] = before
    shell = ["bash", "-euc", words, "-", printed.splitlines()[-1], sys.executable]
    ran = subprocess.run(shell, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == f"bundled\n{parent_of(host)}{':' + before if before else ''}\n"


def test_another_python_than_the_bundles_is_told_so(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its Hypothesis has compiled parts, so that a Python given the line could import none at all."""
    made, _ = make(tmp_path, index, "0.5.13")
    monkeypatch.setattr(hypothesis_pin, "PYTHON", "3.99")
    assert command.main(["unpack", str(made), "--cache", str(tmp_path / "host")]) == 0
    output = capsys.readouterr()
    assert output.out == f"{tmp_path / 'host' / 'targets'}: base, parent, sglang-0.5.13 unpacked\n"
    assert output.err.startswith(f"warning: a bundle is for Python 3.99, and {sys.executable} is Python ")
    assert output.err.count("\n") == 1


def test_unpacking_needs_the_standard_library_numpy_and_packaging_alone() -> None:
    """On a bare host, before anything else is there."""
    script = """
import sys
class Refusing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        known = {"numpy", "packaging", "fuzz", "oracles", "runners", "repro"}
        if top not in sys.stdlib_module_names and top not in known:
            raise ImportError("not on a bare host: " + name)
sys.meta_path.insert(0, Refusing())
import runners.__main__
"""
    ran = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
