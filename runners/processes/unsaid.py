"""Default positions of a session, and the End of a run that died without reporting one."""

from __future__ import annotations

from repro.traces.device_errors import cuda_error, device_fault
from repro.traces.trace import End, Termination
from runners.processes.causes import last_words
from runners.processes.trace_reader import Intake

# runners/processes/session_process.py says the same.
BUILDING = (-1, "build")
WAITING = (-1, "opened")
CLOSING = (-1, "close")
# Signals that a process dies of by itself; others are sent from outside.
_ABORTS = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")

# The kernel frees memory by this one.
_KILLED = "SIGKILL"
_WHILE_BUILDING = "while building"


class NeverBegun(Exception):
    """The session ended, or fell silent, without having begun the case. late: how the case before it has ended after
    all, where what failed is of its making; its step is for the caller to say."""

    def __init__(self, text: str, late: End | None = None) -> None:
        super().__init__(text)
        self.late = late


def is_opening(intake: Intake) -> bool:
    return (intake.step, intake.path) in (BUILDING, CLOSING)


def unsaid(how: Termination, what: str, printed: str, intake: Intake) -> End:
    """An end that the session could not tell: named by a CUDA error where what it printed speaks of one. NeverBegun if
    it had not come to the case."""
    place, fault = (intake.step, intake.path), device_fault(printed)
    detail = f"the session ended with {what}" if how is Termination.CRASHED else "the session was silent for too long"
    text = f"{detail}\n{last_words(printed)}"
    if place in (WAITING, CLOSING):
        doing, path = ("waited for a case", "rest") if place == WAITING else ("closed the setup before", "close")
        failed = fault or (what if what in _ABORTS else "")
        late = End(how=Termination.CRASHED, path=path, what=failed, detail=text) if failed else None
        raise NeverBegun(f"one while it {doing}: {failed or what}", late)
    if place == BUILDING and not fault:
        # As with an exception there: what fails before sglang captures is a harness error (no memory, a kernel that
        # does not compile), not a finding.
        return intake.end(Termination.ERROR, f"{what} {_WHILE_BUILDING}", text)
    if how is Termination.CRASHED:
        what = fault or cuda_error(printed) or what
    return intake.end(how, what, text)


def goes_on(ended: End) -> bool:
    """True if a run that ended badly left the process fit to open a session anew: the setup cannot be opened here,
    which was known before anything was built; or Python raised while the case was run, and the device was not what
    failed. What waits in the channel is let go."""
    if ended.how is Termination.UNSUPPORTED:
        return (ended.step, ended.path) == BUILDING
    return ended.how is Termination.RAISED and ended.step >= 0 and not cuda_error(ended.what)


def lacked_room(ended: End, *, others: bool) -> bool:
    """True if this may have ended as it did for the memory or the ports that other sessions held. others: True if this
    process has some; without them the kernel may still have ended what was being built, for the machine's memory."""
    if ended.how in (Termination.DONE, Termination.UNSUPPORTED) or device_fault(ended.what):
        return False
    if not others:
        return ended.what == f"{_KILLED} {_WHILE_BUILDING}"
    return ended.step < 0 or "out of memory" in ended.what
