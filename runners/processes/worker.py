"""The worker process: imports what is heavy once, then forks a session process for each session that is asked for.

Replies go over sockets of their own and never over standard output, because sglang prints; what it prints is the log.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import sys
import traceback
from functools import partial

from repro.cases.case import Target
from runners.processes import bytecode
from runners.processes.causes import one_line
from runners.processes.children import Children, live_quietly, take_over_standard_input, tell, watching
from runners.processes.session_process import Kind, session
from runners.targets.environments import cache_directory


def session_module(target: Target) -> str:
    """The module whose open_session serves this target's engine."""
    return "runners.toy.session" if target.engine == "toy" else "runners.sessions.open"


def main(arguments: list[str]) -> int:
    """Serve the pool that started this process until it closes its end. Standard input is the control socket."""
    parser = argparse.ArgumentParser(prog="python -m runners.processes.worker")
    parser.add_argument("--target", required=True, type=Target.parse)
    parser.add_argument("--session", default="", help="the module to take open_session from")
    options = parser.parse_args(arguments)
    control = take_over_standard_input()
    live_quietly()
    try:
        bytecode.keep(cache_directory())
        with watching(control.fileno(), partial(os._exit, 1)):
            module = importlib.import_module(options.session or session_module(options.target))
        kind = Kind.of(module)
    except BaseException as error:  # becomes the "failed" message; sglang's imports may even call exit
        traceback.print_exc()
        tell(control, say="failed", text=one_line(error))
        return 1
    # What was imported lives as long as this process: keep the collector of every session from touching its pages.
    gc.freeze()
    tell(control, say="ready")
    sessions = Children(control, partial(session, target=options.target, kind=kind))
    try:
        # What is said to a pool that is gone.
        with contextlib.suppress(ConnectionError):
            sessions.serve()
    finally:
        sessions.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
