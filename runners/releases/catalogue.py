"""Which adapter drives which release: the last whose first release is not newer."""

from __future__ import annotations

import importlib
import re

from runners.engines import standins
from runners.releases.live import Adapter

# First release of each adapter, rising. A release newer than all is driven by the last, and its trace says so.
FIRST_RELEASES = ("0.5.10", "0.5.11", "0.5.13", "0.5.14")
# Native modules that these releases import whether or not there is a GPU.
NATIVE_IMPORTS = dict.fromkeys(("0.5.10", "0.5.11"), ("sgl_kernel", "sgl_kernel.kvcacheio"))
NEWEST_ADAPTED = "0.5.15.post1"


def version_key(release: str) -> tuple[int, ...]:
    """The numbers of a version, post releases last: 0.5.12.post1 -> (0, 5, 12, 1), 0.5.13rc1 -> (0, 5, 13)."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?", release)
    if match is None:
        raise ValueError(f"{release!r} is no sglang release number")
    return tuple(int(part) for part in match.groups() if part is not None)


def is_adapted(release: str) -> bool:
    """Whether an adapter was written for this release, rather than for an older one."""
    return version_key(release) <= version_key(NEWEST_ADAPTED)


def present_release() -> str:
    """The version of the sglang that this process would import."""
    release: str = importlib.import_module("sglang.version").__version__
    return release


def adapter_release(release: str) -> str:
    """The first release of the adapter that drives `release`. ValueError if it is older than all."""
    known = [first for first in FIRST_RELEASES if version_key(first) <= version_key(release)]
    if not known:
        raise ValueError(f"sglang {release} is older than {FIRST_RELEASES[0]}, the oldest release that can be driven")
    return known[-1]


def load(release: str, device: str) -> Adapter:
    """Import the adapter, and with it sglang and all of its models, for "cuda" or "cpu"."""
    first = adapter_release(release)
    if device == "cpu":
        standins.stand_in(*NATIVE_IMPORTS.get(first, ()))
    module = importlib.import_module("runners.releases.v" + first.replace(".", "_"))
    importlib.import_module("sglang.srt.models.registry")
    return Adapter(
        name=module.NAME,
        build=module.build,
        capture=module.capture,
        batch=module.batch,
        graph=module.graph,
        eager=module.eager,
        neutral=module.neutral,
    )
