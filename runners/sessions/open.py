"""Opens a live sglang for a setup: built and captured, then driven through cases.

Importing this module imports torch and sglang, which takes seconds, and touches no device: a worker imports it
once and forks a process for each session.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import time
from pathlib import Path

import torch

from repro.cases.case import Setup, Target
from runners.engines.active import engine
from runners.recording.observer import HarnessError, OpenSession, RunCase, Unsupported, Watch
from runners.releases import catalogue, model
from runners.releases.refusals import refused
from runners.sessions import replay
from runners.targets.overlay import overlay_at

engine.install()
# Runners whose way through flashinfer has stand-ins on the emulated engine.
FLASHINFER_STOOD_IN = ("draft", "decode", "verify", "draft_extend")
# Backends that run on a CPU in production, and are emulated nowhere.
OF_THE_CPU = ("intel_amx",)

with engine.importing():
    RELEASE = catalogue.present_release()
    catalogue.prepare(RELEASE, engine.device)
    ADAPTERS = catalogue.load_all(RELEASE)


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """Build workers and capture graphs. Unsupported, HarnessError, or whatever sglang raises, if that fails."""
    if setup.backend == "flashinfer":
        if target.engine == "emulated" and setup.runner not in FLASHINFER_STOOD_IN:
            raise Unsupported(f"flashinfer has no stand-in on the {setup.runner} runner's way")
        engine.accept_literal_cuda()
    if target.engine == "emulated" and setup.backend not in OF_THE_CPU:
        model.keep_sizes()
    if target.engine == "emulated" and setup.dtype == "bfloat16" and setup.backend == "triton":
        raise Unsupported("Triton's interpreter has no bfloat16 arithmetic")
    if not target.is_checkout and target.sglang != RELEASE:
        raise HarnessError(f"asked for sglang {target.sglang}, found {RELEASE} on the import path")
    for name, text in _facts(target).items():
        watch.fact(name, text)
    start = time.perf_counter()
    try:
        run = _opener(setup.runner)(setup, target, watch)
    except (Unsupported, HarnessError):
        raise
    except Exception as error:
        if words := refused(setup, error):
            raise Unsupported(words) from error
        raise
    watch.spent("build", time.perf_counter() - start)
    return run


def _opener(runner: str) -> OpenSession:
    if runner in catalogue.OWN_SESSIONS:
        own: OpenSession = importlib.import_module(catalogue.OWN_SESSIONS[runner]).open_session
        return own
    return _replays


def _replays(setup: Setup, target: Target, watch: Watch) -> RunCase:
    adapter = ADAPTERS.get(setup.runner) or catalogue.NotDriven(f"no adapter drives the {setup.runner} runner")
    if isinstance(adapter, catalogue.NotDriven | HarnessError):
        raise adapter
    watch.fact("adapter", adapter.name)
    return replay.open_session(adapter, setup, watch)


def _facts(target: Target) -> dict[str, str]:
    overlay = overlay_at(Path(target.sglang)) if target.is_checkout else None
    if overlay and overlay.release != RELEASE:
        raise HarnessError(f"asked for sglang {overlay}, found {RELEASE} on the import path")
    told = {"overlay": str(overlay)} if overlay else {}
    if os.environ.get("EAGLEEYE_PROBES", "0") not in ("", "0"):
        told["probes"] = "on"
    return told | {
        "sglang": RELEASE,
        "adapted": "yes" if catalogue.is_adapted(RELEASE) else "no: newer than every adapter",
        "engine": target.engine,
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"),
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if engine.device == "cuda" else platform.machine(),
    }
