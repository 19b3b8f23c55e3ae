"""The adapter of each runner and release: the last whose first release is not newer."""

from __future__ import annotations

import importlib
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from repro.cases.release_list import NEWEST, OLDEST
from repro.cases.releases import release_order
from repro.cases.runner_facts import RUNNER_FACTS, TOY
from runners.engines.standins import native_imports
from runners.recording.observer import HarnessError, Unsupported
from runners.releases import own_models
from runners.releases.backends import fa3, flashinfer
from runners.releases.live import Adapter
from runners.releases.starting import machine
from runners.targets.bundle import xgrammar_standin

# Native modules that releases from here on import whether or not there is a GPU.
NATIVE_IMPORTS = {"0.5.10": ("sgl_kernel", "sgl_kernel.kvcacheio"), "0.5.13": (), "0.5.16": ("sgl_kernel",)}
# What a tree counts as that does not say which release it is of.
UNKNOWN = "9999"


class NotDriven(Unsupported):
    """This release has no such runner, or none that an adapter drives. The text says why."""


def is_adapted(release: str) -> bool:
    """True if an adapter was written for this release, rather than for an older one."""
    return release_order(release) <= release_order(NEWEST)


def present_release() -> str:
    """The version of the sglang that this process would import, as a release number."""
    return numbered(importlib.import_module("sglang.version").__version__)


def numbered(version: str) -> str:
    """The release number that a version counts as: without what a checkout adds ("0.5.24.dev3+gabc"). A tree that does
    not know its version ("0.0.0.dev0") is newer than all releases."""
    plain = version.partition("+")[0]
    if plain.startswith("0.0.0"):
        return UNKNOWN
    try:
        release_order(plain)
    except ValueError:
        match = re.match(r"\d+(\.\d+)*", plain)
        return match.group() if match else UNKNOWN
    return plain


def latest(release: str, firsts: tuple[str, ...], what: str) -> str:
    """The last of these releases that is not newer. NotDriven if all are."""
    known = [first for first in firsts if release_order(first) <= release_order(release)]
    if not known:
        raise NotDriven(f"sglang {release} is older than {firsts[0]}, the oldest release in which {what} can be driven")
    return known[-1]


def prepare(release: str, device: str) -> None:
    """Import sglang and all of its models, for "cuda" or "cpu"."""
    if device == "cpu":
        native_imports.hide("sgl_kernel", "flashinfer")
        native_imports.stand_in(*NATIVE_IMPORTS[latest(release, tuple(NATIVE_IMPORTS), "anything")])
        xgrammar_standin.stand_in()
    else:
        # Where they are not installed, models only name them.
        native_imports.stand_in_if_absent(fa3.KERNELS)
    # These two first: imported the other way round, the speculative modules of releases before 0.5.13 meet themselves.
    importlib.import_module("sglang.srt.server_args")
    importlib.import_module("sglang.srt.managers.tp_worker")
    if device != "cpu":  # by now sglang has asked whether it can call them
        native_imports.stand_in_if_absent(*native_imports.NOT_BUNDLED)
    importlib.import_module("sglang.srt.models.registry")
    own_models.require()
    if device == "cpu":
        flashinfer.load_backends()
        fa3.load_backend()
    else:
        machine.remember(importlib.import_module("sglang.srt.utils.common"))


def load(release: str, runner: str) -> Adapter:
    """The adapter for a runner that replays graphs. NotDriven if this release has no such runner."""
    part = parts(release, runner)
    return Adapter(
        name=adapter_name(release, runner),
        family=part("FAMILY"),
        build=part("build"),
        capture=part("capture"),
        batch=part("batch"),
        graph=part("graph"),
        eager=part("eager"),
        neutral=part("neutral"),
        prepare=part("prepare", None),
        accepted=part("accepted", None),
        commit=part("commit", None),
        decode=part("DECODE", None),
    )


def parts(release: str, runner: str) -> Callable[..., Any]:
    """The functions that drive this runner in this release, by name: of the newest module of exceptions that is not
    newer, else of the runner's family, which is data, else of its adapter. NotDriven if this release does not have the
    runner."""
    must_have(release, runner)
    folder = _folder(runner)
    exceptions = [module_of(folder, first) for first in _not_newer(release, folder)[-1:]]
    modules = [*exceptions, *(_import(f"{__package__}.{folder}.{name}") for name in ("family", "adapter"))]

    def part(name: str, *default: Any) -> Any:
        """AttributeError where nothing has this name and there is no default."""
        owner = next((module for module in modules if name in vars(module)), modules[-1])
        return getattr(owner, name, *default)

    return part


def must_have(release: str, runner: str) -> None:
    """NotDriven if this release does not have the runner, or nothing drives it there."""
    facts = RUNNER_FACTS[runner]
    if facts.until and release_order(facts.until) < release_order(release):
        raise NotDriven(f"sglang {release} is newer than {facts.until}, the last release that has the {runner} runner")
    since = facts.since or OLDEST
    if release_order(release) < release_order(since):
        why = f"the oldest release in which the {runner} runner can be driven"
        raise NotDriven(f"sglang {release} is older than {since}, {why}")


def adapter_name(release: str, runner: str) -> str:
    """The newest of what is there for this release: of the workers' generations and of the runner's exceptions."""
    firsts = (*_not_newer(release, "workers"), *_not_newer(release, _folder(runner)))
    return max(firsts, key=release_order)


def _not_newer(release: str, folder: str) -> list[str]:
    return [first for first in first_releases(folder) if release_order(first) <= release_order(release)]


def first_releases(folder: str) -> tuple[str, ...]:
    """The first release of each module of exceptions in this package, rising: what they are named after. A release
    newer than all is driven by the last, and its trace says so."""
    names = (path.stem for path in Path(__file__).parent.joinpath(*folder.split(".")).glob("v*_*.py"))
    return tuple(sorted((name.removeprefix("v").replace("_", ".") for name in names), key=release_order))


def _folder(runner: str) -> str:
    return f"adapters.{RUNNER_FACTS[runner].adapters or runner}"


def load_all(release: str) -> dict[str, Adapter | NotDriven | HarnessError]:
    """Per runner its adapter, or why it has none: a runner that cannot be imported must not keep the others from
    running."""
    adapters: dict[str, Adapter | NotDriven | HarnessError] = {}
    for runner, facts in RUNNER_FACTS.items():
        if not facts.graph or runner == TOY:
            continue
        try:
            adapters[runner] = load(release, runner)
        except NotDriven as reason:
            adapters[runner] = reason
        except Exception as error:  # becomes the end of every run of this runner; the log has all of it
            traceback.print_exc()
            adapter = f"the {runner} runner's adapter {adapter_name(release, runner)}"
            text = f"{adapter} cannot be imported: {type(error).__name__}: {error}"
            adapters[runner] = HarnessError(text)
    return adapters


def module_of(folder: str, first: str) -> ModuleType:
    """The module of this folder for releases from `first` on."""
    return _import(f"{__package__}.{folder}.v" + first.replace(".", "_"))


def _import(name: str) -> ModuleType:
    return importlib.import_module(name)
