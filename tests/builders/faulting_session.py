"""Live sglang on a device of which a kernel fails: nobody hears of it until somebody waits for the device, or copies
from it. tests/builders/faults.py has the cases."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from repro.cases.case import Case, Setup, Target
from runners.engines import staging
from runners.engines.active import engine
from runners.recording.observer import RunCase, Watch
from runners.sessions import memory, open, serving
from runners.sessions.observe.launch import Launch
from runners.sessions.observe.outputs import PassOutputs
from tests.builders.faults import SLOTS_OF_FAULTY, place_of
from tests.builders.misbehaving import ILLEGAL

close_session = open.close_session
_Graph: Any = engine.Graph
# By the place: the function that says so.
_SAYS_SO: dict[str, tuple[Any, str]] = {
    "the next wait": (engine, "synchronize"),
    "what is recorded": (staging, "_array"),
    "the launch, as it is recorded": (Launch, "launched"),
    "a buffer that cannot be read": (PassOutputs, "after"),
    "what is put back": (memory, "restore"),
    "another history": (memory, "copied"),
    "closing": (serving, "let_go"),
}


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    if setup.slots == SLOTS_OF_FAULTY:
        memory.copied = _fails
    run = open.open_session(setup, target, watch)

    def run_case(case: Case, watch: Watch) -> None:
        place = place_of(case)
        if place == "the first launch":
            _Graph.replay = _fails
        elif place:
            _break_by_launch(*_SAYS_SO[place])
        run(case, watch)

    return run_case


def _break_by_launch(owner: Any, name: str) -> None:
    real = _Graph.replay

    def replayed(*args: Any) -> Any:
        setattr(owner, name, _fails)
        return real(*args)

    _Graph.replay = replayed


def _fails(*_: Any, **__: Any) -> NoReturn:
    raise torch.AcceleratorError(ILLEGAL)
