"""The session process: opens a session for one setup, then runs cases until the pool closes its end or one goes wrong.

Asked to open again, it closes the session and opens one for the new setup, where this kind of session can be closed.
Asked for a case without steps, it opens the session ahead and waits: its messages lie in the channel until a case is
run.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from repro.cases.case import Case, Target
from repro.cases.codec import case_from_json
from repro.traces.device_errors import device_fault, fault_in
from repro.traces.trace import End, Termination
from runners.processes.causes import exception_detail, exception_name, one_line
from runners.processes.frame_writer import Recorder
from runners.processes.unsaid import goes_on
from runners.processes.wire import read_exactly, receive
from runners.recording.observer import HarnessError, OpenSession, RunCase, Unsupported

# Lets go of the session that was opened, so that another can be opened. It raises where something stayed.
Close = Callable[[], None]
# Makes, of what a pool asks to be changed and what opens ordinary sessions, what opens sessions with that change.
Changed = Callable[[Mapping[str, Any], OpenSession], OpenSession]


# What must not be let go of once a kernel has failed. To free pinned memory that a copy was under way to asks the
# device, and a destructor that raises ends the process, before it could say how the case ended.
_held: list[object] = []


def _unchanging(change: Mapping[str, Any], open_session: OpenSession) -> OpenSession:
    raise Unsupported(f"sessions of this kind cannot be changed: {', '.join(change)}")


def _unclosable() -> None:
    raise HarnessError("sessions of this kind serve one setup")


def _unrehearsed(run: Callable[[], None]) -> None:
    """For sessions that compile nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of sessions."""

    open_session: OpenSession
    changed: Changed
    close: Close
    rehearse: Callable[[Callable[[], None]], None]  # runs an opening to come in a process of its own

    @classmethod
    def of(cls, module: Any) -> Kind:
        """The sessions of a module that has open_session, and perhaps changed, close_session and rehearse."""
        return cls(
            open_session=module.open_session,
            changed=getattr(module, "changed", _unchanging),
            close=getattr(module, "close_session", _unclosable),
            rehearse=getattr(module, "rehearse", _unrehearsed),
        )

    def opened(self, head: Mapping[str, Any], case: Case, target: Target, watch: Recorder) -> RunCase | End:
        """The function that runs the setup's cases, or how the opening ended."""
        try:
            watch.at(-1, "build")
            change = head.get("change")
            opening = self.changed(change, self.open_session) if change else self.open_session
            if head["cold"]:
                self.rehearse(partial(_rehearsal, opening, case, target))
            return opening(case.setup, target, watch)
        except BaseException as error:  # becomes the trace's end
            return not_opened(error, watch)

    def closed(self, watch: Recorder) -> None:
        """Close the session that is open. It raises if the kind has none that close."""
        watch.at(-1, "close")
        start = time.perf_counter()
        self.close()
        watch.spent("close", time.perf_counter() - start)


def session(channel: int, target: Target, kind: Kind) -> None:
    """Open a session for the setup that is asked for and run cases; close it where another is asked for.

    No case is run behind one that does not end well. Most often the process ends, too: after a CUDA error, say, the
    context would blame the next case. It also ends where a session cannot be closed.
    """
    watch = Recorder(channel)
    run_case: RunCase | None = None
    opened: RunCase | End | None = None
    built = False
    while (frame := receive(partial(read_exactly, channel))) is not None:
        case, watch.reference_steps = case_from_json(frame.head["case"]), frame.head["asked"]
        if frame.head["open"]:
            if built:
                run_case = opened = None  # nothing here refers to the last setup while it is freed
                kind.closed(watch)
            built = True
            opened = kind.opened(frame.head, case, target, watch)
            if isinstance(opened, End):
                watch.ended(opened)
                if not goes_on(opened):
                    return
                continue
            run_case = opened
        if run_case is None:
            continue  # it was sent before the one that ended badly had
        if not case.steps:
            watch.at(-1, "opened")
            continue
        ended = run(run_case, case, watch)
        watch.ended(ended)
        if ended.how is not Termination.DONE:
            if not goes_on(ended):
                _held.append(run_case)
                return
            run_case = None


def _rehearsal(opening: OpenSession, case: Case, target: Target) -> None:
    unheard = Recorder(os.open(os.devnull, os.O_WRONLY))
    opening(case.setup, target, unheard)(case, unheard)


def run(run_case: RunCase, case: Case, watch: Recorder) -> End:
    """Run one case; whatever it raises becomes how it ended."""
    sys.stdout.flush()
    watch.printed(os.fstat(2).st_size)
    watch.at(0, "input")
    try:
        run_case(case, watch)
    except BaseException as error:  # becomes the trace's end
        return _raised(error, watch)
    return End(how=Termination.DONE, step=watch.step, path=watch.path)


def not_opened(error: BaseException, watch: Recorder) -> End:
    """The end of a session that could not be opened: an error of sglang's, with the part that was being built, or an
    error of the harness."""
    return _raised(error, watch) if watch.path != "build" or fault_in(error) else _not_run(error, watch)


def _raised(error: BaseException, watch: Recorder) -> End:
    """A kernel that has failed is sglang's, wherever it surfaced."""
    fault = fault_in(error)
    if fault is not None:
        _held.append(error)  # and with it what the frames hold that it came through
    if isinstance(error, Unsupported | HarnessError):
        if fault is None:
            return _not_run(error, watch)
        error = fault
    what = device_fault(str(fault)) if fault else exception_name(error)
    return End(how=Termination.RAISED, step=watch.step, path=watch.path, what=what, detail=exception_detail(error))


def _not_run(error: BaseException, watch: Recorder) -> End:
    how = Termination.UNSUPPORTED if isinstance(error, Unsupported) else Termination.ERROR
    what = str(error) if isinstance(error, Unsupported | HarnessError) else one_line(error)
    return End(how=how, step=watch.step, path=watch.path, what=what, detail=exception_detail(error))
