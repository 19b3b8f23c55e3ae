"""Suspects behind what failed: who holds a buffer, tells a model, enters a stream, or plans slots of states."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from repro.cases.case import Case
from repro.suspects.ranking import suspects
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import PASSED, End, RecordedArray, Termination, Trace
from tests.repro.test_suspects import CASE

RUNNER, BUFFERS = "sglang/srt/model_executor/runner.py", "sglang/srt/model_executor/buffers.py"
MODEL, EXPERTS = "sglang/srt/models/llama.py", "sglang/srt/layers/moe.py"
STATES = "sglang/srt/layers/attention/linear_backend.py"
WORKER, DRAWS = "sglang/srt/speculative/worker.py", "sglang/srt/speculative/utils.py"
SOURCES = {
    RUNNER: """
class Runner:
    def __init__(self):
        self._registry = build(self.room)
        self.static_hidden = torch.zeros(8)

    def load(self, batch):
        registry = self._registry
        registry.fill(batch)

    def spec(self):
        return Input(hidden=self.static_hidden[:2])

    def capture(self):
        self.model.tell_layers()
        self.model.forward(self.spec())

    def execute(self, batch):
        reads = self.backend.read_ends()
        self.replay()

    def verify(self, batch):
        with self.plan_stream_ctx:
            self.prepare(batch)

    def prepare(self, batch):
        self._registry.fill(batch)

    def loop(self):
        with self.schedule_stream:
            self.free()
            self.execute(0)

    def free(self):
        self.table.write(0)

    def created(self, batch):
        batch.spec_places = batch.places

    def create(self):
        count = torch.zeros(1)
        return count
""",
    BUFFERS: """
class Registry:
    def fill(self, batch):
        for target, source in self.pairs(batch):
            target.copy_(source)


class Table:
    def write(self, value):
        self.rows.fill_(value)
""",
    MODEL: """
class Llama:
    def __init__(self):
        self.wide = False

    def forward(self, batch):
        if self.wide:
            states, more = batch.spec.hidden

    def tell_layers(self):
        self.wide = True

    def turned(self, batch):
        places = batch.spec_places
        return turn(places)


def turn(places):
    return places.ndim
""",
    EXPERTS: """
def mask(ids, count):
    if count is None:
        return ids
    return ids[:count]
""",
    WORKER: """
def draft(batch):
    return sample_draft(batch)
""",
    DRAWS: """
def sample_draft(batch):
    return fast_sample(batch)


def fast_sample(batch):
    return batch
""",
    STATES: """
class Backend:
    def plan(self, batch):
        self.state_indices.copy_(batch.slots)

    def replay(self, batch):
        self.mamba_track_indices.copy_(batch.slots)
""",
}


def line(file: str, text: str) -> int:
    """The first line with this text."""
    return next(n for n, each in enumerate(SOURCES[file].splitlines(), start=1) if text in each)


def place(file: str, function: str, text: str) -> str:
    """The words of a race for it."""
    return f"{file.removeprefix('sglang/')} {function}:{line(file, text)}"


# A function that ran: phase, file, name, the lines by their texts, and its caller: file, name, text of the call.
Ran = tuple[str, str, str, tuple[str, ...], tuple[str, str, str] | None]


def way(*rans: Ran) -> str:
    functions = [*dict.fromkeys([each[1:3] for each in rans] + [each[4][:2] for each in rans if each[4]])]
    phases: dict[str, list[object]] = {}
    for last, (phase, file, name, texts, caller) in enumerate(rans):
        calls = [[functions.index(caller[:2]), line(caller[0], caller[2])]] if caller else []
        lines = [line(file, text) for text in texts]
        phases.setdefault(phase, []).append([functions.index((file, name)), last, lines, calls])
    return json.dumps({"functions": functions, "phases": phases})


def named(failure: Verdict, passed: str, *, detail: str = "", words: str = "", case: Case = CASE) -> list[str]:
    """The functions, the likeliest first. words: of the race that the failure names."""
    array = np.frombuffer(words.encode(), np.uint8)
    name = failure.cell.buffer if failure.cell else ""
    seen = (RecordedArray(step=-1, path=Recorded.ORDER, name=name, array=array),) if words else ()
    ended = End(how=Termination.RAISED if detail else Termination.DONE, step=0, path="graph", detail=detail)
    trace = Trace(ended=ended, facts={PASSED: passed}, seen=seen)
    return [each.function[1] for each in suspects(case, trace, [failure], [failure], SOURCES.__getitem__)]


def failed(oracle: str, where: str, buffer: str = "") -> Verdict:
    cell = Cell(step=0, buffer=buffer, row=0, column=0, got="1", want="0") if buffer else None
    return Verdict(oracle=oracle, status=Status.FAIL, where=where, cell=cell)


def frames(*places: tuple[str, str, str], message: str) -> str:
    """places: file, function, text of the line, the outermost first."""
    return "".join(f'  File "/x/{file}", line {line(file, text)}, in {name}\n' for file, name, text in places) + message


BUILT: tuple[Ran, ...] = (
    ("-1 build", RUNNER, "Runner.__init__", ("self._registry = ", "self.static_hidden = "), None),
    ("-1 build", RUNNER, "Runner.spec", ("hidden=self",), (RUNNER, "Runner.capture", "self.spec()")),
    ("-1 build", MODEL, "Llama.__init__", ("self.wide = False",), None),
    ("-1 build", MODEL, "Llama.tell_layers", ("self.wide = True",), (RUNNER, "Runner.capture", "self.model.tell")),
)
RAISED = failed("ended", "raised RuntimeError in graph")


def test_a_method_of_several_classes_leads_to_who_made_its_object() -> None:
    filled: tuple[Ran, ...] = (
        ("0 graph", BUFFERS, "Registry.fill", ("target.copy_",), (RUNNER, "Runner.load", "registry.fill")),
        ("0 graph", BUFFERS, "Registry.fill", ("target.copy_",), (RUNNER, "Runner.prepare", "self._registry.fill")),
        ("0 graph", RUNNER, "Runner.load", ("registry = self", "registry.fill"), None),
    )
    detail = frames(
        (RUNNER, "load", "registry.fill"),
        (BUFFERS, "fill", "target.copy_"),
        message="RuntimeError: The size of tensor a must match",
    )
    assert named(RAISED, way(*BUILT, *filled), detail=detail)[0] == "Runner.__init__"
    alone = named(RAISED, way(*BUILT, *filled[::2]), detail=detail)
    assert alone[0] == "Registry.fill", "it may as well be wrong itself"


@pytest.mark.parametrize(
    ("message", "first"),
    [
        ("RuntimeError: shapes cannot be multiplied", "Runner.capture"),
        ("ValueError: too many values to unpack", "Runner.capture"),
    ],
)
def test_a_model_goes_by_what_it_was_told(message: str, first: str) -> None:
    detail = frames((RUNNER, "capture", "self.model.forward"), (MODEL, "forward", "states, more"), message=message)
    assert named(RAISED, way(*BUILT), detail=detail)[0] == first


def test_a_look_up_beyond_a_table_leads_to_the_model_that_gives_the_numbers() -> None:
    calls = (RUNNER, "capture", "self.model.forward"), (MODEL, "forward", "states, more"), (BUFFERS, "fill", "target.")
    detail = frames(*calls, message="IndexError: index out of range in self")
    assert named(RAISED, way(*BUILT), detail=detail)[0] == "Llama.forward"


def test_nothing_in_place_of_a_batchs_field_leads_to_who_sets_it() -> None:
    calls = (MODEL, "turned", "return turn"), (MODEL, "turn", "places.ndim")
    message = "AttributeError: 'NoneType' object has no attribute 'ndim'"
    created: Ran = ("0 graph", RUNNER, "Runner.created", ("batch.spec_places =",), None)
    its = frames(*calls, message=message)
    assert named(RAISED, way(*BUILT, created), detail=its)[:2] == ["Runner.created", "turn"]
    assert named(RAISED, way(*BUILT), detail=its)[0] == "turn"


def test_a_model_computes_with_what_a_runner_holds() -> None:
    text = SOURCES[MODEL]
    try:
        SOURCES[MODEL] = text.replace("        if self.wide:\n", "").replace("    states, more", "states, more")
        detail = frames(
            (RUNNER, "capture", "self.model.forward"),
            (MODEL, "forward", "states, more"),
            message="RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        )
        assert named(RAISED, way(*BUILT), detail=detail)[0] == "Runner.__init__"
    finally:
        SOURCES[MODEL] = text


def test_a_race_leads_to_who_enters_the_stream_of_the_later_access() -> None:
    first, second = place(RUNNER, "create", "count = "), place(BUFFERS, "fill", "target.copy_")
    passed = way(
        ("0 round", BUFFERS, "Registry.fill", ("target.copy_",), (RUNNER, "Runner.prepare", "self._registry.fill")),
        ("0 round", RUNNER, "Runner.prepare", (), (RUNNER, "Runner.verify", "self.prepare")),
    )
    callers = f"{place(RUNNER, 'prepare', 'self._registry.fill')}, {place(RUNNER, 'verify', 'self.prepare')}"
    words = f"{first} on stream 0, {second} on stream 3 (asked for in {callers})"
    race = failed("order", "read before it is written", f"read before it is written: {second} and {first}")
    assert named(race, passed, words=words)[0] == "Runner.verify"
    assert "Runner.verify" not in named(race, passed, words=words.partition(" (asked")[0])


def test_of_two_writes_without_a_block_of_a_stream_the_later_leads_to_who_makes_it() -> None:
    first, second = place(RUNNER, "create", "count = "), place(BUFFERS, "write", "self.rows.fill_")
    passed = way(("0 round", RUNNER, "Runner.free", (), (RUNNER, "Runner.loop", "self.free()")))
    words = f"{first} on stream 1, {second} on stream 0 (asked for in {place(RUNNER, 'free', 'self.table.write')})"
    race = failed("order", "written twice", f"written twice: {second} and {first}")
    assert named(race, passed, words=words)[0] == "Runner.free"
    read = failed("order", "written before it is read", f"written before it is read: {second} and {first}")
    assert "Runner.free" not in named(read, passed, words=words)[:1], "who reads may have to be waited for"


def test_a_race_behind_a_replay_leads_to_who_says_that_its_reads_have_ended() -> None:
    write = place(BUFFERS, "write", "self.rows.fill_")
    loop, freed = place(RUNNER, "loop", "self.free()"), place(RUNNER, "free", "self.table.write")
    passed = way(
        ("0 round", RUNNER, "Runner.execute", ("read_ends",), (RUNNER, "Runner.loop", "self.execute")),
        ("0 round", RUNNER, "Runner.free", (), (RUNNER, "Runner.loop", "self.free()")),
    )
    replay = f"{place(RUNNER, 'execute', 'self.replay')}, {place(RUNNER, 'loop', 'self.execute')}"
    words = f"a replay of draft on stream 0 (asked for in {replay}), {write} on stream 1 (asked for in {freed}, {loop})"
    race = failed("order", "written before it is read", f"written before it is read: {write} and a replay of draft")
    assert named(race, passed, words=words)[0] == "Runner.execute", "the loop's own stream is around both"


@pytest.mark.parametrize(("path", "first"), [("graph", "Backend.replay"), ("eager", "Backend.plan")])
def test_states_in_wrong_slots_lead_to_who_says_the_slots(path: str, first: str) -> None:
    passed = way(
        ("0 graph", STATES, "Backend.replay", ("mamba_track",), None),
        ("0 graph", STATES, "Backend.plan", ("state_indices",), None),
        ("0 eager", STATES, "Backend.plan", ("state_indices",), None),
    )
    assert named(failed("state_writes", f"{path}: conv of padding", "conv states"), passed)[0] == first


def test_a_graph_that_goes_another_way_than_eager_leads_to_who_made_what_it_goes_by() -> None:
    captured: Ran = ("-1 capture", EXPERTS, "mask", ("if count is None", "ids[:count]"), None)
    eager: Ran = ("0 eager", EXPERTS, "mask", ("if count is None", "return ids"), None)
    made: Ran = ("-1 capture", RUNNER, "Runner.create", ("count = ",), None)
    wrong = failed("graph_equals_eager", "values of an output", "logits")
    assert named(wrong, way(made, captured, eager))[:1] == ["Runner.create"]
    alike: Ran = (*eager[:3], ("if count is None", "ids[:count]"), None)
    assert named(wrong, way(made, captured, alike)) == []
    assert named(replace(wrong, oracle="reference"), way(made, captured, eager)) == []


def test_drafts_that_are_drawn_lead_to_who_has_them_drawn() -> None:
    passed = way(
        ("0 eager", DRAWS, "sample_draft", ("return fast_sample",), (WORKER, "draft", "sample_draft")),
        ("0 eager", DRAWS, "fast_sample", ("return batch",), (DRAWS, "sample_draft", "return fast_sample")),
    )
    wrong = failed("reference", "wrong values", "tokens")
    sampling = replace(CASE, setup=replace(CASE.setup, rejection=True))
    assert named(wrong, passed, case=sampling) == ["draft", "fast_sample", "sample_draft"]
    assert named(wrong, passed) == []
