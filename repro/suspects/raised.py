"""A run that raised: the functions that were being executed, and those behind what they were given."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from repro.suspects.clues import BACKENDS, Clues, Suspect
from repro.suspects.held import of_caller, of_model, switched
from repro.suspects.statements import Does, plain, tree
from repro.suspects.way import BUILD, CAPTURE

_FRAME = re.compile(r'/(sglang/\S+\.py)", line (\d+), in ')
_SIZES = re.compile(r"\bsizes?\b|shape|dimension|out of (bounds|range)")
_NOTHING = "'NoneType' object"
_SETS = (Does.MAKES, Does.ASSIGNS)
_BEYOND = "index out of range in self"  # torch's, of a look-up
_MODELS = "sglang/srt/models/"
_WORD = re.compile(r"\b[a-z]\w*_\w+\b")
_ATTRIBUTE = re.compile(r"\b([A-Z]\w+)\.([a-z_]\w+)\b")
_LACKS = re.compile(r"'([A-Z]\w+)' object has no attribute '\w+'")
# The file of each backend that is driven by name.
_FILES = {
    "triton": "triton_backend.py",
    "fa3": "flashattention_backend.py",
    "flashinfer": "flashinfer_backend.py",
    "trtllm_mha": "trtllm_mha_backend.py",
}


def raised(clues: Clues) -> Iterator[Suspect]:
    """Who made a backend that was not asked for; who sets what the message names; who made what has no room; who leaves
    out what is None; then the frames, the innermost first."""
    ended = clues.trace.ended
    places = [(file, int(line)) for file, line in _FRAME.findall(ended.detail)]
    frames = [Suspect(clues.at(*place), place[1], "it ran when the run ended") for place in reversed(places)]
    last = ended.detail.strip().splitlines()[-1:] or [""]
    message, innermost = last[0], frames[:1]
    yield from _unasked(clues, frames)
    refuses = any(isinstance(node, ast.Raise | ast.Assert) for node in clues.statements_at(innermost))
    of_size = bool(frames and _SIZES.search(message))
    if _BEYOND in message:
        yield from _looked_up(frames)
    yield from switched(clues, frames)
    named = {name for frame in innermost for name in clues.names_at(frame.file, frame.line)} if of_size else set()
    makers = clues.makers(named)
    if of_size:
        yield from of_model(clues, frames)
        if not makers and len(clues.calling(frames[0].function)) > 1:
            yield from of_caller(clues, frames)
    if refuses or (of_size and clues.serves_several(frames[0].function)):
        # It refuses what it is given, or works for several.
        frames = [*frames[1:2], *innermost, *frames[2:]]
    if refuses:
        yield from _stated(clues, message)
    yield from _lacking(clues, message)
    if of_size:
        yield from frames[:1]
        yield from makers
    if _NOTHING in message:
        yield from _unset(clues, innermost, frames)
    if "None" in message:
        yield from _absent(clues, frames, f"{ended.step} {ended.path}", message)
    yield from frames


def _looked_up(frames: Sequence[Suspect]) -> Iterator[Suspect]:
    """The innermost function of a model: layers look up whatever numbers it gives them."""
    for frame in frames:
        if frame.file.startswith(_MODELS):
            yield Suspect(frame.function, frame.line, "it looks up numbers that the table does not have")
            return


def _stated(clues: Clues, message: str) -> Iterator[Suspect]:
    """Functions that set an attribute which sglang's own message names with its class."""
    for owner, name in _ATTRIBUTE.findall(message):
        does = (Does.MAKES, Does.ASSIGNS)
        for suspect in clues.by_name((BUILD, CAPTURE), {plain(name)}, does, f"the message names {owner}.{name}"):
            if suspect.function[1].partition(".")[0] == owner:
                yield suspect


def _lacking(clues: Clues, message: str) -> Iterator[Suspect]:
    """The class of an object that has no such attribute."""
    match = _LACKS.search(message)
    files = {ran.file for rans in clues.way.phases.values() for ran in rans} if match else set()
    for file in sorted(files):
        for node in tree(clues.text(file)).body if match and f"class {match[1]}" in clues.text(file) else ():
            if match and isinstance(node, ast.ClassDef) and node.name == match[1]:
                yield Suspect((file, node.name), node.lineno, "its objects have no such attribute")


def _unasked(clues: Clues, frames: Sequence[Suspect]) -> Iterator[Suspect]:
    """The setup's backend is another one than that which was running."""
    others = {file for name, file in _FILES.items() if name != clues.case.setup.backend}
    running = {
        frame.file for frame in frames if frame.file.startswith(BACKENDS) and frame.file.rpartition("/")[2] in others
    }
    for ran in clues.way.during(BUILD, CAPTURE):
        if ran.file in running and ran.short == "__init__":
            for caller, line in ran.callers:
                if caller[0] not in running:
                    yield Suspect(
                        caller, line, f"it makes a {ran.function[1].partition('.')[0]}, which the setup did not ask for"
                    )


def _unset(clues: Clues, innermost: Sequence[Suspect], frames: Sequence[Suspect]) -> Iterator[Suspect]:
    """Functions that set the field of a batch which the innermost line, where it is None, knows by a name that a frame
    gave it."""
    names = {name for frame in innermost for name in clues.names_at(frame.file, frame.line)}
    running = {frame.function for frame in frames}
    for frame in frames:
        nodes = ast.walk(tree(clues.text(frame.file)))
        fields = {
            node.value.attr
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute)
            if isinstance(node.value.value, ast.Name) and node.value.value.id != "self"
            if names & {plain(target.id) for target in node.targets if isinstance(target, ast.Name)}
            if clues.at(frame.file, node.lineno) == frame.function
        }
        setting = clues.by_name(clues.way.phases, {plain(field) for field in fields}, _SETS, "it sets what is None")
        yield from (suspect for suspect in setting if suspect.function not in running)


def _absent(clues: Clues, frames: Sequence[Suspect], phase: str, message: str) -> Iterator[Suspect]:
    """Functions that make what the message names and are not running themselves, and what has them do so."""
    names = {plain(word) for word in _WORD.findall(message)}
    running = {frame.function for frame in frames}
    for suspect in clues.by_name((phase,), names, (Does.WRITES, Does.MAKES, Does.ASSIGNS), "it leaves this None"):
        if suspect.file.startswith(BACKENDS) and suspect.function not in running:
            yield suspect
            callers = clues.callers(suspect.function, (phase,), "it calls what creates this")
            yield from (caller for caller in callers if caller.file == suspect.file)
