"""The stacks that a run's report ends with: of an exception, whose innermost frame comes last, and of a process that
died, whose innermost frame comes first."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Between the tracebacks of an exception and of the one that was raised for it.
_CHAINED = re.compile(r"\n(?:During handling of the above exception|The above exception was the direct cause)[^\n]*\n")
_WRAPPER = re.compile(r"^Exception: ", re.MULTILINE)
# sglang's frames and the harness's; of the latter neither the method that launches a graph nor those that hand on a
# call of PyTorch that sglang makes.
_FRAME = re.compile(
    r'File "[^"\n]*?/((?:sglang|runners(?!/engines/cuda\.py))/[^"\n]+)", line (\d+),? in ((?!__torch_)[\w<>]+)'
)
# A dying process writes why, and behind it the stacks of its threads, in no particular order.
_FATAL = re.compile(r"^Fatal Python error: [^\n]+", re.MULTILINE)
_THREAD = re.compile(
    r"^(Current )?[Tt]hread [^\n]*most recent call first[^\n]*\n((?:  [^\n]*(?:\n|\Z))*)", re.MULTILINE
)
_EXCEPTION = "Traceback (most recent call last)"


def places(detail: str) -> list[str]:
    """The frames of sglang and of the harness, "FILE:LINE in FUNCTION", the innermost first."""
    dying = _dying(detail)
    frames = _FRAME.findall(_stack(dying)) if dying else _FRAME.findall(_of_the_cause(detail))[::-1]
    return ["{}:{} in {}".format(*frame) for frame in frames]


def of_sglang(places: Sequence[str]) -> str:
    """The innermost of these that is sglang's; empty if there is none."""
    return next((place for place in places if place.startswith("sglang/")), "")


def reason(detail: str) -> str:
    """An error in one line: the last of an exception's report. Of a process that died, whose report ends with
    where the interpreter began: why, and the innermost frame of sglang, else of the harness."""
    dying = _dying(detail)
    if not dying:
        return detail.strip().rpartition("\n")[2].strip()
    frames, fatal = places(dying), dying.partition("\n")[0]
    place = of_sglang(frames) or next(iter(frames), "")
    return f"{fatal}, at {place}" if place else fatal


def _dying(detail: str) -> str:
    """The report of a process that died, from why on; empty if there is none, or an exception's behind it."""
    fatal = _FATAL.search(detail)
    return detail[fatal.start() :] if fatal and _EXCEPTION not in detail[fatal.start() :] else ""


def _stack(dying: str) -> str:
    """That of the thread that died; where it has no frame of sglang or of the harness, as where a library has started
    it, of the first that has one of sglang."""
    stacks = [stack for _, stack in sorted(_THREAD.findall(dying), key=lambda thread: not thread[0])]
    if not stacks or _FRAME.search(stacks[0]):
        return "".join(stacks[:1])
    return next(
        (stack for stack in stacks if any(frame[0].startswith("sglang/") for frame in _FRAME.findall(stack))), ""
    )


def _of_the_cause(detail: str) -> str:
    """Without the tracebacks of plain Exceptions that only add advice to what they were raised for (sglang's capture
    does so): they name the line that raised them."""
    raised = _CHAINED.split(detail)
    while len(raised) > 1 and _WRAPPER.search(raised[-1]):
        raised.pop()
    return raised[-1]
