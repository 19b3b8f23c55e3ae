"""The recurrent states that the graph leaves for a batch's requests match those of eager; after a verify's commit, both
match sequential decoding of the accepted tokens; and a state that decoding keeps is a copy of the request's own.
Request by request, within measured noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oracles.tolerance import is_rounding, limit
from oracles.trace_index import Record, Wrong, conclude_each, text
from repro.cases.case import Case
from repro.cases.layout import is_kept
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.paths import BOTH, VARIANTS, Recorded
from repro.traces.trace import Array, Trace

ORACLE = "state_values"
# Decoding the accepted tokens one after another, and the same with token embeddings moved by noise.
SEQUENTIAL, NUDGED = "sequential", "sequential_nudged"
# In front of the kinds of states that are kept, and the path that they are compared with where decoding keeps them.
TRACKED, COPIED = "tracked ", "the request's own state"
DOUBT = "eager moves by more than rounding"
Floats = npt.NDArray[np.float64]
Kinds = Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two paths of a step, the states that each left by kind, [requests, n], and what the second leaves as well when it
    is moved by noise."""

    step: int
    paths: tuple[str, str]
    got: Kinds
    want: Kinds
    variants: Sequence[Kinds]


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """UNKNOWN if no two paths left states, and if eager itself moves by more than rounding."""
    record = Record(trace)
    pairs = [pair for step in range(len(case.steps)) for pair in (*_pairs(record, step), *_copies(case, record, step))]
    compared = sum(array.size for pair in pairs for array in pair.want.values())
    differences = [difference for pair in pairs for difference in _differences(pair, case.setup.dtype)]
    wrongs = [wrong for wrong, is_sure in differences if is_sure]
    if differences and not wrongs:
        detail = differences[0][0].detail
        return (Verdict(oracle=ORACLE, status=Status.UNKNOWN, where=DOUBT, detail=detail),)
    return conclude_each(ORACLE, wrongs, compared, nothing="no recurrent states of two paths")


def _of_paths(record: Record, step: int) -> dict[str, dict[str, Array]]:
    """The states that each path left, by kind."""
    paths: dict[str, dict[str, Array]] = {}
    for name, array in record.path(step, Recorded.STATE_VALUES).items():
        path, _, kind = name.partition(".")
        paths.setdefault(path, {})[kind] = array
    return paths


def _pairs(record: Record, step: int) -> Iterator[Pair]:
    paths = _of_paths(record, step)
    against = {Recorded.EAGER: VARIANTS, SEQUENTIAL: (NUDGED,)}
    for other, nudged in against.items():
        for path in BOTH:
            if path != other and path in paths and other in paths:
                variants = [paths[name] for name in nudged if name in paths]
                yield Pair(step=step, paths=(path, other), got=paths[path], want=paths[other], variants=variants)


def _copies(case: Case, record: Record, step: int) -> Iterator[Pair]:
    """The states that decoding keeps, of requests that have come to a length at which it does."""
    kept = np.array([is_kept(case.setup, request.seq_len) for request in case.steps[step].requests])
    if case.setup.runner != "decode" or not kept.any():
        return
    for path, states in _of_paths(record, step).items():
        tracked = [name for name in states if name.startswith(TRACKED)] if path in BOTH else []
        if tracked:
            of_requests = {name: states[name.removeprefix(TRACKED)] for name in tracked}
            got = {name: np.where(kept[:, None], states[name], each) for name, each in of_requests.items()}
            yield Pair(step=step, paths=(path, COPIED), got=got, want=of_requests, variants=())


def _differences(pair: Pair, dtype: str) -> Iterator[tuple[Wrong, bool]]:
    """The requests whose states differ, and whether rounding cannot explain it."""
    for kind, every in pair.want.items():
        for row in range(len(every)):
            got, want, *others = (
                np.asarray(each[kind][row], dtype=np.float64) for each in (pair.got, pair.want, *pair.variants)
            )
            others = others if np.isfinite(want).all() else []
            noise = max((_distance(other, want).max() for other in others), default=0.0)
            scale = float(np.max(np.abs(want), where=np.isfinite(want), initial=0.0))
            is_small = is_rounding(noise, scale, dtype)
            off, allowed = _distance(got, want), limit(noise if is_small else 0.0, scale, dtype)
            if off.max() > allowed:
                yield _wrong(pair, kind, row, int(np.argmax(off)), (got, want), allowed), is_small


def _distance(a: Floats, b: Floats) -> Floats:
    """The distance, element by element; infinite where either is no number."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
    return np.where(np.isfinite(apart), apart, np.inf)


def _wrong(pair: Pair, kind: str, row: int, column: int, values: tuple[Floats, Floats], allowed: float) -> Wrong:
    path, other = pair.paths
    got, want = (text(float(value[column])) for value in values)
    cell = Cell(step=pair.step, buffer=f"{kind} states", row=row, column=column, got=got, want=want)
    detail = (
        f"In step {pair.step} the {kind} state that {path} leaves to row {row} is {got} at [{column}], by {other} "
        f"{want} (allowed {text(allowed)})."
    )
    behind = {SEQUENTIAL: " behind a commit", COPIED: ", a copy"}.get(other, "")
    return Wrong(where=f"{kind} states of {path}{behind}", detail=detail, cell=cell)
