"""The worker process: imports what is heavy once, then forks one session process for each session that is asked for.

Replies go over sockets of their own and never over standard output, because sglang prints; what it prints is the log.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import math
import os
import resource
import signal
import socket
import sys
import time
import traceback
from typing import NoReturn

from repro.case import Case, Target
from repro.codec import case_from_json
from repro.trace import Ended, How
from runners.causes import exception_detail, exception_name, one_line
from runners.recorder import Recorder
from runners.watch import OpenSession, RunCase, Unfit
from runners.wire import read_exactly, receive

MESSAGE_MAX = 65536
_SET_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def session_module(target: Target) -> str:
    """The module whose open_session serves this target's engine."""
    return "runners.toy" if target.engine == "toy" else "runners.session"


# The worker itself -----------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Serve the pool that started this process until it closes its end. Standard input is the control socket."""
    parser = argparse.ArgumentParser(prog="python -m runners.worker")
    parser.add_argument("--target", required=True, type=Target.parse)
    parser.add_argument("--session", default="", help="the module to take open_session from")
    options = parser.parse_args(arguments)
    control = _take_over_standard_input()
    _live_quietly()
    try:
        module = importlib.import_module(options.session or session_module(options.target))
        open_session: OpenSession = module.open_session
    except BaseException as error:  # becomes the "unfit" message; sglang's imports may even call exit
        traceback.print_exc()
        tell(control, say="unfit", text=one_line(error))
        return 1
    # What was imported lives as long as this process: keep the collector of every session from touching its pages.
    gc.freeze()
    tell(control, say="ready")
    # What is said to a pool that is gone.
    with contextlib.suppress(ConnectionError):
        serve(control, options.target, open_session)
    return 0


def _take_over_standard_input() -> socket.socket:
    """The control socket, off descriptor 0; whatever prints or reads by habit now meets the log and nothing."""
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return control


def _live_quietly() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool decides what Ctrl-C means
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()  # a Python stack in the log for every signal that kills


def tell(control: socket.socket, **message: object) -> None:
    """Send one control message."""
    control.send(json.dumps(message).encode())


def serve(control: socket.socket, target: Target, open_session: OpenSession) -> None:
    """Open one session after the other, each in a process of its own, until the pool closes the control socket."""
    while True:
        word, handles, _, _ = socket.recv_fds(control, MESSAGE_MAX, 1)
        if not word:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            _session_process(handles[0], target, open_session)
        os.close(handles[0])
        # Both sides do it: neither knows who comes first.
        _lead_group(pid)
        tell(control, say="opened", pid=pid)
        tell(control, say="closed", status=_mind_session(control, pid))


def _lead_group(pid: int) -> None:
    # The refusals: it has done so itself, or has ended.
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, pid)


def _mind_session(control: socket.socket, pid: int) -> int:
    """Send the session what signals the pool asks for, until it has ended. Its wait status."""
    while True:
        word = _hear(control)
        order = json.loads(word) if word else {"signal": int(signal.SIGKILL), "within_s": math.inf}  # the pool is gone
        if order["signal"]:
            os.killpg(pid, int(order["signal"]))
        if _has_ended(pid, float(order["within_s"])):
            break
        tell(control, say="alive")
    # Before it is reaped, its number cannot be anyone else's: end what it may have started.
    os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return status


def _has_ended(pid: int, within_s: float) -> bool:
    """Whether this process ends in the given time. It is not reaped by this."""
    end = time.monotonic() + within_s
    pause = 0.0005
    while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return True


def _hear(control: socket.socket) -> bytes:
    """The next word from the pool; empty if it is gone."""
    try:
        return control.recv(MESSAGE_MAX)
    except ConnectionResetError:  # it died with words of ours unread
        return b""


# The session process ---------------------------------------------------------------------------------------------


def _session_process(handle: int, target: Target, open_session: OpenSession) -> NoReturn:
    status = 1
    try:
        worker = os.getppid()
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() == worker:  # else the worker died before the line above could notice
            session(handle, target, open_session)
            status = 0
    except BaseException:  # becomes the exit status; the pool reads the log
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit: what the worker registered to run at exit is the worker's.
        os._exit(status)


def session(handle: int, target: Target, open_session: OpenSession) -> None:
    """Open a session for the setup of the first case and run cases until the pool closes its end. It does so when
    one does not end well: after a CUDA error, say, the context would blame the next case."""
    watch = Recorder(handle)
    run_case: RunCase | None = None
    while True:
        frame = receive(lambda size: read_exactly(handle, size))
        if frame is None:
            return
        case = case_from_json(frame.head["case"])
        try:
            if run_case is None:
                watch.at(-1, "build")
                run_case = open_session(case.setup, target, watch)
        except BaseException as error:  # becomes the trace's end
            watch.ended(not_opened(error, watch))
            return
        watch.ended(run(run_case, case, watch))


def run(run_case: RunCase, case: Case, watch: Recorder) -> Ended:
    """Run one case; whatever it raises becomes how it ended."""
    watch.at(0, "input")
    try:
        run_case(case, watch)
    except BaseException as error:  # becomes the trace's end
        return _raised(error, watch)
    return Ended(how=How.DONE, step=watch.step, path=watch.path)


def not_opened(error: BaseException, watch: Recorder) -> Ended:
    """How a session ended that could not be opened. While capturing, sglang's code runs and its errors are findings;
    before that we build what it needs, and the trouble is ours."""
    return _raised(error, watch) if watch.path == "capture" else _unfit(error, watch)


def _raised(error: BaseException, watch: Recorder) -> Ended:
    if isinstance(error, Unfit):
        return _unfit(error, watch)
    what, detail = exception_name(error), exception_detail(error)
    return Ended(how=How.RAISED, step=watch.step, path=watch.path, what=what, detail=detail)


def _unfit(error: BaseException, watch: Recorder) -> Ended:
    what = one_line(error) if not isinstance(error, Unfit) else str(error)
    return Ended(how=How.UNFIT, step=watch.step, path=watch.path, what=what, detail=exception_detail(error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
