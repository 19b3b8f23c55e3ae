"""The fork server: imports what all releases of sglang have in common once, then forks a worker for each that is asked.

Most of what a worker imports is not sglang, and is the same files for all releases with the same packages in front.
A worker that is forked here has these imports behind it, and puts its release on its import path.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import socket
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from runners.processes import worker
from runners.processes.causes import one_line
from runners.processes.children import Children, live_quietly, take_over_standard_input, tell, watching

ORDER_MAX = 1 << 20
# For workers whose pools are gone to end their sessions, and whatever those have started. A command that is stopped
# while a pool is open waits so long.
_END_S = 3.0


def main(preloaded: str) -> int:
    """Import the module of this name, and serve the process that started this one until it closes its end. Standard
    input is the control socket."""
    control = take_over_standard_input()
    live_quietly()
    try:
        with watching(control.fileno(), partial(os._exit, 1)):
            importlib.import_module(preloaded)
    except BaseException as error:  # becomes the "failed" message
        traceback.print_exc()
        tell(control, say="failed", text=one_line(error))
        return 1
    # As in a worker.
    gc.freeze()
    tell(control, say="ready")
    workers = Children(control, be_worker)
    try:
        workers.serve()
    finally:
        workers.end(_END_S)
    return 0


def be_worker(channel: int) -> int:
    """Be the worker that the first message over the channel describes; then the channel is its control socket."""
    with socket.socket(fileno=channel) as control:
        order: dict[str, Any] = json.loads(control.recv(ORDER_MAX))
        os.dup2(control.fileno(), 0)
    before = os.environ.get("PYTHONPATH", "")
    os.environ.clear()
    os.environ.update(order["environment"])
    rest = [place for place in sys.path if place not in places(before)]
    sys.path[:] = [*places(os.environ.get("PYTHONPATH", "")), *rest]
    importlib.invalidate_caches()
    # Otherwise all workers would draw the same ports, one after the other.
    random.seed()
    return worker.main(order["arguments"])


def places(path: str) -> list[str]:
    """The entries of a PYTHONPATH as they stand on sys.path."""
    return list(dict.fromkeys(str(Path(entry).absolute()) for entry in path.split(os.pathsep) if entry))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
