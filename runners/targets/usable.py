"""The releases that an engine can be used with on this host, and fetching those that a job wants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from repro.cases.case import Target
from repro.cases.releases import release_order
from runners.targets.environments import NotUsable, installed, lacks, own_environments
from runners.targets.install import Pip, install, run_pip


def usable(engine: str, cache: Path | None = None) -> list[str]:
    """Oldest first."""
    environments = [environment.release for environment in own_environments(cache)] if engine == "cuda" else []
    releases = {*environments, *(entry.release for entry in installed(cache))}
    return sorted((r for r in releases if not lacks(Target(r, engine), cache)), key=release_order)


def fetch(
    releases: Iterable[str], cache: Path | None = None, *, pip: Pip = run_pip, say: Callable[[str], None] = print
) -> list[str]:
    """Install those that are not there, where there is an index; why those that cannot be had are not, a line each. The
    first that cannot be had ends it: without an index none can, and each try takes its time."""
    present = {entry.release for entry in installed(cache)}
    for release in sorted(set(releases) - present, key=release_order):
        try:
            install(release, cache, pip=pip, say=say)
        except NotUsable as error:
            return [str(error)]
    return []
