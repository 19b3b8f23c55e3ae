"""Reading a trace: its arrays by step and path, the first difference of two arrays, and a verdict from wrongs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from repro.cases.case import Case
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, RecordedArray, Trace

# What was wrong in several places is several failures, each with a verdict of its own.
Judge = Callable[[Case, Trace], Verdict | tuple[Verdict, ...]]
Bools = npt.NDArray[np.bool_]

# Scalars under `launch` that describe the launch; everything else there is a buffer.
LAUNCH_SCALARS = frozenset({"bs", "raw_bs"})


_Paths = dict[tuple[int, str], dict[str, Array]]


def _by_path(everything: tuple[RecordedArray, ...]) -> _Paths:
    paths: _Paths = {}
    for seen in everything:
        paths.setdefault((seen.step, seen.path), {}).setdefault(seen.name, seen.array)
    return paths


class Record:
    """The arrays of a trace, indexed: a trace holds hundreds, and an oracle asks for most of them."""

    _latest: ClassVar[tuple[tuple[RecordedArray, ...], _Paths]] = ((), {})

    def __init__(self, trace: Trace) -> None:
        # All oracles look at the same trace, one after the other.
        seen, paths = Record._latest
        if seen is not trace.seen:
            paths = _by_path(trace.seen)
            Record._latest = (trace.seen, paths)
        self._paths = paths
        self.release = trace.facts.get("sglang", "")

    def path(self, step: int, path: Recorded, call: int = 0) -> Mapping[str, Array]:
        """All arrays of one path of one step, by name; empty if nothing of it was recorded. What padded rows must hold
        may have been recorded once for all steps. call: of a path that each call of a step has, which one."""
        once = self._paths.get((-1, path), {}) if path is Recorded.NEUTRAL else {}
        return self._paths.get((step, f"{path}.{call}" if call else path), once)

    def scalar(self, step: int, path: Recorded, name: str) -> int | None:
        """A recorded whole number, or None."""
        array = self.path(step, path).get(name)
        return None if array is None else int(array.reshape(-1)[0])

    def table(self, step: int) -> Array | None:
        """req_to_token as it is in this step."""
        tables = (self.path(number, Recorded.INPUT).get("req_to_token") for number in range(step, -2, -1))
        return next((table for table in tables if table is not None), None)

    def is_refused(self, step: int) -> bool:
        """True if the runner was asked whether it replays a graph, and none was."""
        return self.scalar(step, Recorded.ASKED, "can_run") is not None and not self.path(step, Recorded.GRAPH)

    def buffers(self, step: int) -> dict[str, Array]:
        """The runner's buffers at launch; empty if no graph was launched in this step."""
        return {name: array for name, array in self.path(step, Recorded.LAUNCH).items() if name not in LAUNCH_SCALARS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """One wrong thing that an oracle found. where: its kind, as coarse as a fingerprint needs it."""

    where: str
    detail: str
    cell: Cell


def same(a: Array, b: Array) -> Bools:
    """The elements in which two arrays of one shape are equal. A NaN equals a NaN."""
    equal = a == b
    if a.dtype.kind == b.dtype.kind == "f":
        equal = equal | ((a != a) & (b != b))
    return np.asarray(equal, dtype=np.bool_)


def equal(a: Array, b: Array) -> bool:
    """True if two arrays agree in shape and in every element. A NaN equals a NaN; the dtype may differ."""
    return a.shape == b.shape and bool(same(a, b).all())


def text(value: object) -> str:
    """A short form of one array element."""
    if isinstance(value, float | np.floating):
        return f"{float(value):.8g}"
    return str(value)


def first_difference(step: int, buffer: str, got: Array, want: Array, *, first_row: int = 0) -> Cell | None:
    """The first cell, by row and column, in which two arrays differ; None if they are equal.

    Both are taken as [rows, columns]; first_row is the row of the buffer at which they begin. Where the shapes
    differ there is no such cell, and the shapes themselves are given for row and column -1.
    """
    if got.shape != want.shape:
        return Cell(step=step, buffer=buffer, row=-1, column=-1, got=f"shape {got.shape}", want=f"shape {want.shape}")
    differs = ~same(got, want)
    if not differs.any():
        return None
    flat = int(np.argmax(differs.reshape(-1)))
    columns = got.size // got.shape[0] if got.ndim else 1
    return Cell(
        step=step,
        buffer=buffer,
        row=first_row + flat // columns,
        column=flat % columns,
        got=text(got.reshape(-1)[flat]),
        want=text(want.reshape(-1)[flat]),
    )


def passing(verdicts: tuple[Verdict, ...], stale: Iterable[str]) -> tuple[Verdict, ...]:
    """The verdicts of one oracle; the first one lists exempted values without a known reader."""
    return (replace(verdicts[0], stale=tuple(sorted(stale))), *verdicts[1:])


def conclude(
    oracle: str, wrongs: Sequence[Wrong], compared: int, *, nothing: str, order: Sequence[str] = ()
) -> Verdict:
    """The verdict on one case.

    Of several wrongs the verdict names the one whose `where` comes first in `order`, in the whole case and not in its
    first step, so that the same bug gets the same fingerprint whatever the numbers; of one kind, the first found.
    Nothing wrong but nothing compared either is UNKNOWN, with `nothing` saying what was missing.
    """
    if wrongs:
        rank = {where: place for place, where in enumerate(order)}
        first = min(wrongs, key=lambda wrong: rank.get(wrong.where, len(rank)))
        return Verdict(oracle=oracle, status=Status.FAIL, where=first.where, detail=first.detail, cell=first.cell)
    if not compared:
        return Verdict(oracle=oracle, status=Status.UNKNOWN, where=nothing, detail=f"Nothing was compared: {nothing}.")
    return Verdict(oracle=oracle, status=Status.PASS)


def conclude_each(
    oracle: str, wrongs: Sequence[Wrong], compared: int, *, nothing: str, label: str = ""
) -> tuple[Verdict, ...]:
    """The same as conclude, where each wrong's `where` is the name of a buffer, with `label` in front of it: a verdict
    for each of them, with the first wrong place of that buffer. What else is wrong renames none of them."""
    if not wrongs:
        return (conclude(oracle, wrongs, compared, nothing=nothing),)
    first: dict[str, Wrong] = {}
    for wrong in wrongs:
        first.setdefault(wrong.where, wrong)
    return tuple(
        Verdict(
            oracle=oracle, status=Status.FAIL, where=f"{label} {name}".strip(), detail=wrong.detail, cell=wrong.cell
        )
        for name, wrong in first.items()
    )
