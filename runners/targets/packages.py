"""Packages that newer releases want in front of the environment's own, and the versions that a release itself pins.

They are for the emulated engine, whose one environment serves all releases: what breaks with a newer version of a
package, and what is there in one version only, cannot be in it. They lie in the cache, one directory each.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from repro.cases.releases import release_order

# What the last adapted release pins of the packages that have broken an import, a configuration or a call before.
# A release that pins others has moved, and what is in front of it was not tried with it.
LAST_PINS = {
    "apache-tvm-ffi": "0.1.11",
    "flashinfer-python": "0.7.2",
    "tokenizers": "0.23.2",
    "torch": "2.14.1",
    "transformers": "5.19.0",
    "xgrammar": "0.2.7",
}


# Where in a bundle's base those lie that it brings, as in the cache's folder of packages.
BUNDLED = "packages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Distributions in front of a release, from `since` on: NAME==VERSION. bundled: more of them, in bundles for GPU
    hosts. why: what fails without them."""

    since: str
    requirements: tuple[str, ...]
    bundled: tuple[str, ...] = ()
    why: str


# Rising. A release takes the last row that is not newer.
OVERLAYS = (
    Overlay(since="0", requirements=(), why=""),
    Overlay(
        since="0.5.18",
        requirements=(),
        bundled=("flashinfer-python==0.7.2", "apache-tvm-ffi==0.1.11"),
        why="fast_prefill_plan gives flashinfer's plan an argument more than 0.6.12 takes",
    ),
    # Transformers 5.19 in turn breaks 0.5.21: `Cannot find model module 'MiMoV2MTP'`.
    Overlay(
        since="0.5.22",
        requirements=("transformers==5.19.0", "tokenizers==0.23.2", "apache-tvm-ffi==0.1.11"),
        bundled=("flashinfer-python==0.7.2",),
        why="Gemma4TextConfig has no is_heterogeneous before Transformers 5.19, and tvm_ffi is imported by any model",
    ),
)


def overlay(release: str) -> Overlay:
    """The packages that go in front of this release; for a checkout, whose version is not a release number, the
    newest's."""
    try:
        order = release_order(release)
    except ValueError:
        return OVERLAYS[-1]
    return [row for row in OVERLAYS if release_order(row.since) <= order][-1]


def directory(requirement: str, packages: Path) -> Path:
    """The folder of a distribution in the cache's folder of packages."""
    return packages / requirement.replace("==", "-")


def absent(release: str, packages: Path) -> tuple[str, ...]:
    """The packages that a release needs in front and the cache lacks."""
    return tuple(
        requirement for requirement in overlay(release).requirements if not directory(requirement, packages).is_dir()
    )


def checkout_release(path: Path) -> str:
    """The release that an import path's own files say it is: "0.5.23". Where they only say what it pins, as in a
    development tree, the newest of OVERLAYS; "0" where they say nothing."""
    try:
        text = (path / "sglang" / "_version.py").read_text()
    except OSError:
        text = ""
    match = re.search(r"^__version__ = (?:version = )?['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    if match:
        return match.group(1)
    if metadata := _metadata(path):
        return HeaderParser().parsestr(metadata).get("Version", "0")
    return OVERLAYS[-1].since if pins(path) else "0"


def required(path: Path) -> tuple[str, ...]:
    """The requirements of the sglang on this import path: of its METADATA, or of a checkout's pyproject.toml. Empty
    where neither is there."""
    metadata = _metadata(path)
    return tuple(HeaderParser().parsestr(metadata).get_all("Requires-Dist", []) if metadata else _declared(path))


def pins(path: Path) -> dict[str, str]:
    """The versions that the sglang on this import path pins exactly, by distribution."""
    return dict(_exact(required(path)))


def moved(path: Path) -> list[str]:
    """In words, what this sglang pins otherwise than the last adapted release."""
    pinned = pins(path)
    return [
        f"{name} {pinned[name]} (the last adapted release: {version})"
        for name, version in LAST_PINS.items()
        if pinned.get(name, version) != version
    ]


def versions(
    names: tuple[str, ...], path: tuple[Path, ...] = (), behind: tuple[Path, ...] | None = None
) -> dict[str, str]:
    """The installed versions of these distributions, for a worker with this in front; absent ones are left out.
    behind: where its interpreter has its packages, if that is not this interpreter."""
    where = [*map(str, path), *(sys.path if behind is None else map(str, behind))]
    numbers = {}
    for name in names:
        for distribution in importlib.metadata.distributions(name=name, path=where):
            numbers[name] = distribution.version
            break
    return numbers


def _metadata(path: Path) -> str:
    for file in sorted(path.glob("sglang-*.dist-info/METADATA")):
        return file.read_text()
    return ""


def _declared(path: Path) -> list[str]:
    """The quoted requirements of a checkout, whose import path is the folder of its pyproject.toml; none of another
    project's, whose folder may be on the path as well."""
    if not (path / "sglang" / "srt").is_dir():
        return []
    try:
        return re.findall(
            r"^\s*\"([A-Za-z0-9_.-]+(?:\[[^\]]*\])?==[^\"]+)\"", (path / "pyproject.toml").read_text(), re.M
        )
    except OSError:
        return []


def _exact(requirements: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The pins that every installation takes: of extras and other platforms there may be others."""
    for text in requirements:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*==\s*([^\s;,]+)", text.strip())
        if match:
            yield re.sub(r"[-_.]+", "-", match.group(1)).lower(), match.group(2)
