"""sglang's own reading of a server's command line, in a process of the newest release."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Sequence
from typing import Any

from repro.cases.case import Target
from repro.cases.release_list import NEWEST
from runners.targets.environments import interpreter, worker_environment

TARGET = Target(NEWEST, "emulated")
_READ = """
import argparse, inspect, json, sys
from runners.engines.standins.native_imports import define_torchvision_schemas
define_torchvision_schemas()
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
commands = [vars(parser.parse_args(command)) for command in json.load(sys.stdin)]
print(json.dumps([list(inspect.signature(ServerArgs).parameters), commands], default=str))
"""


def read(commands: Sequence[Sequence[str]]) -> tuple[frozenset[str], list[dict[str, Any]]]:
    """The names of ServerArgs' arguments, and the value of each that these command lines give. RuntimeError, with what
    the process wrote, if sglang refuses one."""
    done = subprocess.run(
        [interpreter(TARGET), "-c", _READ],
        input=json.dumps([list(command) for command in commands]),
        env=worker_environment(TARGET),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    names, values = json.loads(done.stdout.splitlines()[-1])
    return frozenset(names), values


@functools.cache
def argument_names() -> frozenset[str]:
    """The names of ServerArgs' arguments."""
    return read([])[0]
