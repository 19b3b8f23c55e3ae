"""Real targets for repro/upstream's rig; judging and reporting are passed in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from repro.cases.case import Target
from repro.cases.releases import release_order
from repro.shrinking.confirm import Judge, Run
from repro.traces.finding import Status, Verdict
from repro.upstream.rig import Contents, Refused, Rig
from runners.processes.pool import Pool
from runners.targets.environments import (
    import_path,
    installed,
    interpreter,
    lacks,
    overlays_directory,
    own_environments,
    release_under,
    sglang_path,
)
from runners.targets.overlay import CannotMake, Overlay, overlay_at, overlay_of

# What a shell has, and no more: a file must not lean on what a worker is given.
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "USER")
_KEPT_FAMILIES = ("CUDA_", "NVIDIA_", "LC_")
# A file that imports sglang anew, builds and captures, on a machine that has other things to do.
FILE_S = 600.0


def rig(
    judge: Judge,
    overall: Callable[[Sequence[Verdict]], Status],
    tell: Callable[[str], None],
    *,
    timeout_s: float,
    log: Path | None = None,
) -> Rig:
    """timeout_s, log: as for Pool."""
    return Rig(
        lacks=lacks,
        opened=partial(_opened, timeout_s, log),
        noting=partial(_opened, timeout_s, log, variables={"EAGLEEYE_WRITES": "1"}),
        judge=judge,
        overall=overall,
        source=sglang_path,
        overlay=_overlay,
        releases=_releases,
        alone=_alone,
        patience=max(timeout_s, FILE_S),
        named=_named,
        tell=tell,
    )


@contextmanager
def _opened(
    timeout_s: float, log: Path | None, target: Target, variables: Mapping[str, str] | None = None
) -> Iterator[Run]:
    with Pool(target, timeout_s=timeout_s, log=log, variables=variables) as pool:
        yield pool.run_fresh


def _overlay(target: Target, change: str, contents: Contents) -> Target:
    try:
        what = Overlay(release=release_under(target), change=change)
        path = overlay_of(sglang_path(target), what, contents, overlays_directory(target))
    except CannotMake as error:
        raise Refused(str(error)) from error
    return Target(str(path), target.engine)


def _alone(target: Target) -> tuple[Path, Mapping[str, str]]:
    path = os.pathsep.join(map(str, import_path(target)))
    variables = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_FAMILIES)}
    return interpreter(target), {**variables, "PYTHONPATH": path}


def _named(target: Target) -> str:
    overlay = overlay_at(Path(target.sglang)) if target.is_checkout else None
    sglang = str(overlay) if overlay else "a checkout" if target.is_checkout else target.sglang
    return f"sglang {sglang}{' without a GPU' if target.engine == 'emulated' else ''}"


def _releases(engine: str) -> tuple[str, ...]:
    releases = {installation.release for installation in installed()}
    if engine == "cuda":
        releases |= {installation.release for installation in own_environments()}
    return tuple(sorted(releases, key=release_order))
