"""The float64 reference in a trace: the right results of a step, and the largest distance of a right result from them.

Bounds come with the record and follow from the precision and the depth of the computation; none is chosen here. A value
with an infinite bound is unknown: an earlier choice depends on rounding, and its path does not show which one it made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from oracles.trace_index import Record, Wrong, text
from repro.cases.case import Setup
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array

# Recorded of a step. The second where the graph made other choices than eager: what should have followed from those.
BOUND, NORM, SPREAD, ALL = ".bound", ".norm", ".spread", ".all"
KV = ("kv_slots", "kv_rows", "kv_same")  # what a path records besides its outputs
LEFT = {"graph": "kv_graph", "eager": "kv_eager"}  # what these left in the slots that should have been written

Floats = npt.NDArray[np.float64]


def told_apart(setup: Setup, where: Collection[str], verdict: Verdict) -> Verdict:
    """The verdict; a place of this list gets a suffix for options that few setups have: values that are wrong under a
    window or a logit cap are another failure than values that are wrong everywhere, and with other kernels
    (deterministic inference) yet another."""
    if verdict.where not in where:
        return verdict
    having = {
        "window": setup.window,
        "logit cap": setup.logit_cap,
        "deterministic": setup.window and setup.deterministic,
    }
    return replace(verdict, where=", ".join([verdict.where, *(name for name, few in having.items() if few)]))


def outputs_of(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a runner among the arrays of a path."""
    return {name: array for name, array in arrays.items() if name not in KV}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """A result outside its bound. buffer, row, column: as in a Cell. integer: a choice, which has no distance. off,
    bound: the distance from the right result and its limit, of one value or of all values of a token together. whole:
    of all tokens of the step, in units of the expected rounding."""

    buffer: str
    row: int
    column: int
    got: str
    want: str
    integer: bool
    off: float
    bound: float
    whole: bool = False

    def __str__(self) -> str:
        if self.whole:
            return (
                f"{self.buffer}: over all tokens the error is {text(self.off)} times what rounding should cause "
                f"(limit {text(self.bound)}); it is largest where {self.got} should be {self.want}"
            )
        if self.integer:
            return f"{self.buffer} is {self.got}, expected {self.want}, by a margin that rounding cannot explain"
        return (
            f"{self.buffer} is {self.got}, where {self.want} is right, and off by {text(self.off)}, "
            f"of which rounding can explain {text(self.bound)}"
        )

    def wrong(self, where: str, step: int, row: int, what: str) -> Wrong:
        """In a row of a step, -1 for none; what: the kind of values."""
        cell = Cell(step=step, buffer=self.buffer, row=self.row, column=self.column, got=self.got, want=self.want)
        whose = f" row {row}" if row >= 0 else ""
        return Wrong(where=where, detail=f"In step {step}{whose} {what}: {self}.", cell=cell)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One step's reference, as recorded. rows: which request each KV slot belongs to, -1 for none, [slots]."""

    arrays: Mapping[str, Array]
    rows: npt.NDArray[np.int64]

    @property
    def outputs(self) -> list[str]:
        return [name for name in self.arrays if not name.startswith("kv_") and name + BOUND in self.arrays]

    def covers(self, outputs: Mapping[str, Array], row: int) -> bool:
        """True if all values of these outputs in a row are known, and the KV of the row."""
        if not all(name in self.arrays and np.isfinite(self._bound(name, row)).all() for name in outputs):
            return False
        mask = self.rows == row
        return not mask.any() or bool(np.isfinite(self.arrays["kv_rows" + BOUND][mask]).all())

    def outside(self, path: str, outputs: Mapping[str, Array], row: int) -> Outside | None:
        """The first wrong place of a path in a row. Choices come first: values that depend on them are wrong with
        them."""
        names = sorted(self.outputs, key=lambda name: self.arrays[name].dtype.kind not in "iub")
        for name in names:
            if name in outputs:
                wrong = self._row_outside(name, outputs[name][row], row)
                if wrong:
                    return wrong
        return self._kv_outside(path, row)

    def whole_outside(self, path: str, outputs: Mapping[str, Array]) -> Outside | None:
        """The first output, or the KV, with a small error in all tokens."""
        for name in [*self.outputs, "kv_rows"]:
            if self.arrays.get(name + ALL) is None:
                continue
            values = self.arrays[LEFT[path]] if name == "kv_rows" else outputs.get(name)
            wrong = None if values is None else self._whole_outside(name, values)
            if wrong:
                return wrong
        return None

    def _whole_outside(self, name: str, values: Array) -> Outside | None:
        want, spread = (self.arrays[part].astype(np.float64) for part in (name, name + SPREAD))
        got = values.astype(np.float64).reshape(want.shape)
        with np.errstate(invalid="ignore"):
            off = np.abs(got - want).reshape(*spread.shape, -1)
            sizes = np.sqrt(np.square(off).sum(axis=-1)) / spread
        sizes[np.isinf(spread)] = 0.0
        total, bound = float(np.sqrt(np.square(sizes).sum())), float(self.arrays[name + ALL].reshape(-1)[0])
        if total <= bound:
            return None
        row, token = np.unravel_index(int(np.argmax(sizes)), sizes.shape)
        column = int(token) * off.shape[-1] + int(np.argmax(off[row, token]))
        is_kv = name == "kv_rows"
        place = int(self.arrays["kv_slots"][row]) if is_kv else int(row)
        cell = _float_cell("kv" if is_kv else name, place, column, got[row], want[row], total, bound)
        return replace(cell, whole=True)

    def kv_outside(self, path: str) -> Outside | None:
        """In slots of no request."""
        return self._kv_outside(path, -1)

    def _bound(self, name: str, row: int) -> Floats:
        bound: Floats = self.arrays[name + BOUND][row].astype(np.float64).reshape(-1)
        return bound

    def _row_outside(self, name: str, row_values: Array, row: int) -> Outside | None:
        want = self.arrays[name][row].reshape(-1)
        if want.dtype.kind in "iub":
            differs = (row_values.reshape(-1) != want) & np.isfinite(self._bound(name, row))
            if not differs.any():
                return None
            column = int(np.argmax(differs))
            cells = (text(values.reshape(-1)[column]) for values in (row_values, want))
            return Outside(
                buffer=name, row=row, column=column, got=next(cells), want=next(cells), integer=True, off=0.0, bound=0.0
            )
        norm = np.asarray(self.arrays[name + NORM], dtype=np.float64)[row].reshape(-1)
        return _floats_outside(name, row, row_values, want, self._bound(name, row), norm)

    def _kv_outside(self, path: str, row: int) -> Outside | None:
        for place in np.flatnonzero(self.rows == row).tolist():
            slot = int(self.arrays["kv_slots"][place])
            got, want, bound, norm = (
                np.asarray(self.arrays[name][place])
                for name in (LEFT[path], "kv_rows", "kv_rows" + BOUND, "kv_rows" + NORM)
            )
            wrong = _floats_outside("kv", slot, got, want, bound, norm)
            if wrong:
                return wrong
        return None


def _floats_outside(buffer: str, row: int, got: Array, want: Array, bound: Array, norm: Array) -> Outside | None:
    """Values of one row against theirs and their bounds, [width] each; norm: of as many tokens as the row has."""
    values, right = (np.asarray(array, dtype=np.float64).reshape(-1) for array in (got, want))
    with np.errstate(invalid="ignore"):
        off = np.abs(values - right)
    off[np.isnan(off)] = np.inf
    cell = (off > bound) | (np.isinf(off) & ~np.isnan(bound))
    cell &= np.isfinite(bound)
    if cell.any():
        column = int(np.argmax(np.where(cell, off, -1.0)))
        return _float_cell(buffer, row, column, values, right, float(off[column]), float(bound[column]))
    together = np.sqrt(np.square(off.reshape(norm.size, -1)).sum(axis=1))
    wrong = (together > norm.reshape(-1)) & np.isfinite(norm.reshape(-1))
    if not wrong.any():
        return None
    token = int(np.argmax(wrong))
    width = off.size // norm.size
    column = token * width + int(np.argmax(off[token * width : (token + 1) * width]))
    return _float_cell(buffer, row, column, values, right, float(together[token]), float(norm.reshape(-1)[token]))


def _float_cell(buffer: str, row: int, column: int, got: Floats, want: Floats, off: float, bound: float) -> Outside:
    cells = (text(float(values[column])) for values in (got, want))
    return Outside(
        buffer=buffer, row=row, column=column, got=next(cells), want=next(cells), integer=False, off=off, bound=bound
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The references of one step, for each path."""

    graph: Reference
    eager: Reference

    def of(self, path: str) -> Reference:
        return self.graph if path == Recorded.GRAPH else self.eager


def references_of(record: Record, step: int, count: int) -> References | None:
    """None if nothing was recorded. count: requests."""
    locs = record.path(step, Recorded.INPUT).get("out_cache_loc")
    eager = _reference_of(record.path(step, Recorded.REFERENCE), locs, count)
    graph = _reference_of(record.path(step, Recorded.REFERENCE_GRAPH), locs, count)
    return References(graph=graph or eager, eager=eager) if eager else None


def _reference_of(arrays: Mapping[str, Array], locs: Array | None, count: int) -> Reference | None:
    if not arrays:
        return None
    slots = np.asarray(arrays.get("kv_slots", np.empty(0)), dtype=np.int64)
    rows = np.full(slots.shape, -1, dtype=np.int64)
    for row in range(count if locs is not None else 0):
        assert locs is not None
        rows[np.isin(slots, locs[row].reshape(-1))] = row
    return Reference(arrays=arrays, rows=rows)
