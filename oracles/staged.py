"""At launch, the real rows of every input buffer hold the caller's values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oracles.trace_index import Record, Wrong, conclude_each, first_difference
from repro.cases.buffer_facts import OF_RANKS, TOKENS_SECOND
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "staged"
DIMENSIONS = 3  # of positions of models that see: time, height, width


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    record = Record(trace)
    wrongs = list(_too_short(case, record.path(-1, Recorded.ROOM)))
    compared = 0
    for step, case_step in enumerate(case.steps):
        if not case_step.requests:
            continue
        # seq_lens_cpu is no input of its own but a copy that the caller's batch carries along.
        batch, carried = record.path(step, Recorded.INPUT), record.path(step, Recorded.BEFORE)
        for name, buffer in record.buffers(step).items():
            if name in batch:
                want = batch[name]
            elif name in carried:
                want = _by_request(carried[name], len(buffer) and buffer[0].size)
            else:
                continue
            compared += 1
            cell = first_difference(step, name, buffer[: len(want)], want)
            if cell:
                detail = f"Row {cell.row} of {name} is {cell.got} when step {step} is launched, expected {cell.want}."
                wrongs.append(Wrong(where=name, detail=detail, cell=cell))
        # Buffers that no family names, and the batch's fields of their names.
        fields = record.path(step, Recorded.FIELD)
        for name, part in record.path(step, Recorded.STAGED).items():
            compared += 1
            cell = first_difference(step, name, part, fields[name])
            if cell:
                detail = f"Row {cell.row} of {name} was launched with {cell.got} in step {step}, given {cell.want}."
                wrongs.append(Wrong(where=name, detail=detail, cell=cell))
    return conclude_each(ORACLE, wrongs, compared, label="real rows of", nothing="no graph launched")


def _too_short(case: Case, shapes: Mapping[str, Array]) -> Iterator[Wrong]:
    """Buffers with too few rows, or tokens, for the largest bucket."""
    for name, shape in shapes.items():
        if name in OF_RANKS or not shape.size:
            continue
        if name in TOKENS_SECOND and shape[0] != DIMENSIONS:
            cell = Cell(step=-1, buffer=name, row=-1, column=-1, got=str(shape[0]), want=str(DIMENSIONS))
            detail = f"{name} has room for positions in {shape[0]} dimensions, and there are {DIMENSIONS}."
            yield Wrong(where=f"{name}, dimensions", detail=detail, cell=cell)
        dimension = 1 if name in TOKENS_SECOND else 0
        got, most = int(shape[dimension]), case.setup.max_bs
        if got % most:
            want = str(-(-got // most) * most)
            cell = Cell(step=-1, buffer=name, row=got, column=0, got=str(got), want=want)
            detail = f"{name} has room for {got} entries, which does not come out even for {most} requests."
            yield Wrong(where=f"{name}, too few", detail=detail, cell=cell)


def _by_request(flat: Array, each: int) -> Array:
    """A flat array of sglang's by request, with `each` values each; unchanged if it does not divide evenly."""
    return flat.reshape(-1, each) if each > 1 and flat.ndim == 1 and flat.size % each == 0 else flat
