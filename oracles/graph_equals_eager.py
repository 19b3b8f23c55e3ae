"""The graph path gives the same outputs and KV writes as the eager path on the same inputs.

Each request row is judged alone, so a tie in one row excuses nothing in another. If the trace has a float64 reference
for a row (reference_record.py), it decides which path is wrong: two paths within its bounds agree, and rows in which
both are wrong are left to the oracle `reference`. Without a reference a row passes if it equals eager, or eager at the
graph's padded shapes, in every element. Otherwise its values may differ by the measured noise, and its integers only
where that noise changes them in eager itself: a tie, which is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from oracles.reference_record import Outside, References, outputs_of, references_of, told_apart
from oracles.tolerance import is_rounding, limit
from oracles.trace_index import Record, Wrong, conclude, equal, first_difference, same, text
from repro.cases.case import Case, Request, Setup
from repro.traces.finding import TIE, Cell, Status, Verdict
from repro.traces.paths import BOTH, VARIANTS, Recorded
from repro.traces.trace import Array, Termination, Trace

ORACLE = "graph_equals_eager"
ABSENT = "missing output"
SHAPE = "shape of an output"
SLOTS = "KV slots written"
TREE = "draft tree"
OUTPUT = "values of an output"
VALUES = "KV values written"
KV_SAME = "kv_same"
MISSING = "graph and eager not both recorded"
# Probabilities, and the logits of which they are a softmax.
SOFTMAX_OF = {"topk_p": "next_token_logits"}

Floats = npt.NDArray[np.float64]
Contents = dict[int, Array]  # what a path left in the KV slots that it changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The results of one path: integer outputs, other outputs, and the changed KV slots outside the reserved page."""

    path: str
    integers: dict[str, Array]
    floats: dict[str, Array]
    kv: Contents

    @property
    def outputs(self) -> dict[str, Array]:
        return self.integers | self.floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """carried: the KV cache before the step, as far as earlier eager paths determine it. references: the right
    results."""

    number: int
    setup: Setup
    graph: Run
    eager: Run
    variants: tuple[Run, ...]
    carried: Contents
    references: References | None = None


def judge(case: Case, trace: Trace) -> Verdict:
    """UNKNOWN for ties, if a run that ended well lacks outputs of a step, and if nothing was compared."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    doubts: list[str] = []
    carried: Contents = {}
    compared = by_eager_alone = 0
    once = record.path(-1, Recorded.INPUT)
    table = None if "refilled" in once else once.get("req_to_token")
    for number, case_step in enumerate(case.steps):
        _forget_prefixes(carried, table, case_step.requests)
        if not case_step.requests or record.is_refused(number):
            by_eager_alone += 1
            continue
        locs = record.path(number, Recorded.INPUT).get("out_cache_loc")
        if _found_equal(record, number):
            compared += 1
            carried.clear()  # what was written is not in the record
            continue
        graph, eager = (_run(case.setup, record, number, path) for path in BOTH)
        if graph is None or eager is None:
            if trace.ended.how is Termination.DONE:
                doubts.append(f"Step {number} lacks outputs of the graph or the eager path.")
            continue
        compared += 1
        if not _all_equal(case.setup, record, number):
            rows = len(case_step.requests)
            step = _step(case.setup, record, number, rows, graph, eager, carried)
            wrongs += _judge_step(step, rows, locs, doubts)
        carried.update(eager.kv)
    if doubts and not wrongs:
        where = TIE if compared + by_eager_alone == len(case.steps) else MISSING
        return Verdict(oracle=ORACLE, status=Status.UNKNOWN, where=where, detail=doubts[0])
    order = (ABSENT, SHAPE, SLOTS, TREE, OUTPUT, VALUES)
    return told_apart(case.setup, order[3:], conclude(ORACLE, wrongs, compared, nothing=MISSING, order=order))


def _forget_prefixes(carried: Contents, table: Array | None, requests: tuple[Request, ...]) -> None:
    """The caller writes the prefixes of a step's requests before it runs, so their earlier contents are gone."""
    if table is None:
        carried.clear()
        return
    for request in requests:
        for slot in carried.keys() & set(table[request.slot, : request.seq_len].tolist()):
            del carried[slot]


def _run(setup: Setup, record: Record, step: int, path: Recorded) -> Run | None:
    """None if the path or a part of it was not recorded. Padded rows may write anywhere in the reserved page."""
    arrays = record.path(step, path)
    outputs = outputs_of(arrays)
    if not outputs or "kv_slots" not in arrays or "kv_rows" not in arrays:
        return None
    slots = arrays["kv_slots"].tolist()
    kv = {slot: row for slot, row in zip(slots, arrays["kv_rows"], strict=True) if slot >= setup.page_size}
    integers = {name: array for name, array in outputs.items() if array.dtype.kind in "iub"}
    floats = {name: array for name, array in outputs.items() if name not in integers}
    return Run(path=path, integers=integers, floats=floats, kv=kv)


def _step(setup: Setup, record: Record, number: int, rows: int, graph: Run, eager: Run, carried: Contents) -> Step:
    variants = (_run(setup, record, number, path) for path in VARIANTS)
    return Step(
        number=number,
        setup=setup,
        graph=graph,
        eager=eager,
        variants=tuple(variant for variant in variants if variant is not None),
        carried=carried,
        references=references_of(record, number, rows),
    )


def _same_outputs(graph: Mapping[str, Array], eager: Mapping[str, Array]) -> bool:
    left, right = outputs_of(graph), outputs_of(eager)
    return left.keys() == right.keys() and all(equal(left[name], right[name]) for name in left)


def _found_equal(record: Record, step: int) -> bool:
    """True if the KV caches were compared in place and are equal, and the recorded outputs are equal."""
    graph, eager = record.path(step, Recorded.GRAPH), record.path(step, Recorded.EAGER)
    same_kv = bool(record.scalar(step, Recorded.EAGER, KV_SAME))
    return same_kv and bool(outputs_of(eager)) and _same_outputs(graph, eager)


def _all_equal(setup: Setup, record: Record, step: int) -> bool:
    """The usual case at once: both paths agree in everything outside the reserved page."""
    graph, eager = record.path(step, Recorded.GRAPH), record.path(step, Recorded.EAGER)
    if not _same_outputs(graph, eager):
        return False
    unreserved = [np.asarray(path["kv_slots"], dtype=np.int64) >= setup.page_size for path in (graph, eager)]
    return all(equal(graph[name][unreserved[0]], eager[name][unreserved[1]]) for name in ("kv_slots", "kv_rows"))


def _judge_step(step: Step, rows: int, locs: Array | None, doubts: list[str]) -> list[Wrong]:
    graph, eager = step.graph.outputs, step.eager.outputs
    for name in sorted(graph.keys() ^ eager.keys()):
        giver, other = ("graph", "eager") if name in graph else ("eager", "graph")
        cell = Cell(step=step.number, buffer=name, row=-1, column=-1, got=f"only {giver}", want="both")
        return [Wrong(where=ABSENT, detail=f"In step {step.number} {giver} gives {name}, {other} does not.", cell=cell)]
    for name, want in eager.items():
        got = graph[name]
        if got.shape != want.shape or len(want) != rows:
            cell = Cell(step=step.number, buffer=name, row=-1, column=-1, got=str(got.shape), want=str(want.shape))
            detail = f"In step {step.number}, of {rows} requests, {name} has shape {got.shape}, in eager {want.shape}."
            return [Wrong(where=SHAPE, detail=detail, cell=cell)]
    slots_of_rows = [set() if locs is None else set(locs[row].reshape(-1).tolist()) for row in range(rows)]
    changed = set(step.graph.kv) | set(step.eager.kv)
    wrongs = []
    for row in range(rows):
        wrong = _judge_row(step, row, sorted(changed & slots_of_rows[row]), doubts)
        if wrong:
            wrongs.append(wrong)
    if not wrongs and step.references is not None:
        whole = _judge_whole(step, step.references)
        wrongs += [whole] if whole else []
    # What was written outside every request's slots belongs to no row, and no tie can excuse it.
    wrong = _judge_kv(step, -1, sorted(changed.difference(*slots_of_rows)), step.variants, doubts)
    return [*wrongs, wrong] if wrong else wrongs


def _judge_row(step: Step, row: int, slots: list[int], doubts: list[str]) -> Wrong | None:
    """Judge a row by the reference if it has one, else by eager."""
    references = step.references
    if references is None:
        return _judge_by_eager(step, row, slots, doubts)
    graph = references.graph.outside("graph", step.graph.outputs, row)
    eager = references.eager.outside("eager", step.eager.outputs, row)
    if graph is None and eager is None:
        return _judge_agreeing(step, references, row, slots, doubts)
    if graph is not None and eager is not None:
        wrong = _judge_by_eager(step, row, slots, doubts)
        return wrong and replace(wrong, detail=f"{wrong.detail} Both are wrong: of eager, {eager}.")
    path, outside = ("graph", graph) if graph else ("eager", eager)
    return _one_wrong(step.number, row, path, outside) if outside else None


def _judge_agreeing(step: Step, references: References, row: int, slots: list[int], doubts: list[str]) -> Wrong | None:
    """A row in which no known value of either path is wrong."""
    slot = _one_sided(step, slots)
    if slot is not None:
        return _slot_wrong(step, row, slot)
    if not all(reference.covers(step.eager.outputs, row) for reference in (references.graph, references.eager)):
        return _judge_by_eager(step, row, slots, doubts)
    turned = _turned(step.graph, step.eager, row)
    if turned:
        doubts.append(
            f"In step {step.number} row {row} the graph gives other {', '.join(turned)} than eager; either is right as "
            "far as rounding can tell."
        )
    return None


def _judge_whole(step: Step, references: References) -> Wrong | None:
    """A wrong value whose error is too small to show in a row."""
    graph = references.graph.whole_outside("graph", step.graph.outputs)
    eager = references.eager.whole_outside("eager", step.eager.outputs)
    outside = graph or eager
    if outside is None or (graph and eager):
        return None
    return _one_wrong(step.number, -1, "graph" if graph else "eager", outside)


def _one_wrong(step: int, row: int, path: str, outside: Outside) -> Wrong:
    where = VALUES if outside.buffer == "kv" else TREE if outside.integer else OUTPUT
    return outside.wrong(where, step, row, f"{path} is wrong and the other path right")


def _judge_by_eager(step: Step, row: int, slots: list[int], doubts: list[str]) -> Wrong | None:
    """Judge by eager and the noise that was measured on eager."""
    again = [variant for variant in step.variants if variant.path == Recorded.EAGER_AGAIN]
    if any(_row_equal(step, other, row, slots) for other in (step.eager, *again)):
        return None
    turned = _turned(step.graph, step.eager, row)
    if not turned:
        # A variant that took another branch wrote other tokens' KV: its distance from eager is no noise.
        calm = tuple(variant for variant in step.variants if not _turned(variant, step.eager, row))
        return _judge_floats(step, row, calm, doubts) or _judge_kv(step, row, slots, calm, doubts)
    slot = _one_sided(step, slots)
    if slot is not None:
        return _slot_wrong(step, row, slot)
    name = turned[0]
    got, want = (run.integers[name][row : row + 1] for run in (step.graph, step.eager))
    cell = first_difference(step.number, name, got, want, first_row=row)
    assert cell is not None  # the name is in `turned`
    detail = f"In step {step.number} row {row} the graph gives other {', '.join(turned)} than eager: {cell}"
    if any(set(turned) <= set(_turned(variant, step.eager, row)) for variant in step.variants):
        doubts.append(f"{detail}; eager turns over there as well when it is moved by rounding noise.")
        return None
    return Wrong(where=TREE, detail=f"{detail}.", cell=cell)


def _turned(run: Run, eager: Run, row: int) -> list[str]:
    """The integer outputs that differ from eager's in this row."""
    return [name for name in eager.integers if not equal(run.integers[name][row], eager.integers[name][row])]


def _row_equal(step: Step, other: Run, row: int, slots: list[int]) -> bool:
    if not all(equal(array[row], other.outputs[name][row]) for name, array in step.graph.outputs.items()):
        return False
    for slot in slots:
        got, want = _content(step, step.graph, slot), _content(step, other, slot)
        if got is None or want is None or not equal(got, want):
            return False
    return True


def _content(step: Step, run: Run, slot: int) -> Array | None:
    """The contents of a slot after a path. A slot that the path did not change has its earlier contents, if known:
    writing the same request twice writes the same values, and the smallest noise then makes one path's list longer."""
    return run.kv.get(slot, step.carried.get(slot))


def _one_sided(step: Step, slots: list[int]) -> int | None:
    """The first slot whose contents are recorded for one of the two paths only; None if there is no such slot."""
    known = (
        _content(step, step.graph, slot) is not None and _content(step, step.eager, slot) is not None for slot in slots
    )
    return next((slot for slot, is_known in zip(slots, known, strict=True) if not is_known), None)


def _judge_floats(step: Step, row: int, calm: tuple[Run, ...], doubts: list[str]) -> Wrong | None:
    """The float outputs of one row, within the noise measured for this row."""
    for name in step.eager.floats:
        got, want, *others = (
            np.asarray(run.floats[name][row], dtype=np.float64).reshape(1, -1)
            for run in (step.graph, step.eager, *calm)
        )
        noise = max((float(_distance(other, want).max(initial=0.0)) for other in others), default=0.0)
        what, scale = f"row {row} the values of {name}", _scale(step.eager, row, name)
        wrong = _judge_values(step, OUTPUT, what, name, [row], got, want, noise, scale, calm, doubts)
        if wrong:
            return wrong
    return None


def _scale(run: Run, row: int, name: str) -> float:
    """The largest magnitude by which an output rounds: its own, or what rounding of logits makes of it. Logits that are
    off by d move a probability p by 2 p d at most."""
    scale = _largest(run.floats[name][row])
    logits = run.floats.get(SOFTMAX_OF.get(name, ""))
    return scale if logits is None else max(scale, 2 * scale * _largest(logits[row]))


def _largest(values: Array) -> float:
    return float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0))


def _judge_kv(step: Step, row: int, slots: list[int], calm: tuple[Run, ...], doubts: list[str]) -> Wrong | None:
    """The KV values of one row, within the noise measured for this row."""
    slot = _one_sided(step, slots)
    if slot is not None:
        return _slot_wrong(step, row, slot)
    if not slots:
        return None
    got, want = _values(step, step.graph, slots), _values(step, step.eager, slots)
    what = f"{f'row {row}' if row >= 0 else 'outside the rows'} the KV values"
    noise = _noise(step, slots, want, calm)
    return _judge_values(step, VALUES, what, "kv", slots, got, want, noise, _largest(want), calm, doubts)


def _judge_values(
    step: Step,
    where: str,
    what: str,
    buffer: str,
    places: list[int],
    got: Floats,
    want: Floats,
    noise: float,
    scale: float,
    calm: tuple[Run, ...],
    doubts: list[str],
) -> Wrong | None:
    """Compare values [places, columns] with eager's. scale: the magnitude that they round as. UNKNOWN if eager itself
    moves as much, by more than rounding."""
    off = _distance(got, want)
    dtype = (where == VALUES and step.setup.kv_dtype) or step.setup.dtype
    allowed = limit(noise, scale, dtype)
    most = float(off.max(initial=0.0))
    if most <= (allowed if is_rounding(noise, scale, dtype) else limit(0.0, scale, dtype)):
        return None
    detail = (
        f"In step {step.number} {what} of the graph are up to {text(most)} from eager's "
        f"(measured noise {text(noise)}, allowed {text(allowed)})"
    )
    if most <= allowed or (step.variants and not calm):
        doubts.append(f"{detail}; eager itself moves as much, so a choice hidden inside the model is tied.")
        return None
    index, column = divmod(int(np.argmax(off > allowed)), off.shape[1])
    pair = (text(float(values[index, column])) for values in (got, want))
    cell = Cell(step=step.number, buffer=buffer, row=places[index], column=column, got=next(pair), want=next(pair))
    return Wrong(where=where, detail=f"{detail}.", cell=cell)


def _noise(step: Step, slots: list[int], want: Floats, calm: tuple[Run, ...]) -> float:
    """The largest distance from eager of a variant that took the same branches."""
    known = [variant for variant in calm if all(_content(step, variant, slot) is not None for slot in slots)]
    return max((float(_distance(_values(step, variant, slots), want).max()) for variant in known), default=0.0)


def _slot_wrong(step: Step, row: int, slot: int) -> Wrong:
    in_graph = slot in step.graph.kv
    states = ("written", "untouched") if in_graph else ("untouched", "written")
    cell = Cell(step=step.number, buffer="kv", row=slot, column=0, got=states[0], want=states[1])
    whose = f"of row {row}" if row >= 0 else "of no request"
    detail = f"In step {step.number} KV slot {slot} {whose} is {states[0]} by the graph and {states[1]} by eager."
    return Wrong(where=SLOTS, detail=detail, cell=cell)


def _values(step: Step, run: Run, slots: list[int]) -> Floats:
    """The contents of these slots, all known, as [slots, values]."""
    rows = [np.asarray(_content(step, run, slot), dtype=np.float64).reshape(-1) for slot in slots]
    return np.stack(rows)


def _distance(a: Floats, b: Floats) -> Floats:
    """The distance, element by element; infinite where only one is a number, or the infinities differ."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
    apart[np.isnan(apart)] = np.inf
    apart[same(a, b)] = 0.0
    return apart
