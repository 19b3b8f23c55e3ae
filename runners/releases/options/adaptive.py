"""Workers that change their number of draft steps while they serve (speculative_adaptive): for each number sglang
builds attention backends and graph runners of its own, and switches between these states."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numpy as np

from repro.cases.case import Setup
from repro.traces.trace import Array
from runners.recording.observer import Unsupported
from runners.releases import attention_calls
from runners.releases.live import Live

# The fields of sglang's SpecRuntimeState that hold graph runners.
DRAFT, DRAFT_EXTEND, TARGET = "cuda_graph_runner", "cuda_graph_runner_for_draft_extend", "target_graph_runner"
# What the draft worker's capturing is called; some releases have both.
_CAPTURING = ("_capture_cuda_graphs", "init_cuda_graphs")
# The class of the target's graph runner.
_CLASSES = ("CudaGraphRunner", "DecodeCudaGraphRunner")
# Where the target's model runner keeps its graph runner.
_OF_TARGET = ("decode_cuda_graph_runner", "graph_runner")
# In rounds the last one's accepted drafts decide on the next one's steps, for lone requests and others by themselves.
_AT_ONCE = {"ema_alpha": 1.0, "warmup_batches": 0, "update_interval": 1, "down_hysteresis": 0.0, "up_hysteresis": 0.0}
_KEEPS = "this release's workers keep their number of draft steps"
_switches: WeakKeyDictionary[Any, Array] = WeakKeyDictionary()


def arguments(setup: Setup, folder: Path, known: Container[str]) -> dict[str, Any]:
    """The arguments of ServerArgs, which knows these names, for a worker that starts with another number of steps.
    folder: for the file that names both. Unsupported where sglang has no such workers."""
    if not setup.adaptive:
        return {}
    if "speculative_adaptive" not in known:
        raise Unsupported(_KEEPS)
    config = folder / "adaptive.json"
    steps = {"candidate_steps": sorted((setup.adaptive, setup.num_steps)), **_AT_ONCE}
    config.write_text(json.dumps({**steps, "1": steps, "2": steps}))  # by batch size since 0.5.13
    return {
        "speculative_adaptive": True,
        "speculative_adaptive_config": str(config),
        "speculative_num_steps": setup.adaptive,
        "speculative_num_draft_tokens": setup.adaptive + 1,
    }


def captured(live: Live, field: str, capture: Callable[[], Any], verifier: Callable[[Live, Any], Any]) -> Any:
    """The graph runner of the setup's number of steps; of a worker that adapts once it has switched to that, back, and
    to it again. field: the field of a state that holds it. capture: makes one of the present number of steps. verifier:
    makes a worker of this class around the live ones."""
    setup, draft, target = live.setup, live.draft, live.target.model_runner
    if not setup.adaptive:
        return capture()

    # Imported here: it imports what the engine has to prepare.
    module = importlib.import_module("sglang.srt.speculative.eagle_worker_v2")
    if not hasattr(module.EAGLEWorkerV2, "apply_runtime_state"):
        raise Unsupported(_KEEPS)

    def capture_draft(*_: object, **__: object) -> None:
        draft.cuda_graph_runner = draft.cuda_graph_runner_for_draft_extend = None
        steps = draft.speculative_num_steps
        if field == DRAFT_EXTEND or (field == DRAFT and steps > 1):  # as sglang has it: a single step only samples
            with attention_calls.of_the_runner(steps == setup.num_steps):
                setattr(draft, field, capture())

    for name in _CAPTURING:
        if hasattr(draft, name):
            setattr(draft, name, capture_draft)
    of_target = next(name for name in _OF_TARGET if hasattr(target, name))
    with attention_calls.of_the_runner(False):
        capture_draft()
        setattr(target, of_target, capture() if field == TARGET else None)
    # The target's are captured where they are what is driven.
    spared = () if field == TARGET else set(_CLASSES) & vars(module).keys()
    without = patch.dict(vars(module), dict.fromkeys(spared, _no_runner))
    with without, attention_calls.of_the_runner(field == TARGET):
        worker = verifier(live, module.EAGLEWorkerV2)
        if not worker.adaptive_controller._states:  # up to 0.5.13 it makes them as it is constructed
            worker.init_cuda_graphs()
    switched = _switched(worker, draft, (setup.num_steps, setup.adaptive, setup.num_steps))
    runner = getattr(target, of_target) if field == TARGET else getattr(draft, field)
    setattr(target, of_target, None)  # an eager pass asks it for its graphs
    _switches[runner] = switched
    return runner


def _switched(worker: Any, draft: Any, numbers: Iterable[int]) -> Array:
    """The switches, once the worker has made them: rows of switches()."""
    rows = []
    for steps in numbers:
        worker.adaptive_controller._activate(steps)
        tokens = [each.speculative_num_draft_tokens - 1 for each in (worker, draft)]
        rows.append([steps, worker.speculative_num_steps, draft.speculative_num_steps, *tokens])
    return np.array(rows)


def switches(runner: Any) -> Array | None:
    """The switches of an adaptive worker's runner: by switch the number of steps that was asked for, and what worker
    and draft worker go by then: steps, and draft tokens but one. [3, 5]."""
    return _switches.get(runner)


def _no_runner(*_: object, **__: object) -> None:
    return None
