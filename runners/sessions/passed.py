"""The functions and lines of sglang that a session runs, by what is under way, and who calls them. Asked for together
with writes (writes.py), as it costs time: what a failing run went through is where its cause is looked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from triton.runtime import interpreter as triton_interpreter

from repro.cases.case import Case, Setup, Target
from repro.traces.trace import PASSED
from runners.recording.observer import OpenSession, RunCase, Watch
from runners.sessions.mutation import Phases, below_import_root

# A function that was called so often without a new line is only counted from then on.
_QUIET = 20
_Key = tuple[str, str]  # a file of sglang, and a qualified name in it


@dataclass(slots=True)
class _Calls:
    """The calls of a function in a phase. Mutable. last: the place of its last call among all. quiet: calls without a
    new line. callers: functions, each with the line of the call."""

    last: int = 0
    quiet: int = 0
    lines: set[int] = field(default_factory=set)
    callers: set[tuple[_Key, int]] = field(default_factory=set)


class _Passed:
    """Notes what runs, while it is listening. Mutable."""

    def __init__(self) -> None:
        self._phase, self._count = "-1 build", 0
        self._keys: dict[CodeType, _Key | None] = {}
        self._phases: dict[str, dict[_Key, _Calls]] = {}
        # The emulated engine's launcher, in whose code kernels are not seen.
        self._launch = getattr(triton_interpreter.GridExecutor.__call__, "__code__", None)

    def at(self, step: int, path: str) -> None:
        self._phase = f"{step} {path}"

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Not where lines are noted already (mutation.py): a thread has one tracer."""
        if sys.gettrace() is not None:
            yield
            return
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        launch = code is self._launch
        if launch:
            code = next(iter(frame.f_locals.values())).fn.__code__
        if code not in self._keys:
            self._keys[code] = _key(code)
        key = self._keys[code]
        if key is None:
            return None
        calls = self._note(key, frame)
        calls.quiet += 1
        if launch or calls.quiet > _QUIET:
            return None
        calls.lines.add(frame.f_lineno)

        def line(frame: FrameType, event: str, argument: object) -> Any:
            if frame.f_lineno not in calls.lines:
                calls.lines.add(frame.f_lineno)
                calls.quiet = 0
            return line

        return line

    def _note(self, key: _Key, frame: FrameType) -> _Calls:
        self._count += 1
        calls = self._phases.setdefault(self._phase, {}).setdefault(key, _Calls())
        calls.last = self._count
        caller = frame.f_back
        while caller is not None and not self._keys.get(caller.f_code):
            caller = caller.f_back
        if caller is not None and (of := self._keys[caller.f_code]):
            calls.callers.add((of, caller.f_lineno))
        return calls

    def to_json(self) -> str:
        """The form that repro/suspects/way.py reads."""
        numbers: dict[_Key, int] = {}

        def row(key: _Key, calls: _Calls) -> list[Any]:
            callers = [[numbers.setdefault(caller, len(numbers)), line] for caller, line in sorted(calls.callers)]
            return [numbers.setdefault(key, len(numbers)), calls.last, sorted(calls.lines), callers]

        phases = {phase: [row(*item) for item in functions.items()] for phase, functions in self._phases.items()}
        return json.dumps({"functions": list(numbers), "phases": phases}, separators=(",", ":"))


def _key(code: CodeType) -> _Key | None:
    """None of code that is not sglang's, or that is no function's."""
    file = below_import_root(code.co_filename)
    is_function = "<module>" not in code.co_qualname
    return (file, code.co_qualname.replace(".<locals>", "")) if file and is_function else None


def noted(open_session: OpenSession) -> OpenSession:
    """The same session, whose way through sglang is a fact of each run."""

    def opened(setup: Setup, target: Target, watch: Watch) -> RunCase:
        passed = _Passed()

        def seen(run: Callable[[Watch], Any], watch: Watch) -> Any:
            try:
                with passed.listening():
                    return run(Phases(watch, passed.at))
            finally:  # what ran before an error ran
                watch.fact(PASSED, passed.to_json())

        run_case = seen(lambda watch: open_session(setup, target, watch), watch)
        passed.at(-1, "opened")

        def run(case: Case, watch: Watch) -> None:
            seen(lambda watch: run_case(case, watch), watch)

        return run

    return opened
