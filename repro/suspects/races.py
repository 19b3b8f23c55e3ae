"""A race of two streams: who enters the stream of an access without a wait, or says too early that reads have ended."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from repro.suspects.clues import Clues, Suspect
from repro.suspects.statements import tree
from repro.traces.finding import Verdict
from repro.traces.paths import Recorded

_ACCESS = re.compile(r"(\S+\.py) \w+:(\d+)")
_CALLERS = re.compile(r"^(.*?) on [^,(]*(?: \(asked for in ([^)]*)\))?, (.*?) on [^,(]*(?: \(asked for in ([^)]*)\))?$")
_STREAMS = re.compile(r"stream|event|read_ends|barrier")
_ENDS = re.compile(r"read_ends")
_REPLAY, _TWICE = "a replay of ", "written twice"
Place = tuple[str, int]


def unordered(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """The function with the block of another stream in which the later access is made; of two writes without one, who
    makes the later; behind a replay, the function of its runner that says when its reads have ended; then whoever
    switches streams, or waits, on the way to either."""
    name = verdict.cell.buffer if verdict.cell else ""
    words = clues.trace.get(-1, Recorded.ORDER, name)
    match = _CALLERS.match(words.tobytes().decode()) if words is not None else None
    if match:
        earlier = places(f"{match[1]}, {match[2] or ''}")
        common = {function for place in earlier for function in clues.above(clues.at(*place))}
        alone = [place for place in places(match[4] or "") if clues.at(*place) not in common]
        entered = [place for place in alone if _enters(clues, place)]
        yield from (
            Suspect(clues.at(*place), place[1], "it enters the stream of the later access") for place in entered
        )
        if match[1].startswith(_REPLAY) and not entered:
            yield from _ending(clues, earlier)
        elif name.startswith(_TWICE) and not entered and not match[3].startswith(_REPLAY):
            # A read that is written over lacks a wait; of two writes one is made by whoever should have left it.
            yield from (Suspect(clues.at(*each), each[1], "it writes in no stream's block") for each in alone[:1])
    accesses = places(name)
    for place in accesses:
        yield from clues.up_to(place, _STREAMS, "on its way streams are switched, or waited for")
    yield from (Suspect(clues.at(*place), place[1], "it accesses what another stream does") for place in accesses)


def _ending(clues: Clues, callers: Sequence[Place]) -> Iterator[Suspect]:
    for file, line in callers:
        function = clues.at(file, line)
        texts = clues.text(file).splitlines()
        rans = (ran for rans in clues.way.phases.values() for ran in rans if ran.function == function)
        lines = sorted(n for ran in rans for n in ran.lines if n <= len(texts) and _ENDS.search(texts[n - 1]))
        if lines:
            yield Suspect(function, lines[0], "it says when the reads of its replay have ended")


def _enters(clues: Clues, place: Place) -> bool:
    """True if the place is in a block that is entered with a stream."""
    file, line = place
    blocks = (node for node in ast.walk(tree(clues.text(file))) if isinstance(node, ast.With))
    around = (node for node in blocks if node.body[0].lineno <= line <= (node.end_lineno or 0))
    return any("stream" in ast.unparse(item.context_expr) for node in around for item in node.items)


def places(text: str) -> list[Place]:
    """The files and lines of sglang that an oracle names ("srt/file.py function:12"), in their order."""
    return [(f"sglang/{file}", int(line)) for file, line in _ACCESS.findall(text)]
