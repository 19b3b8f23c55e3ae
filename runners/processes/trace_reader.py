"""The pool's side of a trace: checks every event that a session sends and puts the trace together."""

from __future__ import annotations

import functools
import json
from typing import NoReturn

from repro.traces.trace import End, RecordedArray, Termination, Trace
from runners.processes.wire import BadFrame, Form, Frame, arrays, form_of

# A case records some MB. A session that records without end must not take the pool's memory along.
RECORDED_MAX = 2 << 30
# Packed layouts that are kept read. They come again with the next case of a setup; while a failure is made small nearly
# each run has others. So many answer 84 of 100 questions of a campaign; 4,096 answer 86, and hold 25 MB.
_LAYOUTS_MAX = 256

_Place = tuple[int, str, str]


class Intake:
    """The messages of one run so far. facts: the session's so far; those of this run are added to it.

    step, path: what was said to run last. ended: how the run ended, once the session said so. mark: how much had been
    printed when the run began.
    """

    def __init__(self, *, facts: dict[str, str], step: int, path: str) -> None:
        self.step, self.path = step, path
        self.mark = 0
        self.ended: End | None = None
        self.facts = facts
        self._seen: list[RecordedArray] = []
        self._seconds: dict[str, float] = {}
        self._bytes = 0

    def take(self, frame: Frame) -> bool:
        """Add what a frame says. Whether it says that something new is about to run. BadFrame if it makes no sense."""
        events = frame.head.get("events")
        if not isinstance(events, list):
            raise BadFrame(f"a frame without events: {str(frame.head)[:80]}")
        self._bytes += len(frame.body)
        if self._bytes > RECORDED_MAX:
            raise BadFrame(f"more than {RECORDED_MAX} bytes were recorded in one run")
        forms: list[Form] = []
        places: list[_Place] = []
        moved = False
        for event in events:
            match event:
                case ["see", int(step), str(path), str(name), form]:
                    places.append((step, path, name))
                    forms.append(form_of(form))
                case ["packed", int(step), str(text)]:
                    for path, name, known in _fields(text):
                        places.append((step, path, name))
                        forms.append(known)
                case ["at", int(step), str(path)]:
                    self.step, self.path, moved = step, path, True
                case ["printed", int(length)]:
                    self.mark = length
                case ["spent", str(stage), int() | float() as seconds]:
                    self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds
                case ["fact", str(name), str(text)]:
                    self.facts[name] = text
                case ["ended", str(how), int(step), str(path), str(what), str(detail)] if how in tuple(Termination):
                    self.ended = End(how=Termination(how), step=step, path=path, what=what, detail=detail)
                case _:
                    raise BadFrame(f"an unknown event: {str(event)[:80]}")
        for (step, path, name), array in zip(places, arrays(forms, frame.body), strict=True):
            self._seen.append(RecordedArray(step=step, path=path, name=name, array=array))
        return moved

    def begin_again(self, step: int, path: str) -> None:
        """The run takes place in another session than was thought, of which nothing has come in yet."""
        self.step, self.path, self.mark, self.facts = step, path, 0, {}
        self._seen, self._seconds, self._bytes = [], {}, 0

    def end(self, how: Termination, what: str, detail: str) -> End:
        """An end that the session could not tell itself, at the place where it last was."""
        return End(how=how, step=self.step, path=self.path, what=what, detail=detail)

    def trace(self, ended: End) -> Trace:
        """The trace of the run, with this end."""
        return Trace(ended=ended, seen=tuple(self._seen), facts=dict(self.facts), seconds=dict(self._seconds))


@functools.lru_cache(maxsize=_LAYOUTS_MAX)
def _fields(text: str) -> tuple[tuple[str, str, Form], ...]:
    """Path, name and form of each array of a packed layout, which a session names again and again. BadFrame if this
    names none."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"a packed layout that is not JSON: {text[:80]!r}") from error
    return tuple(_field(entry) for entry in entries) if isinstance(entries, list) else _no_field(entries)


def _field(entry: object) -> tuple[str, str, Form]:
    match entry:
        case [str(path), str(name), form]:
            return path, name, form_of(form)
    return _no_field(entry)


def _no_field(what: object) -> NoReturn:
    raise BadFrame(f"{str(what)[:80]} is not a field of a packed layout")
