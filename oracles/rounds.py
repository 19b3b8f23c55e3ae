"""Each round gives the same values with graphs and without, on the same workers: under deterministic inference the same
bits. The first difference is named by stage and value; later ones are its consequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from oracles.tolerance import is_promised, multiplied, of_rounds
from oracles.trace_index import Record, text
from repro.cases.case import Case
from repro.cases.families import kv_dtype_of
from repro.cases.rows.serving import GONE, STATE
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "rounds"
TIES, NOTHING = "ties", "no round without graphs"
COUNT = "number of rounds"
# The values of a round by the stage that makes them, in the order in which they come about.
STAGES: Mapping[str, tuple[str, ...]] = {
    "schedule": ("requests", "slots", "seq_lens"),
    "draft": ("drafted", "retrieve_next_token", "retrieve_next_sibling"),
    "verify": ("logits", "accepted", "tokens", "bonus", "new_seq_lens"),
    "draft_extend": ("topk_index", "topk_p", "hidden_states"),
}
KV, STATES = "KV rows of the", "verify states"
NUDGED = (Recorded.ROUND_NUDGED_UP, Recorded.ROUND_NUDGED_DOWN)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between two runs of the rounds of a case. chosen: it is in integers."""

    where: str
    cell: Cell
    chosen: bool = False


def judge(case: Case, trace: Trace) -> Verdict:
    """UNKNOWN if the difference is in integers and rounding noise makes one as early: the first one of all requests, or
    any of this one, behind differences in other values."""
    record = Record(trace)
    counts = {path: _count(record, path) for path in (Recorded.ROUND_GRAPH, Recorded.ROUND_EAGER, *NUDGED)}
    graph, eager = (counts[path] for path in (Recorded.ROUND_GRAPH, Recorded.ROUND_EAGER))
    if not graph or not eager:
        detail = f"Nothing was compared: {NOTHING}."
        return Verdict(oracle=ORACLE, status=Status.UNKNOWN, where=NOTHING, detail=detail)
    setup, engine = case.setup, trace.facts.get("engine", "")
    exact = is_promised(setup.deterministic, engine)
    # Graphs divide attention's sums as they were captured, eager as the batch is: a product moves to the next number.
    case = replace(case, setup=replace(setup, dtype=multiplied(setup.dtype, engine), deterministic=exact))
    first = _first(case, record, Recorded.ROUND_GRAPH, Recorded.ROUND_EAGER)
    if first is None:
        return Verdict(oracle=ORACLE, status=Status.PASS)
    if first.chosen and not exact and any(_turns(case, record, path, first.cell) for path in NUDGED if counts[path]):
        detail = f"From round {first.cell.step} on {first.where} differs; rounding noise turns it over as well."
        return Verdict(oracle=ORACLE, status=Status.UNKNOWN, where=TIES, detail=detail)
    means = [_accepted(record, path) for path in (Recorded.ROUND_GRAPH, Recorded.ROUND_EAGER)]
    detail = (
        f"In round {first.cell.step} {first.where} is {first.cell.got} by graph and {first.cell.want} without, in row "
        f"{first.cell.row}. {means[0]:.3g} tokens were accepted a round by graph, {means[1]:.3g} without."
    ) + " Deterministic inference promises the same bits." * exact
    return Verdict(oracle=ORACLE, status=Status.FAIL, where=first.where, detail=detail, cell=first.cell)


def _count(record: Record, path: Recorded) -> int:
    """The number of rounds of a run."""
    return next(number for number in range(1 << 30) if not record.path(number, path))


def _accepted(record: Record, path: Recorded) -> float:
    """Accepted tokens of a request in a round, on average; 0 without a round."""
    rounds = [record.path(number, path).get("accepted", np.empty(0)) for number in range(_count(record, path))]
    accepted = np.concatenate([np.empty(0), *rounds])
    return float(accepted.sum() / max(1, accepted.size))


def _turns(case: Case, record: Record, path: Recorded, cell: Cell) -> bool:
    """True if a run with nudged embeddings makes another choice, up to the round of this cell."""
    turn = _first(case, record, path, Recorded.ROUND_EAGER)
    if turn is None or turn.cell.step > cell.step:
        return False
    requests = record.path(cell.step, Recorded.ROUND_GRAPH).get("requests")
    if turn.chosen or requests is None or not 0 <= cell.row < len(requests):
        return turn.chosen
    number = int(requests[cell.row])
    return any(
        _choices(record.path(step, path), number) != _choices(record.path(step, Recorded.ROUND_EAGER), number)
        for step in range(turn.cell.step, cell.step + 1)
    )


def _choices(values: Mapping[str, Array], number: int) -> dict[str, object]:
    """The integers of a request's row in a round, by name; empty lists if it is not among the round's requests."""
    rows = np.flatnonzero(values.get("requests", np.empty(0)) == number)
    names = (name for stage in ("draft", "verify") for name in STAGES[stage] if name in values)
    return {name: values[name][rows].tolist() for name in names if values[name].dtype.kind != "f"}


def _first(case: Case, record: Record, path: Recorded, against: Recorded) -> Difference | None:
    ends = _count(record, path), _count(record, against)
    for number in range(min(ends)):
        values, expected = record.path(number, path), record.path(number, against)
        for where, name in _ordered(expected):
            got = values.get(name)
            differs = None if got is None else _differs(number, name, got, _with_gone(expected, name, got), case)
            if differs:
                return Difference(where, differs, chosen=expected[name].dtype.kind != "f")
    if ends[0] != ends[1]:
        cell = Cell(step=min(ends), buffer=COUNT, row=0, column=0, got=str(ends[0]), want=str(ends[1]))
        return Difference(COUNT, cell, chosen=True)
    return None


def _with_gone(values: Mapping[str, Array], name: str, got: Array) -> Array:
    """A value of a round; of requests that ended before it, the same as in the other run: it is dropped."""
    want = values[name]
    gone = values.get("requests", np.empty(0)) == GONE
    if not gone.any() or got.shape != want.shape or len(want) != len(gone):
        return want
    return np.where(gone.reshape(-1, *[1] * (want.ndim - 1)), got, want)


def _ordered(values: Mapping[str, Array]) -> Iterator[tuple[str, str]]:
    """The place of each value in words, and its name."""
    staged = [name for names in STAGES.values() for name in names]
    for stage, names in STAGES.items():
        yield from ((f"{stage} {name}", name) for name in names if name in values)
        if stage == "verify":
            states = sorted(name for name in values if name.startswith(STATE))
            staged += states
            yield from ((STATES, name) for name in states)
    yield from ((f"{KV} {name.partition('_')[0]}", name) for name in sorted(values) if name not in staged)


def _differs(number: int, name: str, got: Array, want: Array, case: Case) -> Cell | None:
    """The first cell in which they differ by more than rounding of the largest value explains; under deterministic
    inference, at all."""
    if got.shape != want.shape:
        shapes = f"shape {got.shape}", f"shape {want.shape}"
        return Cell(step=number, buffer=name, row=-1, column=-1, got=shapes[0], want=shapes[1])
    if want.dtype.kind == "f":
        scale = float(np.nanmax(np.abs(want), initial=0.0))
        allowed = 0.0 if case.setup.deterministic else of_rounds(scale, case.setup.dtype, kv_dtype_of(case.setup))
        apart = ~np.isclose(got, want, rtol=0.0, atol=allowed, equal_nan=True)
    else:
        apart = got != want
    if not apart.any():
        return None
    flat = int(np.argmax(apart.reshape(-1)))
    columns = got.size // got.shape[0]
    return Cell(
        step=number,
        buffer=name,
        row=flat // columns,
        column=flat % columns,
        got=text(got.reshape(-1)[flat]),
        want=text(want.reshape(-1)[flat]),
    )
