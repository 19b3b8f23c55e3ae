"""The outputs of a step match the float64 reference, which no comparison of two paths can show. A row is wrong if every
path that ran, graph and eager or only eager, lies outside of the reference's bounds."""

from __future__ import annotations

from oracles.reference_record import Outside, References, outputs_of, references_of, told_apart
from oracles.trace_index import Record, Wrong, conclude
from repro.cases.case import Case
from repro.traces.finding import Verdict
from repro.traces.paths import BOTH, Recorded
from repro.traces.trace import Array, Trace

ORACLE = "reference"
WRONG = "wrong values"
NOT_ASKED = "no step asked the reference"
_OF_NO_REQUEST = -1

Outputs = dict[Recorded, dict[str, Array]]  # by path and name


def judge(case: Case, trace: Trace) -> Verdict:
    """UNKNOWN if no step asked the reference, or if there is none for this runner."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for number, case_step in enumerate(case.steps):
        references = references_of(record, number, len(case_step.requests))
        if references is None:
            continue
        ran = {path: outputs_of(arrays) for path in BOTH if (arrays := record.path(number, path))}
        if not ran or not _have_one_size(ran):
            continue  # where sizes differ, graph_equals_eager says so
        compared += 1
        wrongs += _wrongs(number, references, ran, len(case_step.requests))
    return told_apart(case.setup, (WRONG,), conclude(ORACLE, wrongs, compared, nothing=NOT_ASKED))


def _have_one_size(ran: Outputs) -> bool:
    """True if all paths give outputs of the same shapes."""
    shapes = [{name: array.shape for name, array in outputs.items()} for outputs in ran.values()]
    return all(other == shapes[0] for other in shapes)


def _wrongs(step: int, references: References, ran: Outputs, count: int) -> list[Wrong]:
    what = "graph and eager are both wrong" if len(ran) > 1 else f"{next(iter(ran))}, which ran alone, is wrong"
    wrongs = []
    for row in [*range(count), _OF_NO_REQUEST]:
        outside = [_outside(references, path, outputs, row) for path, outputs in ran.items()]
        if outside[0] is not None and None not in outside:
            wrongs.append(outside[0].wrong(WRONG, step, row, what))
    if wrongs:
        return wrongs
    # What is off by so little that no row shows it.
    whole = [references.of(path).whole_outside(path, outputs) for path, outputs in ran.items()]
    return [whole[0].wrong(WRONG, step, -1, what)] if whole[0] is not None and None not in whole else []


def _outside(references: References, path: str, outputs: dict[str, Array], row: int) -> Outside | None:
    reference = references.of(path)
    return reference.kv_outside(path) if row == _OF_NO_REQUEST else reference.outside(path, outputs, row)
