"""What one target showed of one case, in the form in which two targets are compared: verdicts, and the outputs of each
step with what is known of their noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from repro.cases.case import Case
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Array, How, Trace

INTEGERS = ("tokens", "parents", "scores_index")
PATHS = ("graph", "eager")
# Eager passes that show what rounding alone moves.
VARIANTS = ("eager_again", "eager_nudged_up", "eager_nudged_down")

Contents = Mapping[int, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What one path of one step left. integers: by name, one row per request. slots: the KV slots written, the reserved
    page apart. kv: what was left in them, as far as it was recorded."""

    integers: Mapping[str, Array]
    slots: frozenset[int]
    kv: Contents


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One step. paths: by name. given: the KV slots of each request's drafts. turned: for each request whether noise
    turned its tree over on this target; noise: how far its KV values then moved, at most."""

    paths: Mapping[str, Outputs]
    given: tuple[frozenset[int], ...]
    turned: tuple[bool, ...]
    noise: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """how, what: how the run ended. verdicts: in the oracles' order; overall: what they come to; both empty where we
    could not run it. steps: by number, those of which something was recorded."""

    case: Case
    how: str
    what: str
    verdicts: tuple[Verdict, ...]
    overall: Status | None
    steps: Mapping[int, Seen]

    @property
    def took_place(self) -> bool:
        return self.how != How.UNFIT


def observe(case: Case, trace: Trace, verdicts: Sequence[Verdict], overall: Status | None) -> Observation:
    """Take out of a trace what is compared."""
    ended = trace.ended
    took_place = ended.how is not How.UNFIT
    arrays: dict[tuple[int, str], dict[str, Array]] = {}
    for seen in trace.seen:
        arrays.setdefault((seen.step, seen.path), {})[seen.name] = seen.array
    steps = {number: _step(case, arrays, number) for number in range(len(case.steps)) if (number, "eager") in arrays}
    return Observation(
        case=case,
        how=ended.how.value,
        what=ended.what,
        verdicts=tuple(verdicts) if took_place else (),
        overall=overall if took_place else None,
        steps=steps,
    )


def _step(case: Case, arrays: Mapping[tuple[int, str], Mapping[str, Array]], number: int) -> Seen:
    def outputs(path: str) -> Outputs | None:
        return _outputs(arrays.get((number, path), {}), case.setup.page_size)

    rows = len(case.steps[number].requests)
    locations = arrays.get((number, "input"), {}).get("out_cache_loc")
    given = tuple(frozenset[int]() if locations is None else _numbers(locations[row]) for row in range(rows))
    eager = outputs("eager")
    variants = [found for path in VARIANTS if (found := outputs(path))]
    return Seen(
        paths={path: found for path in PATHS if (found := outputs(path))},
        given=given,
        turned=tuple(eager is not None and any(turned(one, eager, row) for one in variants) for row in range(rows)),
        noise=tuple(
            0.0 if eager is None else max((distance(one.kv, eager.kv, given[row])[0] for one in variants), default=0.0)
            for row in range(rows)
        ),
    )


def _outputs(found: Mapping[str, Array], page_size: int) -> Outputs | None:
    if any(name not in found for name in (*INTEGERS, "kv_slots")):
        return None
    slots = _numbers(found["kv_slots"])
    rows = found.get("kv_rows")
    kv = {} if rows is None else dict(zip(found["kv_slots"].tolist(), rows, strict=True))
    return Outputs(
        integers={name: found[name] for name in INTEGERS},
        slots=frozenset(slot for slot in slots if slot >= page_size),
        kv={slot: row for slot, row in kv.items() if slot >= page_size},
    )


def _numbers(array: Array) -> frozenset[int]:
    return frozenset(int(number) for number in np.asarray(array).reshape(-1).tolist())


def turned(one: Outputs, other: Outputs, row: int) -> bool:
    """Whether two paths gave this request different trees."""
    return any(not _same_row(one.integers[name], other.integers[name], row) for name in INTEGERS)


def _same_row(a: Array, b: Array, row: int) -> bool:
    return len(a) > row and len(b) > row and bool(np.array_equal(a[row], b[row]))


def distance(a: Contents, b: Contents, slots: frozenset[int]) -> tuple[float, float]:
    """How far apart the values in these slots are at most, of those that both hold, and the largest magnitude of b.
    Infinitely far where only one is a number. (0, 0) where nothing is compared."""
    both = sorted(slots & a.keys() & b.keys())
    if not both:
        return 0.0, 0.0
    x, y = (_stacked(contents, both) for contents in (a, b))
    if x.shape != y.shape:
        return float("inf"), 0.0
    with np.errstate(invalid="ignore"):
        apart = np.abs(x - y)
    apart[np.isnan(apart)] = np.inf
    apart[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
    return float(apart.max()), float(np.max(np.abs(y), where=np.isfinite(y), initial=0.0))


def _stacked(contents: Contents, slots: list[int]) -> npt.NDArray[np.float64]:
    return np.stack([np.asarray(contents[slot], dtype=np.float64).reshape(-1) for slot in slots])
