"""One target's results of one case, in the form in which two targets are compared: verdicts, and the outputs of each
step with what is known of their noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from repro.cases.case import Case
from repro.traces.finding import Status, Verdict
from repro.traces.paths import BOTH, MOVES, OPINIONS, VARIANTS, Recorded
from repro.traces.trace import Array, Termination, Trace

# What was asked of the reference, of graph only where it made other choices than eager.
# Eager passes that show what rounding alone moves.
# What is recorded of runners without a graph: the moves of kv_move, the events of a verify call without a graph.
LISTED = (*MOVES, Recorded.PADDING, Recorded.METADATA, Recorded.ATTENTION)
# What a batch is given that an eager draft chose just before, on the same target: where rounding turned a choice over
# there, the call itself was another one.
DRAFTED = ("parents", "scores_index", "tokens")
# Under which name the noise of KV values is kept, beside that of each output.
KV = "kv"
_KV_NAMES = ("kv_slots", "kv_rows", "kv_same", "kv_differs")

Contents = Mapping[int, Array]
Arrays = Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The results of one path of one step. integers, values: what was returned, by name, one row per request; of values
    a recording keeps some columns, and widths says how many there were. slots: the KV slots written, the reserved page
    apart. kv: what was left in them, as far as it was recorded."""

    integers: Arrays
    values: Arrays
    widths: Mapping[str, int]
    slots: frozenset[int]
    kv: Contents


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutputs:
    """One step. paths: by name. allocated: the KV slots that each request may write. turned: for each request whether
    rounding may change its integers: noise did on this target, or the reference in float64, where it was asked, is not
    sure of them; noise: by output, and KV, how far each request's values then moved, at most. listed: what a runner
    without a graph recorded, by path and name. drafted: what was chosen before the call, one row per request. right: by
    path and output, for each request, whether the reference was asked and grants it, as far as rounding goes: the same
    choices, values within its bounds."""

    paths: Mapping[str, Outputs]
    allocated: tuple[frozenset[int], ...]
    turned: tuple[bool, ...]
    noise: Mapping[str, tuple[float, ...]]
    listed: Arrays = field(default_factory=dict)
    drafted: Arrays = field(default_factory=dict)
    right: Mapping[str, Mapping[str, tuple[bool, ...]]] = field(default_factory=dict)

    def grants(self, path: str, names: Iterable[str], row: int) -> bool:
        """True if the reference was asked for all of these outputs, and grants them to this request."""
        known = self.right.get(path, {})
        return all(name in known and known[name][row] for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """how, what: how the run ended. verdicts: in the oracles' order; overall: what they come to; both empty where we
    could not run it. steps: by number, those of which something was recorded."""

    case: Case
    how: str
    what: str
    verdicts: tuple[Verdict, ...]
    overall: Status | None
    steps: Mapping[int, StepOutputs]

    @property
    def took_place(self) -> bool:
        return Termination(self.how).took_place


def observe(case: Case, trace: Trace, verdicts: Sequence[Verdict], overall: Status | None) -> Observation:
    """Take out of a trace what is compared."""
    ended = trace.ended
    took_place = ended.how.took_place
    arrays: dict[tuple[int, str], dict[str, Array]] = {}
    for seen in trace.seen:
        arrays.setdefault((seen.step, seen.path), {})[seen.name] = seen.array
    graphless = not any(path in (Recorded.LAUNCH, *BOTH) for _, path in arrays)
    steps = {}
    for number in range(len(case.steps)):
        if (number, Recorded.EAGER) in arrays:
            steps[number] = _step(case, arrays, number)
        elif graphless and (listed := dict(_listed(arrays, number))):
            steps[number] = StepOutputs(paths={}, allocated=(), turned=(), noise={}, listed=listed)
    return Observation(
        case=case,
        how=ended.how.value,
        what=ended.what,
        verdicts=tuple(verdicts) if took_place else (),
        overall=overall if took_place else None,
        steps=steps,
    )


def _listed(arrays: Mapping[tuple[int, str], Arrays], number: int) -> Iterator[tuple[str, Array]]:
    for path in LISTED:
        for name, array in arrays.get((number, path), {}).items():
            # Of nothing, one engine records an empty array and the other none.
            if array.size:
                yield f"{path} {name}", array


def _step(case: Case, arrays: Mapping[tuple[int, str], Arrays], number: int) -> StepOutputs:
    def outputs(path: str) -> Outputs | None:
        return _outputs(arrays.get((number, path), {}), case.setup.page_size)

    rows = len(case.steps[number].requests)
    inputs = arrays.get((number, Recorded.INPUT), {})
    reference = arrays.get((number, Recorded.REFERENCE), {})
    locations = inputs.get("out_cache_loc")
    slots_of_rows = tuple(frozenset[int]() if locations is None else _numbers(locations[row]) for row in range(rows))
    ran = {path: left for path in BOTH if (left := outputs(path))}
    eager = ran.get(Recorded.EAGER)
    variants = [variant for path in VARIANTS if (variant := outputs(path))]
    return StepOutputs(
        paths={str(path): left for path, left in ran.items()},
        allocated=slots_of_rows,
        turned=tuple(
            eager is not None
            and (any(turned(moved, eager, row) for moved in variants) or _unsure(reference, eager, row))
            for row in range(rows)
        ),
        noise={} if eager is None else _noise(eager, variants, slots_of_rows),
        drafted={name: inputs[name] for name in DRAFTED if name in inputs},
        right={path: _right(arrays.get((number, OPINIONS[path]), reference), left, rows) for path, left in ran.items()},
    )


def _unsure(reference: Arrays, eager: Outputs, row: int) -> bool:
    """True if the reference says of one of a request's integers that rounding decides."""
    bounds = (reference.get(f"{name}.bound") for name in eager.integers)
    return any(bound is not None and len(bound) > row and np.isinf(bound[row]).any() for bound in bounds)


def _noise(
    eager: Outputs, variants: Sequence[Outputs], slots_of_rows: Sequence[frozenset[int]]
) -> dict[str, tuple[float, ...]]:
    """The distance that each request's values moved in an eager pass over almost the same inputs, by output, and KV."""
    kv = (max((distance(v.kv, eager.kv, slots)[0] for v in variants), default=0.0) for slots in slots_of_rows)
    values = {
        name: tuple(
            max((apart(v, eager, name, row)[0] for v in variants), default=0.0) for row in range(len(slots_of_rows))
        )
        for name in eager.values
    }
    return {KV: tuple(kv)} | values


def _outputs(recorded: Arrays, page_size: int) -> Outputs | None:
    returned = {name: array for name, array in recorded.items() if name not in _KV_NAMES}
    if not returned or "kv_slots" not in recorded:
        return None
    integers = {name: array for name, array in returned.items() if array.dtype.kind in "iub"}
    values = {
        name: array.reshape(len(array), math.prod(array.shape[1:]))
        for name, array in returned.items()
        if name not in integers
    }
    slots = _numbers(recorded["kv_slots"])
    rows = recorded.get("kv_rows")
    kv = {} if rows is None else dict(zip(recorded["kv_slots"].tolist(), rows, strict=True))
    return Outputs(
        integers=integers,
        values=values,
        widths={name: array.shape[1] for name, array in values.items()},
        slots=frozenset(slot for slot in slots if slot >= page_size),
        kv={slot: row for slot, row in kv.items() if slot >= page_size},
    )


def _right(reference: Arrays, path: Outputs, rows: int) -> dict[str, tuple[bool, ...]]:
    """For each output and request, True if a reference that follows a path's choices as far as rounding explains them
    made all of the request's, or lies as near to its values as rounding explains. What it was not asked is left out."""
    outputs = {**path.integers, **path.values}
    known = [name for name in outputs if name in reference and f"{name}.bound" in reference]
    return {name: tuple(_granted(reference, name, outputs[name], row) for row in range(rows)) for name in known}


def _granted(reference: Arrays, name: str, output: Array, row: int) -> bool:
    right = reference[name]
    if right.dtype.kind in "iub":
        return _same_row(right, output, row)
    if not len(output) > row < len(right) or output[row].size != right[row].size:
        return False
    bound, norm = (
        np.asarray(reference[name + part], dtype=np.float64)[row].reshape(-1) for part in (".bound", ".norm")
    )
    off = np.abs(output[row].astype(np.float64).reshape(-1) - right[row].reshape(-1))
    together = np.sqrt(np.square(off.reshape(norm.size, -1)).sum(axis=1))
    return bool((off <= bound).all() and (together <= norm).all())


def _numbers(array: Array) -> frozenset[int]:
    return frozenset(int(number) for number in np.asarray(array).reshape(-1).tolist())


def turned(eager: Outputs, variant: Outputs, row: int) -> bool:
    """True if two paths gave this request different integers: another tree, other tokens."""
    return unlike(eager.integers, variant.integers, row)


def unlike(some: Arrays, others: Arrays, row: int) -> bool:
    """True if these arrays, by name, differ in a request's row."""
    return any(not _same_row(some.get(name), others.get(name), row) for name in some.keys() | others.keys())


def _same_row(a: Array | None, b: Array | None, row: int) -> bool:
    return a is not None and b is not None and len(a) > row < len(b) and bool(np.array_equal(a[row], b[row]))


def thinned(array: Array, count: int) -> Array:
    """So many columns of [rows, columns], spread evenly; all where there are no more."""
    columns = array.shape[1]
    return array if columns <= count else array[:, np.arange(count) * columns // count]


def apart(left: Outputs, right: Outputs, name: str, row: int) -> tuple[float, float]:
    """The largest distance in this output of a request, in the columns that both hold, and the largest magnitude of
    the other. Infinitely far where one has no such row, or only one is a number."""
    a, b = (outputs.values.get(name) for outputs in (left, right))
    if a is None or b is None or left.widths[name] != right.widths[name] or not len(a) > row < len(b):
        return float("inf"), 0.0
    count = min(a.shape[1], b.shape[1])
    return _farthest(*(thinned(array[row : row + 1], count) for array in (a, b)))


def distance(a: Contents, b: Contents, slots: frozenset[int]) -> tuple[float, float]:
    """The largest distance between values in these slots, of those that both hold, and the largest magnitude of b.
    Infinitely far where only one is a number. (0, 0) where nothing is compared."""
    both = sorted(slots & a.keys() & b.keys())
    if not both:
        return 0.0, 0.0
    x, y = (np.stack([contents[slot].reshape(-1) for slot in both]) for contents in (a, b))
    count = min(x.shape[1], y.shape[1])
    return _farthest(thinned(x, count), thinned(y, count))


def _farthest(left: Array, right: Array) -> tuple[float, float]:
    x: npt.NDArray[np.float64] = np.asarray(left, dtype=np.float64)
    y: npt.NDArray[np.float64] = np.asarray(right, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        between = np.abs(x - y)
    between[np.isnan(between)] = np.inf
    between[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
    return float(between.max(initial=0.0)), float(np.max(np.abs(y), where=np.isfinite(y), initial=0.0))
