"""The file of a trace: what was seen when a case was run, kept so that it can be judged again without running.

One .npz of plain numbers: the bytes of all arrays, one behind the other, and a JSON head that says which is what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repro.cases import stored_arrays
from repro.cases.case import Case, Target, problems
from repro.cases.codec import case_from_json, case_to_json
from repro.cases.stored_arrays import MALFORMED, PLAIN, Damaged
from repro.traces.trace import End, RecordedArray, Termination, Trace

FORMAT = 1
SUFFIX = ".trace.npz"
# Of all arrays together, and of the head. A small case's arrays are some hundred kB; the largest, whole KV caches of a
# crash on a GPU, are not worth a disk full of them.
BYTES_MAX = 64 << 20
_HEAD_MAX = 8 << 20


class BadTrace(ValueError):
    """This is no trace, or too large for one. The text, one line, says what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A case, where it was run, and what was seen."""

    case: Case
    target: Target
    trace: Trace


def beside(seed: Path) -> Path:
    """The file of a finding's trace, beside its seed."""
    return seed.with_name(seed.name.removesuffix(".json") + SUFFIX)


def save(path: Path, stored: Kept) -> None:
    """Put it at this path, whole or not at all. BadTrace if it is too large or holds an array that is not of plain
    numbers; OSError if the disk refuses."""
    trace = stored.trace
    if (size := sum(seen.array.nbytes for seen in trace.seen)) > BYTES_MAX:
        raise BadTrace(f"{path}: not stored: {size >> 20} MiB of arrays, {BYTES_MAX >> 20} at most")
    if odd := next((seen for seen in trace.seen if seen.array.dtype.kind not in PLAIN), None):
        raise BadTrace(f"{path}: not stored: {odd.path} {odd.name} is not an array of plain numbers")
    head = {
        "format": FORMAT,
        "case": case_to_json(stored.case),
        "target": str(stored.target),
        "ended": asdict(trace.ended) | {"how": trace.ended.how.value},
        "facts": dict(trace.facts),
        "seconds": dict(trace.seconds),
        "seen": [[s.step, s.path, s.name, s.array.dtype.str, list(s.array.shape)] for s in trace.seen],
    }
    stored_arrays.save(path, head, (seen.array.tobytes() for seen in trace.seen), flushed=False)


def load(path: Path) -> Kept:
    """The trace in this file. BadTrace, naming it, if it cannot be read or is not a trace."""
    try:
        head, body = stored_arrays.load(path, head_max=_HEAD_MAX, body_max=BYTES_MAX)
        if head["format"] != FORMAT:
            raise BadTrace(f"{path}: format {head['format']!r:.20} is unknown: this version reads {FORMAT}")
        return _kept(head, body)
    except BadTrace:
        raise
    except OSError as error:
        raise BadTrace(f"{path}: {error.strerror or error}") from error
    except Damaged as error:
        raise BadTrace(f"{path}: damaged, or no trace: {error}") from error
    except MALFORMED as error:
        raise BadTrace(f"{path}: not a trace of python -m fuzz run --keep-traces ({type(error).__name__})") from error


def _kept(head: Mapping[str, Any], body: bytes) -> Kept:
    case = case_from_json(head["case"])
    if problems(case):
        raise ValueError("not a valid case")
    ended = dict(head["ended"])
    trace = Trace(
        ended=End(**(ended | {"how": Termination(ended["how"])})),
        seen=tuple(_seen(head["seen"], body)),
        facts={str(name): str(text) for name, text in head["facts"].items()},
        seconds={str(name): float(number) for name, number in head["seconds"].items()},
    )
    return Kept(case=case, target=Target.parse(head["target"]), trace=trace)


def _seen(forms: list[Any], body: bytes) -> Iterator[RecordedArray]:
    recorded = stored_arrays.arrays(((kind, shape) for *_, kind, shape in forms), body)
    for (step, path, name, _, _), array in zip(forms, recorded, strict=True):
        if type(step) is not int or not isinstance(path, str) or not isinstance(name, str):
            raise TypeError("an array without a name")
        yield RecordedArray(step=step, path=path, name=name, array=array)
