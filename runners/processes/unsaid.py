"""Where a session is before it has said so itself, and how a run ended that could not tell."""

from __future__ import annotations

from repro.traces.trace import End, Termination
from runners.processes.causes import cuda_error
from runners.processes.trace_reader import Intake

# runners/processes/session_process.py says the same.
BUILDING = (-1, "build")
WAITING = (-1, "opened")
CLOSING = (-1, "close")


class NeverBegun(Exception):
    """The session ended, or fell silent, without having begun the case."""


def is_opening(intake: Intake) -> bool:
    return (intake.step, intake.path) in (BUILDING, CLOSING)


def unsaid(how: Termination, what: str, detail: str, printed: str, intake: Intake) -> End:
    """An end that the session could not tell: named by a CUDA error where what it printed speaks of one. NeverBegun if
    it had not come to the case."""
    place = (intake.step, intake.path)
    if place == WAITING:
        raise NeverBegun(f"one while it waited for a case: {what}")
    if place == CLOSING:
        raise NeverBegun(f"one while it closed the setup before: {what}")
    if place == BUILDING:
        # As with an exception there: what fails before sglang captures is our trouble (no memory, a kernel that
        # does not compile), not a finding.
        return intake.end(Termination.ERROR, f"{what} while building", f"{detail}\n{printed}")
    if how is Termination.CRASHED:
        what = cuda_error(printed) or what
    return intake.end(how, what, f"{detail}\n{printed}")


def goes_on(ended: End) -> bool:
    """Whether a run that ended badly left the process fit to open a session anew: the setup cannot be opened here,
    which was known before anything was built; or Python raised while the case was run, and the device was not what
    failed. What waits in the channel is let go."""
    if ended.how is Termination.UNSUPPORTED:
        return (ended.step, ended.path) == BUILDING
    return ended.how is Termination.RAISED and ended.step >= 0 and not cuda_error(ended.what)


def lacked_room(ended: End) -> bool:
    """Whether this may have ended as it did for the memory or the ports that other sessions held."""
    if ended.how in (Termination.DONE, Termination.UNSUPPORTED):
        return False
    return ended.step < 0 or "out of memory" in ended.what
