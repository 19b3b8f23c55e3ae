"""Packages that workers of a target would import older than its release pins. Its failures would be the environment's,
and would be told as sglang's: such a target is not usable, but where a row says why the older one does no harm.

What is absent is no such difference: whatever is imported and not there is an error of the harness by name
(runners/sessions/attribution.py).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from repro.cases.release_list import NEWEST
from repro.cases.releases import in_range, release_order
from runners.targets import packages
from runners.targets.bundle.pins import BASE, IN_FRONT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Difference:
    """On this engine and these releases, distributions that may be older than pinned. oldest: by name, the version that
    was tried; an older one was not. why: what says that it does no harm."""

    engine: str
    releases: str
    oldest: Mapping[str, str]
    why: str

    def __str__(self) -> str:
        """For a person."""
        least = ", ".join(f"{name} from {version} on" for name, version in self.oldest.items())
        return f"{least} ({self.engine}, releases {self.releases}): {self.why}"


DIFFERENCES = (
    # requirements/emulated.txt has one of each for all releases.
    Difference(
        engine="emulated",
        releases=">=0.5.15, <0.5.22",
        oldest={"transformers": "5.8.1"},
        why="what these releases take of it are configurations that it has: every runner is driven and judged with it "
        "(docs/conformance.md). 5.19 breaks 0.5.21: Cannot find model module 'MiMoV2MTP'",
    ),
    Difference(
        engine="emulated",
        releases=">=0.5.18",
        oldest={"torch": "2.11.0"},
        why="on CPU tensors: every runner is driven and judged with 2.13 (docs/conformance.md) and with 2.11, which "
        "the host of a GPU has",
    ),
    # On the host of a GPU a bundle's base lies behind the emulated engine's releases as well.
    Difference(
        engine="emulated",
        releases=">=0.5.14",
        oldest={"sglang-kernel": "0", "flashinfer-python": "0"},
        why="native code of a GPU, which is hidden there: sessions import stand-ins (runners/engines/standins)",
    ),
    Difference(
        engine="emulated",
        releases=">=0.5.15",
        oldest={"apache-tvm-ffi": "0.1.9"},
        why="what compiles sglang's kernels for GPUs: only its classes Object and Module are named, which 0.1.9 has",
    ),
    Difference(
        engine="emulated",
        releases=">=0.5.23",
        oldest={"openai": "2.6.1"},
        why="of servers and clients; what runners import of it is there",
    ),
    # A bundle has one of each for all releases (runners/targets/bundle/pins.py), and a host without a package index one
    # PyTorch. Campaigns on an H200 ran on 0.5.13 to 0.5.23 with them (docs/figures.md).
    Difference(
        engine="cuda",
        releases=">=0.5.14",
        oldest={"sglang-kernel": "0.4.3", "flashinfer-python": "0.6.12"},
        why="kernels of attention and sampling take the same arguments; those that a later release gives and they do "
        "not take are left out (runners/releases/backends/fa3.py) or end the run by name. The exception: from 0.5.18 "
        "on fast_prefill_plan gives flashinfer's plan one that 0.6.12 does not take, so that draft_extend, rounds and "
        "verify's opt-in host plan are unsupported over flashinfer but with a bundle made with --newer-flashinfer",
    ),
    Difference(
        engine="cuda",
        releases=">=0.5.15",
        oldest={"apache-tvm-ffi": "0.1.9"},
        why="flashinfer 0.6.12 and sglang's own kernels are compiled with it",
    ),
    Difference(
        engine="cuda",
        releases=">=0.5.15, <0.5.22",
        oldest={"transformers": "5.8.1"},
        why="as on the emulated engine",
    ),
    Difference(
        engine="cuda",
        releases=">=0.5.18",
        oldest={"torch": "2.11.0"},
        why="CUDA graphs and what runners call are the same; it is the one that the host has drivers and kernels for",
    ),
    Difference(
        engine="cuda",
        releases=">=0.5.23",
        oldest={"openai": "2.6.1"},
        why="of servers and clients; what runners import of it is there",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Older:
    """A distribution that is older than pinned. requirement: what the release wants, as pip takes it. declared: the row
    that says why it does no harm, or None."""

    name: str
    requirement: str
    version: str
    declared: Difference | None

    def __str__(self) -> str:
        """For a person."""
        return f"{self.name} {self.version} where {self.requirement} is pinned"


def names(required: Iterable[str]) -> tuple[str, ...]:
    """The distributions for which these requirements say the least version, of those that hold here."""
    return tuple(canonicalize_name(requirement.name) for requirement in _parsed(required) if _least(requirement))


def older(required: Iterable[str], numbers: Mapping[str, str], release: str, engine: str) -> Iterator[Older]:
    """required: a release's requirements, as its metadata has them. numbers: the version that would be imported of
    each; absent ones are left out. release: a text that is not a release number counts as the newest."""
    for requirement in _parsed(required):
        name, least = canonicalize_name(requirement.name), _least(requirement)
        version = numbers.get(name)
        if version and least and _public(version) < least:
            yield Older(
                name=name,
                requirement=f"{name}{requirement.specifier}",
                version=version,
                declared=_declared(name, version, _numbered(release), engine),
            )


def older_here(name: str) -> str:
    """In words, that this process has an older version of a distribution than its sglang pins; empty if it has not."""
    required = next(filter(None, map(packages.required, map(Path, sys.path))), ())
    differences = older(required, packages.versions((name,)), NEWEST, "cuda")
    return next((str(difference) for difference in differences if difference.name == name), "")


def complaint(release: str, engine: str, differences: Iterable[Older], python: Path | None) -> str:
    """The first that no row declares, and what helps, in one line; empty if there is none. python: what workers run in;
    None where a bundle has what they import."""
    undeclared = next((difference for difference in differences if difference.declared is None), None)
    if undeclared is None:
        return ""
    remedy = _remedy(release, engine, undeclared.requirement, python)
    return (
        f"sglang {release} pins {undeclared.requirement}, and its workers would import {undeclared.version}: what "
        f"fails then may not be sglang's. To mend it: {remedy}"
    )


def _remedy(release: str, engine: str, requirement_text: str, python: Path | None) -> str:
    """A bundle that was unpacked is no remedy for what it does not bring."""
    if python:
        return f"{shlex.quote(str(python))} -m pip install {shlex.quote(requirement_text)}"
    if engine == "emulated":
        return f"make setup, and python -m runners install {release}, where there is a package index"
    requirement = Requirement(requirement_text)
    for text in (*BASE, *IN_FRONT):
        name, _, version = text.partition("==")
        if name == requirement.name and requirement.specifier.contains(version):
            return f"python -m runners bundle OUT {release}, which brings it; unpack that"
    return f"python -m runners environment {release}, where there is a package index"


def _declared(name: str, version: str, release: str, engine: str) -> Difference | None:
    for row in DIFFERENCES:
        concerns = row.engine == engine and name in row.oldest and in_range(row.releases, release)
        if concerns and _public(version) >= Version(row.oldest[name]):
            return row
    return None


def _parsed(required: Iterable[str]) -> Iterator[Requirement]:
    """The requirements that every installation takes here: of extras and other platforms there may be others."""
    for text in required:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # of another project than this release's
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def _least(requirement: Requirement) -> Version | None:
    """The version below which the requirement is not met."""
    lowest = [
        Version(specifier.version.removesuffix(".*"))
        for specifier in requirement.specifier
        if specifier.operator in ("==", ">=", "~=", ">")
    ]
    return max(lowest, default=None)


def _public(version: str) -> Version:
    """Without what a build adds to it, as in 2.11.0+cu130."""
    return Version(Version(version).public)


def _numbered(release: str) -> str:
    try:
        release_order(release)
    except ValueError:
        return NEWEST
    return release
