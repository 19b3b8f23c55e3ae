"""Which adapter drives which runner of which release: the last whose first release is not newer."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from types import ModuleType

from repro.cases.release_list import NEWEST
from repro.cases.releases import release_order
from repro.cases.runner_facts import RUNNER_FACTS, TOY
from runners.engines.standins import native_imports
from runners.recording.observer import HarnessError, Unsupported
from runners.releases import flashinfer
from runners.releases.live import Adapter
from runners.targets.bundle import xgrammar_standin

# The first release of each generation of workers (runners/releases/workers/present.py); earlier ones are built by
# their runners' adapters themselves.
WORKERS = ("0.5.16", "0.5.17", "0.5.21")
# Native modules that releases from here on import whether or not there is a GPU.
NATIVE_IMPORTS = {"0.5.10": ("sgl_kernel", "sgl_kernel.kvcacheio"), "0.5.13": (), "0.5.16": ("sgl_kernel",)}


class NotDriven(Unsupported):
    """This release has no such runner, or none that an adapter drives. The text says why."""


def is_adapted(release: str) -> bool:
    """Whether an adapter was written for this release, rather than for an older one."""
    return release_order(release) <= release_order(NEWEST)


def present_release() -> str:
    """The version of the sglang that this process would import."""
    release: str = importlib.import_module("sglang.version").__version__
    return release


def latest(release: str, firsts: tuple[str, ...], what: str) -> str:
    """The last of these releases that is not newer. NotDriven if all are."""
    known = [first for first in firsts if release_order(first) <= release_order(release)]
    if not known:
        raise NotDriven(f"sglang {release} is older than {firsts[0]}, the oldest release in which {what} can be driven")
    return known[-1]


def prepare(release: str, device: str) -> None:
    """Import sglang and all of its models, for "cuda" or "cpu"."""
    if device == "cpu":
        native_imports.stand_in(*NATIVE_IMPORTS[latest(release, tuple(NATIVE_IMPORTS), "anything")])
        xgrammar_standin.stand_in()
    else:
        # FlashAttention 3 is the largest part of sgl_kernel, and bundles leave it out; models only name it.
        native_imports.stand_in_if_absent("sgl_kernel.flash_ops")
    # These two first: imported the other way round, the speculative modules of releases before 0.5.13 meet themselves.
    importlib.import_module("sglang.srt.server_args")
    importlib.import_module("sglang.srt.managers.tp_worker")
    importlib.import_module("sglang.srt.models.registry")
    if device == "cpu":
        flashinfer.load_backend()


def load(release: str, runner: str) -> Adapter:
    """The adapter for a runner that replays graphs. NotDriven if this release has none."""
    module = load_own(release, runner)
    return Adapter(
        name=module.NAME,
        # A module whose runner takes other batches than newer ones has a family of its own.
        family=getattr(module, "FAMILY", None) or _import(f"runners.releases.{_folder(runner)}.family").FAMILY,
        build=module.build,
        capture=module.capture,
        batch=module.batch,
        graph=module.graph,
        eager=module.eager,
        neutral=module.neutral,
        prepare=getattr(module, "prepare", None),
    )


def load_own(release: str, runner: str) -> ModuleType:
    """The module with what drives this runner in this release. NotDriven if there is none."""
    until = RUNNER_FACTS[runner].until
    if until and release_order(until) < release_order(release):
        raise NotDriven(f"sglang {release} is newer than {until}, the last release that has the {runner} runner")
    folder = _folder(runner)
    first = latest(release, first_releases(folder), f"the {runner} runner")
    return module_of(folder, first)


def first_releases(folder: str) -> tuple[str, ...]:
    """The first release of each adapter in this folder, rising: what its modules are named after. A release newer than
    all is driven by the last, and its trace says so."""
    names = (path.stem for path in Path(__file__).with_name(folder).glob("v*_*.py"))
    return tuple(sorted((name.removeprefix("v").replace("_", ".") for name in names), key=release_order))


def _folder(runner: str) -> str:
    return RUNNER_FACTS[runner].adapters or runner


def load_all(release: str) -> dict[str, Adapter | NotDriven | HarnessError]:
    """Per runner its adapter, or why there is none: what cannot be imported must not keep the others from running."""
    found: dict[str, Adapter | NotDriven | HarnessError] = {}
    for runner, facts in RUNNER_FACTS.items():
        if not facts.graph or runner == TOY:
            continue
        try:
            found[runner] = load(release, runner)
        except NotDriven as reason:
            found[runner] = reason
        except Exception as error:  # becomes the end of every run of this runner; the log has all of it
            traceback.print_exc()
            text = f"the {runner} runner's adapter cannot be imported: {type(error).__name__}: {error}"
            found[runner] = HarnessError(text)
    return found


def module_of(folder: str, first: str) -> ModuleType:
    """The module of this folder for releases from `first` on."""
    return _import(f"runners.releases.{folder}.v" + first.replace(".", "_"))


def _import(name: str) -> ModuleType:
    return importlib.import_module(name)
