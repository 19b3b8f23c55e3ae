"""Inputs of emulated graphs that sglang has let go of: nothing but recordings holds them, or their owners held them
right after capture and hold them no longer. The harness then still does, to put them back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from runners.engines.graph_inputs import Input
from runners.sessions.holders import Way, roots_with_modules, storage_of, ways


class Liveness:
    """roots: runner and workers, by name. graphs: all that were captured. others: objects through which
    no way leads. Mutable: it remembers ways to inputs, and by which search each was found."""

    def __init__(self, roots: Mapping[str, Any], graphs: Iterable[Any], others: Sequence[Any] = ()) -> None:
        self._owners, self._others = roots, others
        self._known: dict[int, tuple[int, Way]] = {}
        storages = {number for graph in graphs for number in graph.inputs}
        for search in range(3):
            if missing := storages - self._known.keys():
                self._known |= self._found(search, missing)

    def gone(self, graph: Any) -> Iterator[tuple[str, str]]:
        """The inputs of this graph that sglang has let go of, by name, and what became of each, in words."""
        freed = {entry.storage._cdata for entry in graph.freed()}
        lost = self._lost(graph.inputs)
        for number, entry in graph.inputs.items():
            if number in lost:
                yield str(lost[number]), _words(self._fate(lost[number]), entry)
            elif number in freed:
                yield entry.form, _words("freed", entry)

    def _found(self, search: int, storages: set[int]) -> dict[int, tuple[int, Way]]:
        """The ways from owners; from modules, too, a pool of buffers say, which an owner need not know; and by what is
        about the last call, too."""
        roots = roots_with_modules(self._owners) if search else self._owners
        by_storage = ways(roots, storages, last_call=search == 2, past=self._others)
        return {number: (search, way) for number, way in by_storage.items()}

    def _lost(self, inputs: Iterable[int]) -> dict[int, Way]:
        """An input that owners held and that a module alone holds has been replaced, and counts."""
        known = {number: self._known[number] for number in inputs if number in self._known}
        lost = {number: way for number, way in known.items() if storage_of(way[1].end(self._owners)) != number}
        for search in {search for search, _ in lost.values()}:
            others = self._found(search, {number for number, (by, _) in lost.items() if by == search})
            self._known |= others
            lost = {number: way for number, way in lost.items() if number not in others}
        return {number: way for number, (_, way) in lost.items()}

    def _fate(self, way: Way) -> str:
        now = way.end(self._owners)
        return "bound anew" if storage_of(now) else "let go of"


def _words(fate: str, entry: Input) -> str:
    made = f", made at {entry.made}" if entry.made else ""
    return f"{fate}: {entry.form}, captured at {entry.captured}{made}"
