"""The functions to be looked at for a failure that only a whole round can have, the likeliest first."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from repro.suspects.clues import WORKERS, Clues, Suspect
from repro.suspects.names import names_of
from repro.suspects.races import places
from repro.suspects.statements import Does, tree
from repro.suspects.way import BUILD, CAPTURE, Function, Ran
from repro.traces.finding import Verdict

# Words of what is left or missing (oracles/leaks.py), and of functions that take or give it back.
_TAKEN = (
    ("state slots", r"mamba\w*(free|alloc)|(free|alloc)\w*mamba"),
    ("request slots", r"req_to_token_pool\.(free|alloc)|release_req"),
    ("locked", r"(inc|dec)_lock_ref"),
    ("sliding", r"free_swa|evict_swa"),
    ("", r"\.free\(|free_group|cache_(un)?finished_req|alloc_\w+\("),
)


def collective(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """A call that other ranks make or lack: who calls such, whether this line ran or not; of draws that stay on a rank,
    who sends or draws."""
    if verdict.cell and verdict.cell.buffer == "broadcast":
        yield from _speaking(clues, r"broadcast", "it sends to its group what it draws", within=WORKERS)
        yield from clues.ran(_served(clues), r"sampl", "it draws at random")
        yield from _speaking(clues, r"broadcast", "it sends to its group")
        return
    texts = (verdict.cell.want, verdict.cell.got) if verdict.cell else ()
    for kind in (text.partition(" ")[0] for text in texts if not text.startswith("no call")):
        yield from _speaking(clues, rf"{kind}\w*\(", f"it calls {kind}")


def leaked(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """Memory that is free twice or never: who freed it, then who takes or gives back such."""
    for place in places(verdict.cell.got if verdict.cell else ""):
        yield Suspect(clues.at(*place), place[1], "it frees what is free")
    name = verdict.cell.buffer if verdict.cell else verdict.where
    pattern = next(words for what, words in _TAKEN if what in name)
    yield from _speaking(clues, pattern, "it takes these, or gives them back", within=WORKERS)
    yield from _speaking(clues, pattern, "it takes these, or gives them back")


def counted(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """A count that a message has of a request: who counts."""
    does = (Does.WRITES, Does.ASSIGNS)
    yield from clues.by_name(_served(clues), names_of(verdict, clues.case.setup), does, "it counts")


def padding(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """Rows or lists that another rank's batch made longer: who pads or takes padding away, then who sets the list."""
    phases, names = _served(clues), names_of(verdict, clues.case.setup)
    yield from clues.ran(phases, r"mlp_sync", "it pads a batch, or takes its padding away")
    yield from clues.by_name(phases, names, (Does.WRITES, Does.ASSIGNS), "it sets the list")


def outlived(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """An output that is read after another replay over its memory: the reader, and its callers."""
    for file, line in places(verdict.detail):
        reader = clues.at(file, line)
        yield Suspect(reader, line, "it reads the output late")
        yield from clues.callers(reader, _served(clues), "it calls the reader")


def handed(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """An input of the next draft: who sets it."""
    does = (Does.WRITES, Does.ASSIGNS, Does.MAKES)
    for suspect in clues.by_name(_served(clues), names_of(verdict, clues.case.setup), does, "it sets the input"):
        if suspect.file.startswith(WORKERS):
            yield suspect


def refused(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """A batch for which there is a graph: who was asked; of sizes of graphs, who lists them."""
    yield from clues.ran((BUILD, CAPTURE), r"capture_(sizes|bs|num_tokens)|max_capture", "it lists the graphs' sizes")
    yield from clues.ran(_served(clues), r"can_run|can_replay|fits", "it refused the batch")


def _served(clues: Clues) -> tuple[str, ...]:
    return tuple(phase for phase in clues.way.phases if phase not in (BUILD, CAPTURE))


def _speaking(clues: Clues, pattern: str, reason: str, within: str = "sglang/srt/") -> Iterator[Suspect]:
    """Functions that ran and have such words in a line, also in one that did not run; the last call first."""
    words = re.compile(pattern)
    for ran in sorted(clues.way.during(*_served(clues)), key=lambda ran: -ran.last):
        if ran.file.startswith(within):
            lines = clues.text(ran.file).splitlines()
            spoken = [n for n in _lines_of(clues, ran) if words.search(lines[n - 1].partition("#")[0])]
            if spoken:
                yield Suspect(ran.function, spoken[0], reason)


def _lines_of(clues: Clues, ran: Ran) -> range:
    """The lines of a function's body."""
    node = _node(tree(clues.text(ran.file)), ran.function)
    return range(node.body[0].lineno, (node.end_lineno or 0) + 1) if node else range(0)


def _node(module: ast.AST, function: Function) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    scope = module
    for name in function[1].split("."):
        inner = (
            node
            for node in ast.walk(scope)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name
        )
        scope = next(inner, None) or ast.Module(body=[], type_ignores=[])
    return scope if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) else None
