"""A session of a changed sglang: one place of its source is replaced in this process before anything is built.

The module has long been imported. What changes is the code of the function that the place lies in, wherever that
function is known under whatever name; of a Triton kernel also what its compiler or interpreter reads.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import json
import linecache
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
from triton.runtime.interpreter import InterpretedFunction

from repro.cases.case import Case, Setup, Target
from repro.traces.trace import Array
from runners.engines.active import engine
from runners.recording.observer import OpenSession, RunCase, Unsupported, Watch
from runners.recording.packed import PackedLayout
from runners.releases.options import recurrent

# A function that ran so often in a row without a line that is new is not looked at any more: a kernel's program, which
# an interpreter runs a thousand times.
_QUIET = 40
# What the code of a kernel names: Triton's language.
_KERNELS = "tl"
# How deep a function may lie under decorators.
_DEPTH_MAX = 8


def changed(change: Mapping[str, Any], open_session: OpenSession) -> OpenSession:
    """The function that opens sessions as `change` says: {"edit": a Mutant's change}, or with prefixes of file
    names {"trace": ...}, {"lines": ...} or {"files": ...}."""
    if "files" in change:
        return functools.partial(_with_files, tuple(change["files"]), open_session)
    for name in ("trace", "lines"):
        if name in change:
            return functools.partial(_traced, tuple(change[name]), name == "trace", open_session)

    def opened(setup: Setup, target: Target, watch: Watch) -> RunCase:
        name = _module(change["edit"]["file"])
        if engine.device == "cpu" and name.startswith(recurrent.ASKING):
            recurrent.imported(name)
        swap(change["edit"])
        return open_session(setup, target, watch)

    return opened


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def swap(edit: Mapping[str, Any]) -> None:
    """Have the function run with this edit of its source. file: relative to an import root. Unsupported if there is no
    such function, or if it cannot be swapped."""
    module = importlib.import_module(_module(edit["file"]))
    path = module.__file__ or ""
    source = edited(Path(path).read_text(), edit)
    functions = list(_functions(module, edit["function"], path, edit["first_line"]))
    free = {name for _, function in functions for name in function.__code__.co_freevars}
    try:
        tree = keeping(free, ast.parse(source), edit["function"].rpartition(".")[2], edit["first_line"])
        code = _code(compile(tree, path, "exec"), edit["function"], edit["first_line"])
    except SyntaxError as error:
        raise Unsupported(f"the change cannot be compiled: {error}") from error
    if code is None or not functions:
        raise Unsupported(f"no function {edit['function']} begins in line {edit['first_line']} of {edit['file']}")
    # Kernels are read as text: by Triton's compiler once, by its interpreter whenever a kernel is first run.
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    for holder, function in functions:
        try:
            function.__code__ = code
        except ValueError as error:  # another number of names from outside
            raise Unsupported(f"the change of {edit['function']} cannot be swapped in: {error}") from error
        _reread(holder, function, source)


def edited(source: str, edit: Mapping[str, Any]) -> str:
    """The text with what lies between two places replaced. Places are a line and a column in UTF-8 bytes."""
    lines = source.encode().split(b"\n")
    (first, begin), (last, end) = edit["start"], edit["end"]
    middle = lines[first - 1][:begin] + str(edit["text"]).encode() + lines[last - 1][end:]
    return b"\n".join([*lines[: first - 1], middle, *lines[last:]]).decode()


def keeping(names: Collection[str], tree: ast.Module, function: str, first_line: int) -> ast.Module:
    """The tree, in which the function that begins here speaks of these names from outside, in a line that never runs: a
    change may leave one out (`super()` is the last to speak of `__class__`), and code is swapped for code that speaks
    of as many."""
    definitions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function)
    for node in definitions if names else ():
        if first_line in (node.lineno, *(decorator.lineno for decorator in node.decorator_list)):
            spoken: list[ast.stmt] = [ast.Expr(ast.Name(name, ast.Load())) for name in sorted(names)]
            never = ast.If(test=ast.Constant(value=False), body=spoken, orelse=[])
            node.body.append(ast.fix_missing_locations(ast.copy_location(never, node.body[-1])))
    return tree


def _code(code: CodeType, function: str, first_line: int) -> CodeType | None:
    """The code of a function within that of its module."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if (constant.co_qualname, constant.co_firstlineno) == (function, first_line):
                return constant
            inner = _code(constant, function, first_line)
            if inner:
                return inner
    return None


def _functions(module: ModuleType, name: str, path: str, first_line: int) -> Iterator[tuple[object, FunctionType]]:
    """The function of this name that begins here, with what holds it: under decorators, in properties, as a kernel."""
    owner: object = module
    *classes, last = name.split(".")
    for part in classes:
        owner = vars(owner).get(part, owner)
    seen: set[int] = set()
    waiting: list[tuple[object, object, int]] = [(owner, vars(owner).get(last), 0)]
    while waiting:
        holder, value, depth = waiting.pop()
        if value is None or id(value) in seen or depth > _DEPTH_MAX:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType) and (value.__code__.co_filename, value.__code__.co_firstlineno) == (
            path,
            first_line,
        ):
            yield holder, value
        waiting += [(value, inner, depth + 1) for inner in _under(value)]


def _under(value: Any) -> Iterator[object]:
    """The objects that a decorator may have put its function in."""
    for attribute in ("__func__", "__wrapped__", "fget", "fset", "func", "fn", "_torchdynamo_orig_callable"):
        yield getattr(value, attribute, None)
    if isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            try:
                contents = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            if callable(contents):
                yield contents


def _reread(holder: Any, function: FunctionType, source: str) -> None:
    """Have a kernel be what its text is now."""
    InterpretedFunction.rewritten_fn.pop(function, None)
    if hasattr(holder, "_unsafe_update_src"):
        first = function.__code__.co_firstlineno
        block = textwrap.dedent("\n".join(source.split("\n")[first - 1 : _last_line(function.__code__)]) + "\n")
        start = re.search(r"^def\s+\w+\s*\(", block, re.MULTILINE)
        holder._unsafe_update_src(block[start.start() if start else 0 :])


def _last_line(code: CodeType) -> int:
    """The last line of a function, those of functions within it included."""
    last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
    return max([last, *(_last_line(inner) for inner in code.co_consts if isinstance(inner, CodeType))])


def _traced(
    prefixes: tuple[str, ...],
    with_places: bool,
    open_session: OpenSession,
    setup: Setup,
    target: Target,
    watch: Watch,
) -> RunCase:
    """An ordinary session that also records which lines of files under these prefixes it ran: under path `lines`, by
    file; those that ran before capture under `built_lines`. With places, it records under `places` and `built_places`
    which parts of lines: of each instruction its first line and column and its last; not of kernels, which an
    interpreter rewrites."""
    lines = _Lines(prefixes, with_places)
    with lines:
        run_case = open_session(setup, target, Phases(watch, lines.at))

    def run(case: Case, watch: Watch) -> None:
        try:
            with lines:
                run_case(case, Phases(watch, lines.at))
        finally:  # what ran before an error ran
            for path, files in lines.seen.items():
                for file, numbers in files.items():
                    watch.see(-1, path, file, np.array(sorted(numbers)))
            for path, places in lines.places().items():
                for file, rows in places.items():
                    watch.see(-1, path, file, np.array(sorted(rows)))

    return run


@dataclass(slots=True)
class _Calls:
    """The calls of one function. Mutable. offsets: of the instructions that ran. known: how many lines and instructions
    were at its last call; quiet: how many calls in a row added none."""

    lines: set[int] = field(default_factory=set)
    offsets: set[int] = field(default_factory=set)
    known: int = -1
    quiet: int = 0


class _Lines:
    """While entered, notes the lines that run. Mutable."""

    def __init__(self, prefixes: tuple[str, ...], with_places: bool) -> None:
        self._prefixes, self._with_places = prefixes, with_places
        self._names: dict[str, str] = {}
        self.phase = "built_lines"
        self.seen: dict[str, dict[str, set[int]]] = {"built_lines": {}, "lines": {}}
        self._calls: dict[tuple[str, CodeType], _Calls] = {}

    def at(self, step: int, path: str) -> None:
        """From the capture on, the things that were built are used."""
        if step >= 0 or path == "capture":
            self.phase = "lines"

    def __enter__(self) -> None:
        sys.settrace(self._called)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        path = frame.f_code.co_filename
        name = self._names.get(path)
        if name is None:
            name = self._names[path] = self._name(path)
        if not name:
            return None
        calls = self._calls.setdefault((self.phase, frame.f_code), _Calls())
        count = len(calls.lines) + len(calls.offsets)
        calls.quiet = calls.quiet + 1 if count == calls.known else 0
        calls.known = count
        if calls.quiet > _QUIET:
            return None
        seen, lines, offsets = self.seen[self.phase].setdefault(name, set()), calls.lines, calls.offsets
        seen.add(frame.f_lineno)
        frame.f_trace_opcodes = self._with_places and _KERNELS not in frame.f_code.co_names

        def line(frame: FrameType, event: str, argument: object) -> Any:
            if event == "opcode":
                offsets.add(frame.f_lasti)
            elif frame.f_lineno not in lines:
                lines.add(frame.f_lineno)
                seen.add(frame.f_lineno)
            return line

        return line

    def places(self) -> dict[str, dict[str, set[tuple[int, int, int, int]]]]:
        """The places of the instructions that ran in the text, by phase and file."""
        places: dict[str, dict[str, set[tuple[int, int, int, int]]]] = {"built_places": {}, "places": {}}
        for (phase, code), calls in self._calls.items():
            of_phase = places["places" if phase == "lines" else "built_places"]
            places_of = of_phase.setdefault(self._names[code.co_filename], set()) if calls.offsets else set()
            for number, (first, last, begin, end) in enumerate(code.co_positions()):
                at = (first, begin, last, end)
                if 2 * number in calls.offsets and None not in at:
                    places_of.add(at)  # type: ignore[arg-type]  # none of them is None, as was asked
        return places

    def _name(self, path: str) -> str:
        """The file relative to its import root; empty if it was not asked for."""
        name = below_import_root(path)
        return name if name.startswith(self._prefixes) else ""


def _with_files(
    prefixes: tuple[str, ...], open_session: OpenSession, setup: Setup, target: Target, watch: Watch
) -> RunCase:
    """An ordinary session that also says in the fact `files` of which files under these prefixes it has run a function
    so far. Modules and classes that are made while it runs do not count."""
    paths: set[str] = set()

    def called(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            paths.add(frame.f_code.co_filename)

    @contextlib.contextmanager
    def noted() -> Iterator[None]:
        sys.settrace(called)
        try:
            yield
        finally:
            sys.settrace(None)

    with noted():
        run_case = open_session(setup, target, watch)

    def run(case: Case, watch: Watch) -> None:
        try:
            with noted():
                run_case(case, watch)
        finally:  # what ran before an error ran
            names = {below_import_root(path) for path in paths}
            watch.fact("files", json.dumps(sorted(name for name in names if name.startswith(prefixes))))

    return run


def below_import_root(path: str) -> str:
    """A file of sglang by its path below the import root (sglang/srt/...); empty for all others."""
    start = path.rfind("/sglang/")
    return path[start + 1 :] if start >= 0 else ""


class Phases(Watch):
    """Hands everything on, and tells a listener what is under way."""

    def __init__(self, watch: Watch, listener: Callable[[int, str], None]) -> None:
        self._watch, self._listener, self.reference_steps = watch, listener, watch.reference_steps

    def at(self, step: int, path: str) -> None:
        self._listener(step, path)
        self._watch.at(step, path)

    def see(self, step: int, path: str, name: str, array: Array) -> None:
        self._watch.see(step, path, name, array)

    def see_all(self, step: int, what: PackedLayout, data: bytes) -> None:
        self._watch.see_all(step, what, data)

    def spent(self, stage: str, seconds: float) -> None:
        self._watch.spent(stage, seconds)

    def fact(self, name: str, text: str) -> None:
        self._watch.fact(name, text)
