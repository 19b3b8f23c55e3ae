"""python -m runners record: run a server whose last calls of graph runners are kept."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from repro.cases.places import log
from repro.commands.cli import BadInput, Commands, count, say
from repro.commands.last_resort import descendants, end_all
from repro.traces.exit_codes import ExitCode
from runners.recorder import hooks, ring

# Seconds that a server has to end once this command is to end.
PATIENCE_S = 6.0


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("record", help="run a server, and keep the last calls of its graph runners in files")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="a new folder (default: out/record-TIME)")
    parser.add_argument(
        "--calls", type=count, default=ring.CALLS, metavar="N", help="keep the last N calls (default: %(default)s)"
    )
    parser.add_argument(
        "--snapshot", type=Path, metavar="FOLDER", help="copy what a running server records in this folder"
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command of the server")


def go(options: argparse.Namespace) -> ExitCode:
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    if bool(words) == bool(options.snapshot):
        raise BadInput("a command behind -- or --snapshot FOLDER is needed, and not both")
    if options.snapshot:
        return _snapshots(options.snapshot)
    folder = options.out or Path("out") / f"record-{time.strftime('%Y%m%d-%H%M%S')}"
    if folder.exists():
        raise BadInput(f"{folder}: is there already; name another folder with --out")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}") from error
    code = _ran(words, environment(folder, options.calls))
    recordings = [path.replace(path.with_suffix(ring.ENDING)) for path in sorted(folder.glob("*.ring"))]
    if not recordings:
        with contextlib.suppress(OSError):  # what the server wrote there stays
            folder.rmdir()
        raise BadInput(f"nothing was recorded: {words[0]} ended with {code} before a graph runner of sglang was called")
    say(f"{words[0]} ended with {code}")
    for path in recordings:
        _describe(path)
    return ExitCode.FAIL if code else ExitCode.PASS


def environment(folder: Path, calls: int) -> Mapping[str, str]:
    """The variables with which a process, and those that it starts, are recorded."""
    path = os.pathsep.join(filter(None, (str(hooks.ON_PATH), os.environ.get("PYTHONPATH", ""))))
    return {hooks.FOLDER: str(folder.resolve()), hooks.CALLS: str(calls), "PYTHONPATH": path}


def _ran(words: Sequence[str], variables: Mapping[str, str]) -> int:
    """The exit code of a command. An interrupt ends it, which is how servers end."""
    try:
        process = subprocess.Popen(words, env={**os.environ, **variables})
    except OSError as error:
        raise BadInput(f"{words[0]}: {error.strerror}") from error
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        try:
            return process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            end_all([process.pid, *descendants(process.pid)])
            return process.wait()


def _snapshots(folder: Path) -> ExitCode:
    rings = sorted(folder.glob("*.ring"))
    if not rings:
        raise BadInput(f"{folder}: no server records in this folder")
    for path in rings:
        taken = len(list(folder.glob(f"{path.stem}-*{ring.ENDING}")))
        copy = path.with_name(f"{path.stem}-{taken + 1}{ring.ENDING}")
        try:
            ring.copy_ring(path.read_bytes(), copy)
        except OSError as error:
            raise BadInput(f"{copy}: {error.strerror}") from error
        _describe(copy)
    return ExitCode.PASS


def _describe(path: Path) -> None:
    try:
        recording = ring.read(path.read_bytes())
    except ring.BadRing as error:
        print(log(f"{path}: {error}"))
        return
    runners = recording.facts.get("runners", {})
    names = dict.fromkeys(runners.get(str(call.runner), {}).get("name", "?") for call in recording.calls)
    failure = recording.facts.get("failure") or {}
    print(log(f"{path}: {len(recording.calls)} calls of {', '.join(names)}"))
    if failure:
        print(log(f"  {failure.get('error')}: {failure.get('text')} at {failure.get('place')}"))
    print(log(f"  eagleeye case from-recording {path}"))
