"""A session that closes its setup behind its last case: what fails then is of that case's making."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from repro.cases.case import Case
from repro.traces.trace import End
from runners.processes.trace_reader import Intake
from runners.processes.unsaid import CLOSING, NeverBegun
from runners.processes.warm import Open
from runners.processes.wire import BadFrame, Silence, receive


def ended_in_closing(
    session: Open, send: Callable[[Open, Case, float], int], died: Callable[[Open, Intake], End], deadline: float
) -> End | None:
    """The end of the last case of a session that has nothing to do, if closing shows one; None if closing went well.
    Asked to open its setup anew, a session closes it first: it is at that afterwards. send: asks it; died: what is made
    of its end, which raises NeverBegun."""
    intake = Intake(facts={}, step=CLOSING[0], path=CLOSING[1])
    intake.mark, session.opening = session.mark, False
    send(session, Case(setup=session.setup, steps=()), deadline)
    try:
        while (intake.step, intake.path) == CLOSING:
            frame = receive(partial(session.inbox.read, deadline=deadline))
            if frame is None:
                died(session, intake)
            else:
                intake.take(frame)
    except NeverBegun as gone:
        return replace(gone.late, step=len(session.ran[-1].steps) - 1) if gone.late else None
    except (Silence, BadFrame):
        return None
    return None
