"""One small change of a source text, and how many of them are drawn from all that there are."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """file: relative to the import root. function: the outermost one or the method that the change lies in, with the
    name of its class; first_line, last_line: where its code begins, decorators included, and ends. start, end: what is
    replaced, as line and UTF-8 byte column, by `text`, which has as many lines. part: what is replaced, on one line.
    old, new: the statement before and after, without what is nested in it. lines: those of the statement, of which one
    has to be run for the change to matter."""

    file: str
    function: str
    first_line: int
    last_line: int
    line: int
    lines: tuple[int, int]
    operator: str
    start: Place
    end: Place
    text: str
    part: str
    old: str
    new: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The change itself, wherever it stands: the same in a release in which lines have moved."""
        return self.file, self.function, self.old, self.new

    @property
    def id(self) -> str:
        """12 hex digits. The line is part of it: a function may hold the same statement twice."""
        return hashlib.sha256("\n".join([*self.key, str(self.start)]).encode()).hexdigest()[:12]

    def meant(self, request: str) -> bool:
        """True if the text is its id, the end of its file's name, or that and its line (FILE:LINE)."""
        file, _, line = request.partition(":")
        return request == self.id or (self.file.endswith(file) and line in ("", str(self.line)))

    def change(self) -> dict[str, object]:
        """The message for a session that is opened with this mutant."""
        sent = asdict(self)
        return {name: sent[name] for name in ("file", "function", "first_line", "start", "end", "text")}


Group = Mapping[str, Sequence[Mutant]]


def sampled(groups: Group, count: int | None, seed: int) -> Iterator[tuple[str, Mutant]]:
    """Mutants of each group (a runner with its backend) in turn, with the group's name, none twice; of a group's, each
    operator in turn, in an order that the seed gives. count: None for all."""
    source = random.Random(seed)
    queues = {name: _queues(mutants, source) for name, mutants in sorted(groups.items())}
    taken: set[str] = set()
    while queues and (count is None or len(taken) < count):
        for name in list(queues):
            mutant = next((mutant for mutant in queues[name] if mutant.id not in taken), None)
            if mutant is None:
                del queues[name]
            elif count is None or len(taken) < count:
                taken.add(mutant.id)
                yield name, mutant


def _queues(mutants: Sequence[Mutant], source: random.Random) -> Iterator[Mutant]:
    by_operator: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_operator[mutant.operator].append(mutant)
    for waiting in by_operator.values():
        source.shuffle(waiting)
    names = sorted(by_operator)
    source.shuffle(names)
    while names:
        for name in list(names):
            yield by_operator[name].pop()
            if not by_operator[name]:
                names.remove(name)
