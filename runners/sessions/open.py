"""Opens a live sglang for a setup: built and captured, then driven through cases.

Importing this module imports torch and sglang, which takes seconds, and touches no device: a worker imports it
once and forks a process for each session.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case, Setup, Target, engine_refuses
from repro.cases.families import family_facts, is_recurrent
from repro.cases.releases import release_order
from repro.cases.runner_facts import RUNNER_FACTS
from runners.engines import building
from runners.engines.active import engine
from runners.recording.observer import HarnessError, OpenSession, RunCase, Unsupported, Watch
from runners.releases import catalogue, model
from runners.releases.adapters.stood_in import stood_in
from runners.releases.backends import fa3, trtllm
from runners.releases.options import lora
from runners.releases.reference import rounding
from runners.releases.starting import native, traced
from runners.sessions import memory, mutation, passed, replay, serving, writes
from runners.sessions.attribution import not_built
from runners.sessions.errors import device_waited
from runners.targets.compiled import COLD
from runners.targets.overlay import overlay_at

if os.environ.get(COLD):
    building.begin(native.early(os.environ[COLD]))
engine.install()
# A session of a sglang that is changed in one place, or whose lines are noted: what the worker asks for by this name.
changed = mutation.changed
# Closes the session that was opened, so that another can be opened in this process.
close_session = serving.close_session
# Begins to build the kernels that a case will ask for.
rehearse = building.rehearse

with engine.importing():
    RELEASE = catalogue.present_release()
    catalogue.prepare(RELEASE, engine.device)
    ADAPTERS = catalogue.load_all(RELEASE)
    engine.start_compilers(traced.ahead)
    memory.prepare()
    rounding.prepare()


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """Build workers and capture graphs. Unsupported, HarnessError, or whatever sglang raises, if that fails."""
    kernels = BACKEND_FACTS[setup.backend]
    if refusal := engine_refuses(setup, target.engine):
        raise Unsupported(refusal)
    ranked = setup.dp_attention and RUNNER_FACTS[setup.runner].serves
    # Made there by name: up to 0.5.19 the states of drafts, and of batches with adapters, up to 0.5.15 the places of a
    # layered draft's, and up to 0.5.13 the inputs of a rank without requests.
    adapted = setup.enable_lora and release_order(RELEASE) < release_order(lora.ANYWHERE_SINCE)
    if kernels.names_cuda or is_recurrent(setup) or family_facts(setup).layered or ranked or adapted:
        engine.accept_literal_cuda()
    if kernels.on_sm100:
        trtllm.listen()
    elif kernels.reads_pages:
        fa3.listen()
    if target.engine == "emulated" and not kernels.on_cpu:
        model.keep_sizes()
    if not target.is_checkout and target.sglang != RELEASE:
        raise HarnessError(f"asked for sglang {target.sglang}, found {RELEASE} on the import path")
    for name, text in _facts(target).items():
        watch.fact(name, text)
    _keep_frozen()
    start = time.perf_counter()
    with device_waited():
        try:
            run = _opener(setup.runner)(setup, target, watch)
        except (Unsupported, HarnessError):
            raise
        except Exception as error:
            with _naming_the_adapter(setup.runner):
                not_built(error, setup, watch)
            raise
    watch.spent("build", time.perf_counter() - start)

    def run_and_wait(case: Case, watch: Watch) -> None:
        with device_waited():
            run(case, watch)

    return run_and_wait


@contextlib.contextmanager
def _naming_the_adapter(runner: str) -> Iterator[None]:
    """Name the adapter that no longer fits, for a release newer than every adapter."""
    try:
        yield
    except HarnessError as error:
        if catalogue.is_adapted(RELEASE):
            raise
        adapter = catalogue.adapter_name(RELEASE, runner)
        raise HarnessError(f"the {runner} runner's adapter {adapter}: {error}") from error


def _keep_frozen() -> None:
    """Keep the collector off what the worker has imported and frozen. Behind a capture sglang unfreezes everything and
    collects: half a second over a million objects, and their pages are no longer shared with the worker."""
    # The same for a capture: nothing is collected meanwhile.
    gc.freeze, gc.unfreeze = gc.disable, gc.enable


def _opener(runner: str) -> OpenSession:
    opener = _plain_opener(runner)
    return passed.noted(opener) if writes.ASKED else opener


def _plain_opener(runner: str) -> OpenSession:
    facts = RUNNER_FACTS[runner]
    if facts.graph:
        return _replays
    catalogue.must_have(RELEASE, runner)  # its module imports parts of sglang that other releases do not have
    opener: OpenSession = importlib.import_module(f"runners.sessions.{facts.session}").open_session
    return opener


def _replays(setup: Setup, target: Target, watch: Watch) -> RunCase:
    adapter = ADAPTERS.get(setup.runner) or catalogue.NotDriven(f"no adapter drives the {setup.runner} runner")
    if isinstance(adapter, catalogue.NotDriven | HarnessError):
        raise adapter
    watch.fact("adapter", adapter.name)
    watch.fact("objects", stood_in(setup.runner))
    return replay.open_session(adapter, setup, watch)


def _facts(target: Target) -> dict[str, str]:
    overlay = overlay_at(Path(target.sglang)) if target.is_checkout else None
    # Of a checkout's, the release is its path.
    if overlay and "/" not in overlay.release and overlay.release != RELEASE:
        raise HarnessError(f"asked for sglang {overlay}, found {RELEASE} on the import path")
    facts = {"overlay": str(overlay)} if overlay else {}
    if os.environ.get("EAGLEEYE_PROBES", "0") not in ("", "0"):
        facts["probes"] = "on"
    return facts | {
        "sglang": RELEASE,
        "adapted": "yes" if catalogue.is_adapted(RELEASE) else "no: newer than every adapter",
        "engine": target.engine,
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"),
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if engine.device == "cuda" else platform.machine(),
    }
