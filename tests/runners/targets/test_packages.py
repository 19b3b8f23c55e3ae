"""Packages in front of newer releases: installed with them, imported by their workers, and a moved pin is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from repro.cases.case import Target
from repro.cases.releases import release_order
from runners.targets import packages
from runners.targets.environments import NotUsable, import_path, packages_directory
from runners.targets.install import Ran, install

BEFORE, FROM = "0.5.21", "0.5.22"
METADATA = """Metadata-Version: 2.4
Name: sglang
Version: {version}
Requires-Dist: torch==2.14.1
Requires-Dist: transformers=={transformers}
Requires-Dist: flashinfer_python[cu13]==0.7.2
Requires-Dist: xgrammar>=0.2; python_version < "3"
Requires-Dist: tokenizers==0.1; extra == "old"

Words.
"""


def pip(arguments: Sequence[str]) -> Ran:
    """Puts a package, or a release in small."""
    place, what = Path(arguments[arguments.index("--target") + 1]), arguments[-1]
    (place / ("sglang/srt" if what.startswith("sglang==") else what.partition("==")[0])).mkdir(parents=True)
    return Ran(code=0, output="")


def refusing(arguments: Sequence[str]) -> Ran:
    return Ran(code=1, output="ERROR: bad wheel")


def described(path: Path, *, transformers: str = "5.19.0", version: str = "0.5.23") -> Path:
    info = path / f"sglang-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA.format(transformers=transformers, version=version))
    return path


def test_every_row_is_newer_than_the_one_before_it() -> None:
    firsts = [release_order(row.since) for row in packages.OVERLAYS]
    assert firsts == sorted(set(firsts))
    assert not packages.overlay(BEFORE).requirements
    assert packages.overlay(FROM).requirements == packages.overlay("0.5.99").requirements != ()
    assert packages.overlay("") == packages.overlay("0.5.24.dev12+gabc") == packages.OVERLAYS[-1]


def test_a_release_comes_with_the_packages_that_it_needs(tmp_path: Path) -> None:
    assert install(BEFORE, tmp_path, pip=pip)
    assert not packages_directory(tmp_path).exists()
    assert install(FROM, tmp_path, pip=pip)
    release, *front = import_path(Target(FROM, "emulated"), tmp_path)
    assert release.name == FROM
    requirements = packages.overlay(FROM).requirements
    assert [path.name for path in front] == [requirement.replace("==", "-") for requirement in requirements]
    assert all(
        (path / requirement.partition("==")[0]).is_dir() for path, requirement in zip(front, requirements, strict=True)
    )
    assert not install(FROM, tmp_path, pip=refusing)
    assert import_path(Target(FROM, "cuda"), tmp_path) == (release, *front)
    assert import_path(Target(BEFORE, "emulated"), tmp_path) == (tmp_path / "targets" / BEFORE,)


def test_a_package_that_is_gone_is_named_with_the_command_that_helps(tmp_path: Path) -> None:
    install(FROM, tmp_path, pip=pip)
    lost = packages.directory(packages.overlay(FROM).requirements[0], packages_directory(tmp_path))
    lost.rename(lost.with_name("elsewhere"))
    # A GPU host's environment may hold what its release pins; whether it does is another question (test_pinned.py).
    assert len(import_path(Target(FROM, "cuda"), tmp_path)) == len(packages.overlay(FROM).requirements)
    with pytest.raises(NotUsable) as error:
        import_path(Target(FROM, "emulated"), tmp_path)
    first = packages.overlay(FROM).requirements[0]
    assert f"needs {first} in front" in str(error.value)
    assert str(error.value).endswith(f"python -m runners install {FROM}")
    assert install(FROM, tmp_path, pip=pip)
    assert import_path(Target(FROM, "emulated"), tmp_path)


def test_a_bundle_brings_its_own(tmp_path: Path) -> None:
    for release in (BEFORE, FROM):
        (tmp_path / f"sglang-{release}" / "sglang" / "srt").mkdir(parents=True)
    base, requirement = tmp_path / "base", packages.overlay(FROM).requirements[0]
    brought = packages.directory(requirement, base / packages.BUNDLED)
    brought.mkdir(parents=True)
    for engine in ("emulated", "cuda"):
        assert import_path(Target(FROM, engine), tmp_path) == (tmp_path / f"sglang-{FROM}", brought, base)
        assert import_path(Target(BEFORE, engine), tmp_path) == (tmp_path / f"sglang-{BEFORE}", base)


def test_what_pip_refuses_leaves_nothing(tmp_path: Path) -> None:
    install(FROM, tmp_path, pip=pip)
    packages_directory(tmp_path).rename(tmp_path / "gone")
    with pytest.raises(NotUsable, match=r"cannot install transformers.* bad wheel"):
        install(FROM, tmp_path, pip=refusing)
    assert [path.name for path in packages_directory(tmp_path).iterdir()] == [".lock"]


def test_a_checkout_gets_what_its_version_wants(tmp_path: Path) -> None:
    for release in (BEFORE, FROM):
        install(release, tmp_path, pip=pip)
    for version, count in ((BEFORE, 0), (FROM, 3), ("0.5.24.dev3+g12", 3)):
        path = tmp_path / f"checkout-{version}"
        (path / "sglang" / "srt").mkdir(parents=True)
        (path / "sglang" / "_version.py").write_text(f"__version__ = version = '{version}'\n")
        assert packages.checkout_release(path) == version
        assert len(import_path(Target(str(path), "emulated"), tmp_path)) == 1 + count


def test_a_pin_that_has_moved_is_named(tmp_path: Path) -> None:
    same, other = described(tmp_path / "same"), described(tmp_path / "other", transformers="5.21.0")
    assert packages.pins(same) == {"torch": "2.14.1", "transformers": "5.19.0", "flashinfer-python": "0.7.2"}
    assert packages.checkout_release(same) == "0.5.23"
    assert packages.moved(same) == []
    assert packages.moved(other) == ["transformers 5.21.0 (the last adapted release: 5.19.0)"]
    tree = tmp_path / "tree"
    (tree / "sglang" / "srt").mkdir(parents=True)
    (tree / "pyproject.toml").write_text('dependencies = [\n  "xgrammar==0.3.0",\n  "numpy",\n]\n')
    assert packages.moved(tree) == ["xgrammar 0.3.0 (the last adapted release: 0.2.7)"]
    assert packages.checkout_release(tree) == FROM
    (tree / "sglang").rename(tree / "another")
    assert packages.required(tree) == (), "another project's"
    assert packages.moved(tmp_path) == []
    assert packages.checkout_release(tmp_path) == "0"
