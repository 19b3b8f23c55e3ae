"""The way of a session through sglang, as it is noted and as it is read again."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from repro.cases.case import Case, Request, Setup, Step, Target
from repro.suspects.way import BUILD, outer, way_of
from repro.traces.trace import PASSED, End, Termination, Trace
from runners.recording.observer import RunCase, Watch
from runners.sessions.passed import noted
from runners.sessions.replay import Silent

pytestmark = pytest.mark.emulated

SOURCE = """
class Runner:
    def __init__(self):
        self.slots = [0]

    def replay(self, count):
        def fill():
            self.slots[0] = count
        fill()
        if count > 1:
            raise ValueError("too many")
"""
SETUP = Setup(runner="toy", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(2,), slots=3)
CASE = Case(setup=SETUP, steps=(Step(requests=(Request(slot=1, seq_len=1, data=0),)),))
FILE = "sglang/srt/runner.py"


class Facts(Silent):
    def __init__(self) -> None:
        self.facts: dict[str, str] = {}

    def fact(self, name: str, text: str) -> None:
        self.facts[name] = text


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / FILE
    path.parent.mkdir(parents=True)
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("runner", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_functions_lines_and_callers_are_noted_by_what_is_under_way_also_of_a_run_that_raises(
    module: ModuleType,
) -> None:
    def opened(setup: Setup, target: Target, watch: Watch) -> RunCase:
        runner = module.Runner()

        def run(case: Case, watch: Watch) -> None:
            for step, count in enumerate((1, 2)):
                watch.at(step, "graph")
                runner.replay(count)

        return run

    watch = Facts()
    run = noted(opened)(SETUP, Target("0.5.23", "emulated"), watch)
    with pytest.raises(ValueError, match="too many"):
        run(CASE, watch)
    way = way_of(Trace(ended=End(how=Termination.DONE), facts=watch.facts))
    assert way and [ran.function for ran in way.during(BUILD)] == [(FILE, "Runner.__init__")]
    replay, fill = way.during("0 graph")
    assert (replay.short, fill.function, fill.callers) == (
        "replay",
        (FILE, "Runner.replay"),
        (((FILE, "Runner.replay"), 9),),
    )
    assert replay.last < fill.last and 11 not in replay.lines
    assert 11 in next(iter(way.during("1 graph"))).lines
    assert way.of_step(1, "eager") == way.of_step(1) == ["1 graph"]


def test_where_lines_are_noted_already_their_tracer_stays(module: ModuleType) -> None:
    def tracer(frame: object, event: str, argument: object) -> None:
        pass

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        noted(lambda setup, target, watch: lambda case, watch: None)(SETUP, Target("0.5.23", "emulated"), Silent())
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


def test_a_trace_without_it_has_no_way() -> None:
    assert way_of(Trace(ended=End(how=Termination.DONE), facts={})) is None
    assert PASSED not in Facts().facts


@pytest.mark.parametrize(
    ("name", "function"),
    [("fill", "fill"), ("fill.inner", "fill"), ("_Runner.replay.fill", "_Runner.replay"), ("Runner", "Runner")],
)
def test_what_is_defined_inside_of_a_function_is_its_own(name: str, function: str) -> None:
    assert outer(name) == function
