"""Wheels small enough for tests of bundles, a pip that knows no others, and what a bundle of them unpacks to."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from runners.targets.bundle import build
from runners.targets.bundle.pins import NEWER_FLASHINFER, PARENT
from runners.targets.hypothesis_pin import PINNED
from runners.targets.install import Ran
from tests.builders.small_library import flash_ops

# A small base in place of the real one: one of its wheels is native, one has files for elsewhere.
SMALL = ("sglang-kernel==0.4.3", "pure-eval==0.2.4")
# What it brings for newer releases.
FRONT = ("pure-eval==0.2.5",)
METADATA = f"Metadata-Version: 2.1\nName: hypothesis\nVersion: {PINNED}\n"
WHEELS: Mapping[str, tuple[str, Mapping[str, str | bytes]]] = {
    "sglang-kernel==0.4.3": (
        "sglang_kernel-0.4.3-cp310-abi3-manylinux2014_x86_64.whl",
        {
            "sgl_kernel/__init__.py": "kernels",
            "sgl_kernel/flash_ops.abi3.so": flash_ops(),
            "sgl_kernel/sm100/ops.so": "b",
        },
    ),
    "pure-eval==0.2.4": (
        "pure_eval-0.2.4-py3-none-any.whl",
        {
            "pure_eval/__init__.py": "pure",
            "pure_eval-0.2.4.data/scripts/run": "#!python",
            "pure_eval-0.2.4.data/purelib/extra.py": "extra",
        },
    ),
    NEWER_FLASHINFER[0]: (
        "flashinfer_python-0.7.2-py3-none-any.whl",
        {"flashinfer/__init__.py": "newer", "flashinfer/data/csrc/cake_fmha/all.cu": "of no runner's"},
    ),
    NEWER_FLASHINFER[1]: ("apache_tvm_ffi-0.1.11-cp312-abi3-manylinux_2_24_x86_64.whl", {"tvm_ffi/__init__.py": "ffi"}),
    FRONT[0]: ("pure_eval-0.2.5-py3-none-any.whl", {"pure_eval/__init__.py": "purer"}),
    PARENT[0]: (
        f"hypothesis-{PINNED}-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        {"hypothesis/__init__.py": "whose = 'bundled'", f"hypothesis-{PINNED}.dist-info/METADATA": METADATA},
    ),
    PARENT[1]: ("sortedcontainers-2.4.0-py2.py3-none-any.whl", {"sortedcontainers/__init__.py": "sorted"}),
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
        names = tuple(arguments[arguments.index("--dest") + 2 :])
        self.asked.append(names)
        for text in names:
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


def small_index(monkeypatch: pytest.MonkeyPatch) -> Index:
    """That pip; a bundle's base is then small, too."""
    monkeypatch.setattr(build, "BASE", SMALL)
    monkeypatch.setattr(build, "IN_FRONT", FRONT)
    return Index()


def make(folder: Path, index: Index, *releases: str, **also: bool) -> tuple[Path, list[str]]:
    """also: fa3 or newer_flashinfer, as bundle() takes them."""
    lines: list[str] = []
    build.bundle(folder / "bundle", releases, folder / "cache", **also, pip=index, say=lines.append)
    return folder / "bundle", lines


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", ".eagleeye.json") and "xgrammar" not in path.parts
    }


UNPACKED = {
    "base/extra.py": "extra",
    "base/packages/pure-eval-0.2.5/pure_eval/__init__.py": "purer",
    "base/pure_eval/__init__.py": "pure",
    "base/sgl_kernel/__init__.py": "kernels",
    f"parent/hypothesis-{PINNED}.dist-info/METADATA": METADATA,
    "parent/hypothesis/__init__.py": "whose = 'bundled'",
    "parent/sortedcontainers/__init__.py": "sorted",
    "sglang-0.5.13/sglang/srt/a.py": "a" * 5000,
    "sglang-0.5.13/sglang/version.py": "0.5.13",
}
