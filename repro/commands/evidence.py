"""The sources of a case: what each kind of evidence says of a server's flags and batches, and what it leaves open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.cases import crash_dump
from repro.cases.batches import Batch, of_csv, of_log
from repro.cases.bounded_file import read_text
from repro.cases.fitting import Sizes
from repro.cases.launch import opened
from repro.cases.server_args import FILE_MAX, Argument, arguments
from repro.commands import recorded

_BYTES_MAX = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The flags and batches that were read. batches: those of a runner, by its name, of a server with these sizes.
    flags: the server's own, where they are known. runner: the one that it is about; empty: unsaid. ended: in words."""

    batches: Callable[[Sizes, str], Sequence[Batch]]
    flags: tuple[Argument, ...] = ()
    runner: str = ""
    guessed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()


def _of_table(path: Path) -> Evidence:
    text = read_text(path, _BYTES_MAX)
    return Evidence(batches=lambda sizes, runner: of_csv(text, sizes.context))


def _of_log(path: Path) -> Evidence:
    text = read_text(path, _BYTES_MAX)
    start = text.find("ServerArgs(")
    return Evidence(
        batches=lambda sizes, runner: of_log(text),
        flags=tuple(opened(arguments(text[start : start + FILE_MAX]))) if start >= 0 else (),
        guessed=("lengths: the tokens in use spread evenly; prefixes that requests share count once",),
        missing=("the batches between decode lines, of which sglang logs few (--decode-log-interval)",),
    )


def _of_crash_dump(place: Path) -> Evidence:
    path = crash_dump.newest(place)
    dump = crash_dump.read(path)
    flags = [Argument(name, value, path.name) for name, value in dump.settings.items()]
    if not flags and " --" in dump.command:
        flags = arguments(dump.command[dump.command.index(" --") :])
    running = dump.settings.get("max_running_requests")
    most = running if isinstance(running, int) else 0
    by_letters = sum(request.guessed for request in dump.requests)
    return Evidence(
        batches=lambda sizes, runner: crash_dump.batches(dump.requests, most),
        flags=tuple(opened(flags)),
        guessed=(
            "batches: one whenever a request came or went; lengths: grown evenly from arrival to end",
            *([f"prompts: of {by_letters} requests by their letters, as their tokens are unsaid"] * bool(by_letters)),
        ),
        missing=("the batches between arrivals and ends; the output so far of requests that do not stream",),
    )


def _of_recording(path: Path) -> Evidence:
    recording = recorded.read(path)
    runner, ending = recorded.failing(recording), recorded.ending(recording)
    return Evidence(
        batches=lambda sizes, name: recorded.batches(recording, name),
        flags=tuple(opened(recorded.flags(recording, runner, path.name))),
        runner=runner,
        guessed=tuple(recorded.guessed(recording)),
        missing=tuple(recorded.missing(recording)),
        ended=(ending,) if ending else (),
    )


SOURCES: Mapping[str, tuple[str, str, Callable[[Path], Evidence]]] = {
    "from-trace": ("FILE", "a CSV with the columns step, request, length and, where known, accepted", _of_table),
    "from-log": ("FILE", "the decode lines of sglang's log", _of_log),
    "from-recording": (
        "FILE",
        "the last calls of a server's graph runners, as eagleeye record keeps them",
        _of_recording,
    ),
    "from-crash-dump": ("DIR", "what --crash-dump-folder holds; no code of it is run", _of_crash_dump),
}
