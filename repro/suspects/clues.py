"""Questions to a failing run: who made, wrote or handed on what has this name, and who called them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from repro.cases.case import Case
from repro.shrinking.origin import writes
from repro.suspects.statements import Does, hands_on, plain, statements, tree, uses, words
from repro.suspects.way import BUILD, CAPTURE, Function, Ran, Way, outer
from repro.traces.paths import Recorded
from repro.traces.trace import Trace

BACKENDS, WORKERS = "sglang/srt/layers/attention/", "sglang/srt/speculative/"
PLACE = re.compile(r"(sglang/\S+\.py):(\d+) in ")
_PLANS = ("init_forward_metadata", "init_forward_metadata_out_graph", "init_forward_metadata_replay_cuda_graph")
# Buffers of a name that are made together: above this their common size is asked after first.
_ALIKE = 2


@dataclass(frozen=True, slots=True)
class Suspect:
    """A function of sglang, the line that points at it, and the reason."""

    function: Function
    line: int
    reason: str

    @property
    def file(self) -> str:
        return self.function[0]

    def to_json(self) -> dict[str, object]:
        return {"file": self.file, "function": self.function[1], "line": self.line, "reason": self.reason}

    def __str__(self) -> str:
        return f"{self.function[1]} ({self.file}:{self.line}): {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """A failing run. read: the text of a file of the sglang that ran; OSError if it is not there."""

    case: Case
    trace: Trace
    way: Way
    read: Callable[[str], str]
    _texts: dict[str, str] = field(default_factory=dict)

    def text(self, file: str) -> str:
        if file not in self._texts:
            try:
                self._texts[file] = self.read(file)
            except OSError:
                self._texts[file] = ""
        return self._texts[file]

    def at(self, file: str, line: int) -> Function:
        """The function around a line; of none its name is empty."""
        scope: ast.AST = tree(self.text(file))
        names: list[str] = []
        while inner := next(_around(scope, line), None):
            scope = inner
            names.append(inner.name)
        return file, outer(".".join(names)) if names else ""

    def statements_at(self, suspects: Sequence[Suspect]) -> list[ast.stmt]:
        """The statements in the lines that point at these."""
        return [node for each in suspects for node in statements(self.text(each.file)).get(each.line, ())]

    def names_at(self, file: str, line: int) -> set[str]:
        return {name for statement in statements(self.text(file)).get(line, ()) for name in words(statement)}

    def uses(self, ran: Ran, names: Collection[str], does: Collection[Does] = tuple(Does)) -> list[int]:
        """The lines in which a function that ran uses the names so, the strongest use first."""
        of_kind = [use for use in uses(self.text(ran.file), ran.lines, names) if use.does in does]
        return [use.line for use in sorted(of_kind, key=lambda use: (use.does, -use.line))]

    def by_name(
        self, phases: Iterable[str], names: Collection[str], does: Collection[Does], reason: str
    ) -> Iterator[Suspect]:
        """Functions that use the names so, the last call first."""
        for ran in sorted(self.way.during(*phases), key=lambda ran: -ran.last):
            if lines := self.uses(ran, names, does):
                yield Suspect(ran.function, lines[0], reason)

    def ran(self, phases: Iterable[str], pattern: str, reason: str, *, within: str = "sglang/") -> Iterator[Suspect]:
        """Functions whose name has the pattern, the last call first."""
        for ran in sorted(self.way.during(*phases), key=lambda ran: -ran.last):
            if ran.file.startswith(within) and re.search(pattern, ran.short):
                yield Suspect(ran.function, min(ran.lines, default=0), reason)

    def callers(self, function: Function, phases: Iterable[str], reason: str) -> Iterator[Suspect]:
        for ran in self.way.during(*phases):
            for caller, line in ran.callers if ran.function == function else ():
                yield Suspect(caller, line, reason)

    def planners(self, phases: Iterable[str]) -> Iterator[Suspect]:
        """Functions outside of attention backends that have metadata made."""
        for ran in self.way.during(*phases):
            for caller, line in ran.callers if ran.short in _PLANS else ():
                if not caller[0].startswith(BACKENDS):
                    yield Suspect(caller, line, "it plans attention's metadata")

    def slots_end_with_the_batch(self, step: int) -> bool:
        """True if attention plans a padded batch with the KV slots of its real requests alone."""
        real, planned = (self.trace.get(step, path, "out_cache_loc") for path in (Recorded.INPUT, Recorded.PLANNED))
        return real is not None and planned is not None and 0 < planned.size <= real.size

    def serves_several(self, function: Function) -> bool:
        """True if several functions of its file call it, whether they ran or not."""
        call = re.compile(rf"(?<!def )\b{re.escape(function[1].rpartition('.')[2])}\(")
        numbered = enumerate(self.text(function[0]).splitlines(), start=1)
        return len({self.at(function[0], number) for number, text in numbered if call.search(text)}) > 1

    def calling(self, function: Function) -> set[Function]:
        """The functions that called it."""
        rans = (ran for rans in self.way.phases.values() for ran in rans if ran.function == function)
        return {caller for ran in rans for caller, _ in ran.callers}

    def handing(self, writer: Suspect, phases: Collection[str], names: Collection[str]) -> Iterator[Suspect]:
        """The functions that have a writer write what it is given, where others use the same writer."""
        rans = {
            phase: [ran for ran in rans if ran.function == writer.function] for phase, rans in self.way.phases.items()
        }
        every = [ran for of_phase in rans.values() for ran in of_phase]
        further = self.names_at(writer.file, writer.line) - set(names)
        makes = {
            line
            for ran in every
            for line in self.uses(ran, further, (Does.ASSIGNS, Does.MAKES))
            if line != writer.line and not hands_on(statements(self.text(ran.file)).get(line, ()), further)
        }
        callers = {caller for ran in every for caller, _ in ran.callers}
        if makes or not (len(callers) > 1 or self.serves_several(writer.function)):
            return
        for caller, line in (call for phase in phases for ran in rans.get(phase, ()) for call in ran.callers):
            yield Suspect(caller, line, f"it has {writer.function[1]} write this; that function also serves others")

    def makers(self, names: Collection[str]) -> list[Suspect]:
        """Functions that allocate what has one of these names, and those that set what its size goes by."""
        phases = (BUILD, CAPTURE)
        makers = list(self.by_name(phases, names, (Does.MAKES,), "it allocates the buffer, which is too small"))
        sizes: list[Suspect] = []
        alike = 0
        for maker in makers[:2]:
            owner = maker.function[1].partition(".")[0]
            for ran in self.way.during(*phases):
                if ran.function == maker.function:
                    alike = max(alike, len(self.uses(ran, names, (Does.MAKES,))))
            setters = self.by_name((BUILD,), self._sizes(maker), (Does.ASSIGNS,), "it sets the size of such buffers")
            of_class = (suspect for suspect in setters if suspect.function[1].partition(".")[0] == owner)
            sizes += [suspect for suspect in of_class if suspect.file == maker.file]
        sizes = [suspect for suspect in sizes if suspect.function not in {maker.function for maker in makers}]
        return [*sizes, *makers] if alike > _ALIKE else [*makers, *sizes]

    def _sizes(self, maker: Suspect) -> set[str]:
        """The names that the size of what is made in this line goes by, at once or by another name."""
        names = self.names_at(maker.file, maker.line)
        further = set(names)
        for ran in self.way.during(BUILD, CAPTURE):
            if ran.function == maker.function:
                for line in self.uses(ran, names, (Does.ASSIGNS,)):
                    further |= self.names_at(maker.file, line)
        return further

    def writers(self, step: int, buffer: str = "") -> list[tuple[str, int]]:
        """The file and line of each write that was noted in the call, into this buffer or into any, the last first."""
        places = [write.place for write in writes(self.trace.facts, step) if buffer in ("", write.buffer)]
        matches = filter(None, map(PLACE.search, reversed(places)))
        return [(match[1], int(match[2])) for match in matches]

    def up(
        self, place: tuple[str, int], phases: Sequence[str], names: Collection[str], reason: str
    ) -> Iterator[Suspect]:
        """The innermost function on the way up from a place that speaks of the names: what it calls serves any."""
        function, line = self.at(*place), place[1]
        seen: set[Function] = set()
        while function not in seen:
            seen.add(function)
            rans = [ran for ran in self.way.during(*phases) if ran.function == function]
            lines = [line for ran in rans for line in self.uses(ran, names)]
            if lines:
                yield Suspect(function, lines[0], reason)
                return
            function, line = next((call for ran in rans for call in ran.callers), (function, line))

    def above(self, function: Function) -> Iterator[Function]:
        """It and the functions on the ways up from it, the innermost first."""
        ways, seen = {function}, set[Function]()
        while ways:
            seen |= ways
            yield from sorted(ways)
            ways = {caller for each in ways for caller in self.calling(each)} - seen

    def up_to(self, place: tuple[str, int], pattern: re.Pattern[str], reason: str) -> Iterator[Suspect]:
        """The functions on the ways up from a place, of which a line that ran has the pattern, the innermost first."""
        for function in self.above(self.at(*place)):
            texts = self.text(function[0]).splitlines()
            rans = (ran for rans in self.way.phases.values() for ran in rans if ran.function == function)
            every = sorted({line for ran in rans for line in ran.lines if line <= len(texts)})
            if lines := [line for line in every if pattern.search(texts[line - 1])]:
                yield Suspect(function, lines[0], reason)

    def arguments(self, caller: Function, line: int, kernel: Ran, parameter: str) -> set[str]:
        """The plain names that the launch in this line gives for a kernel's parameter."""
        definitions = (node for node in ast.walk(tree(self.text(kernel.file))) if isinstance(node, ast.FunctionDef))
        parameters = next(([a.arg for a in node.args.args] for node in definitions if node.name == kernel.short), [])
        calls = (
            node
            for statement in statements(self.text(caller[0])).get(line, ())
            for node in ast.walk(statement)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
        )
        values = [
            value
            for call in calls
            for name, value in (*zip(parameters, call.args, strict=False), *((k.arg, k.value) for k in call.keywords))
            if name == parameter
        ]
        nodes = [node for value in values for node in ast.walk(value)]
        return {
            plain(n.attr if isinstance(n, ast.Attribute) else n.id)
            for n in nodes
            if isinstance(n, ast.Name | ast.Attribute)
        } - {"self"}


def _around(scope: ast.AST, line: int) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The class or function directly in this scope that has the line."""
    for node in ast.iter_child_nodes(scope):
        if not (getattr(node, "lineno", line) <= line <= getattr(node, "end_lineno", line)):
            continue
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        else:
            yield from _around(node, line)
