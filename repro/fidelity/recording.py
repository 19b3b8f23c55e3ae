"""The file in which one host keeps what a target showed, so that another host compares its own target with it.

One .npz of plain numbers: the bytes of all arrays, each once, and a JSON head that says which is what.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repro.cases import stored_arrays
from repro.cases.case import Target, problems
from repro.cases.codec import case_from_json, case_to_json
from repro.cases.stored_arrays import MALFORMED, Damaged
from repro.fidelity.observation import Observation, Outputs, StepOutputs, thinned
from repro.traces.earlier import told_apart
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Array
from repro.traces.typed import typed

FORMAT = 3
# KV rows kept of a path of a step, and columns of a KV row and of a request's row of an output, spread over all: enough
# to meet whatever is wrong with a kernel, and a few MB for a hundred cases.
KV_ROWS_KEPT = 64
KV_COLUMNS_KEPT = 32
COLUMNS_KEPT = 64
# Limits of all arrays of a file and of its head: some thousand cases.
BYTES_MAX = 512 << 20
_HEAD_MAX = 64 << 20


class BadRecording(ValueError):
    """This is no recording. The text, one line, says what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A target's observations."""

    target: Target
    observations: tuple[Observation, ...]


def save(path: Path, recording: Recording) -> None:
    """Put the recording at this path, whole or not at all. BadRecording if it is too large, OSError if the disk
    refuses."""
    store = _Store()
    cases = [_case_to_json(observation, store) for observation in recording.observations]
    head = {"format": FORMAT, "target": str(recording.target), "arrays": store.forms, "cases": cases}
    if sum(map(len, store.parts)) > BYTES_MAX:
        raise BadRecording(f"{path}: not stored: more than {BYTES_MAX >> 20} MiB of arrays; record fewer cases a file")
    stored_arrays.save(path, head, store.parts)


def load(path: Path) -> Recording:
    """The recording in this file. BadRecording, naming it, if it cannot be read or is not a recording."""
    try:
        head, body = stored_arrays.load(path, head_max=_HEAD_MAX, body_max=BYTES_MAX)
        if head["format"] != FORMAT:
            raise BadRecording(f"{path}: format {head['format']!r:.20} is unknown: this version reads {FORMAT}")
        arrays = list(stored_arrays.arrays(head["arrays"], body))
        observations = tuple(_case_from_json(form, arrays) for form in head["cases"])
        return Recording(target=Target.parse(head["target"]), observations=observations)
    except BadRecording:
        raise
    except OSError as error:
        raise BadRecording(f"{path}: {error.strerror or error}") from error
    except Damaged as error:
        raise BadRecording(f"{path}: damaged, or not a recording: {error}") from error
    except MALFORMED as error:
        raise BadRecording(f"{path}: not a recording of python -m repro fidelity ({type(error).__name__})") from error


class _Store:
    """The arrays of a file, equal ones once: a graph usually gives what eager gives. Mutable."""

    def __init__(self) -> None:
        self.forms: list[list[object]] = []
        self.parts: list[bytes] = []
        self._known: dict[tuple[str, tuple[int, ...], bytes], int] = {}

    def put(self, array: Array) -> int:
        """Its number in the file."""
        data = array.tobytes()
        key = (array.dtype.str, array.shape, data)
        if key not in self._known:
            self._known[key] = len(self.forms)
            self.forms.append([array.dtype.str, list(array.shape)])
            self.parts.append(data)
        return self._known[key]


def _case_to_json(observation: Observation, store: _Store) -> dict[str, Any]:
    return {
        "case": case_to_json(observation.case),
        "how": observation.how,
        "what": observation.what,
        "overall": None if observation.overall is None else observation.overall.name,
        "verdicts": [
            {"oracle": v.oracle, "status": v.status.name, "where": v.where, "detail": v.detail}
            for v in observation.verdicts
        ],
        "steps": {str(number): _step_to_json(step, store) for number, step in observation.steps.items()},
    }


def _case_from_json(form: Mapping[str, Any], arrays: Sequence[Array]) -> Observation:
    case = case_from_json(form["case"])
    if problems(case):
        raise ValueError("not a valid case")
    steps = {int(number): _step_from_json(step, arrays) for number, step in form["steps"].items()}
    for number, step in steps.items():
        _need_rows(step, len(case.steps[number].requests))
    return Observation(
        case=case,
        how=str(told_apart(form["how"], form["what"])),
        what=str(form["what"]),
        overall=None if form["overall"] is None else Status[form["overall"]],
        verdicts=tuple(typed(Verdict(**(dict(v) | {"status": Status[v["status"]]}))) for v in form["verdicts"]),
        steps=steps,
    )


def _need_rows(step: StepOutputs, requests: int) -> None:
    """ValueError unless what a step says of its requests it says of each."""
    each = [*step.noise.values(), *(rows for known in step.right.values() for rows in known.values())]
    if any(len(rows) < requests for rows in ([step.allocated, step.turned, *each] if step.paths else each)):
        raise ValueError("a step of fewer requests than its case has")


def _step_to_json(step: StepOutputs, store: _Store) -> dict[str, Any]:
    allocated = [sorted(slots) for slots in step.allocated]
    return {
        "paths": {name: _outputs_to_json(outputs, store) for name, outputs in step.paths.items()},
        "given": store.put(np.array([slot for slots in allocated for slot in slots], dtype=np.int32)),
        "given_lengths": [len(slots) for slots in allocated],
        "turned": list(step.turned),
        # JSON has no infinity.
        "noise": {name: [str(number) for number in numbers] for name, numbers in step.noise.items()},
        "listed": {name: store.put(array) for name, array in step.listed.items()},
        "drafted": {name: store.put(array) for name, array in step.drafted.items()},
        "right": {path: {name: list(rows) for name, rows in known.items()} for path, known in step.right.items()},
    }


def _step_from_json(form: Mapping[str, Any], arrays: Sequence[Array]) -> StepOutputs:
    ends = np.cumsum([0, *form["given_lengths"]]).tolist()
    allocated = arrays[form["given"]].tolist()
    return StepOutputs(
        paths={name: _outputs_from_json(outputs, arrays) for name, outputs in form["paths"].items()},
        allocated=tuple(frozenset(allocated[start:end]) for start, end in itertools.pairwise(ends)),
        turned=tuple(map(bool, form["turned"])),
        noise={name: tuple(map(float, numbers)) for name, numbers in form["noise"].items()},
        listed={name: arrays[number] for name, number in form["listed"].items()},
        drafted={name: arrays[number] for name, number in form["drafted"].items()},
        right={
            path: {name: tuple(map(bool, rows)) for name, rows in known.items()}
            for path, known in form["right"].items()
        },
    )


def _outputs_to_json(outputs: Outputs, store: _Store) -> dict[str, Any]:
    slots = sorted(outputs.kv)
    stored = slots[:: max(1, -(-len(slots) // KV_ROWS_KEPT))]
    form: dict[str, Any] = {
        "integers": {name: store.put(array) for name, array in outputs.integers.items()},
        "values": {name: store.put(thinned(array, COLUMNS_KEPT)) for name, array in outputs.values.items()},
        "widths": dict(outputs.widths),
        "slots": store.put(np.array(sorted(outputs.slots), dtype=np.int32)),
    }
    if stored:
        form["kept"] = store.put(np.array(stored, dtype=np.int32))
        form["kv"] = store.put(thinned(np.stack([outputs.kv[slot].reshape(-1) for slot in stored]), KV_COLUMNS_KEPT))
    return form


def _outputs_from_json(form: Mapping[str, Any], arrays: Sequence[Array]) -> Outputs:
    stored = arrays[form["kept"]].tolist() if "kept" in form else []
    return Outputs(
        integers={name: arrays[number] for name, number in form["integers"].items()},
        values={name: arrays[number] for name, number in form["values"].items()},
        widths={name: int(width) for name, width in form["widths"].items()},
        slots=frozenset(arrays[form["slots"]].tolist()),
        kv=dict(zip(stored, arrays[form["kv"]], strict=True)) if stored else {},
    )
