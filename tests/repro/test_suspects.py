"""The functions that are likeliest to hold the mistake behind a failure, by what a run went through."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from repro.cases.case import Case, Request, Setup, Step
from repro.shrinking.origin import FACT
from repro.suspects.changed_lines import Line
from repro.suspects.ranking import MOST, listed, suspects
from repro.suspects.statements import hands_on, statements
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import PASSED, End, RecordedArray, Termination, Trace

SETUP = Setup(runner="draft", topk=1, num_steps=3, num_draft_tokens=4, capture_bs=(2,), slots=3)
CASE = Case(setup=SETUP, steps=(Step(requests=(Request(slot=1, seq_len=1, data=0),)),))
RUNNER, BACKEND = "sglang/srt/speculative/runner.py", "sglang/srt/layers/attention/triton_backend.py"
MODEL = "sglang/srt/model_executor/model_runner.py"
OTHER = "sglang/srt/layers/attention/flashattention_backend.py"
SOURCES = {
    RUNNER: """
def fill(targets, sources):
    for target, source in zip(targets, sources):
        target[: len(source)].copy_(source)


class Runner:
    def __init__(self):
        self.positions = torch.zeros(8)
        self.backend = Backend()
        self.attn_backend = self.backend

    def replay(self, batch):
        fill([self.positions, self.slots], [batch.positions, batch.slots])
        batch.seq_lens_sum = sum(batch.lens)
        self.plan(batch)

    def plan(self, batch):
        self.backend.init_forward_metadata(batch)

    def can_run_graph(self, batch):
        return batch.size in self.graphs

    def draft(self, model):
        for _ in range(2):
            model.forward()

    def draft_extend(self):
        pass

    def draft_extend_for_prefill(self):
        pass

    def planned(self, batch):
        with self.plan_stream:
            fill([self.p], [batch.p])

    def check(self, batch):
        assert batch.size < 3, "no width of pages (Backend.page_size)"

    def write_extra(self, batch):
        fill([self.extra], [batch.extra])
        self.extra[: batch.size] = batch.extra


def build():
    return [Slot("widths"), Slot("positions")]


def verify(batch):
    plan(batch)
""",
    BACKEND: """
class Backend:
    def __init__(self):
        self.width, self.page_size = 16, 1

    def init_cuda_graph_state(self):
        self.cuda_graph_kv_indices = torch.zeros(self.width)

    def init_pages(self):
        width = self.width
        self.metadata = {"page_table": torch.zeros(width)}
        self.other = {"page_table": torch.zeros(width)}
        self.third = {"page_table": torch.zeros(width)}

    def init_forward_metadata(self, batch):
        kv_indptr = self.kv_indptr
        kv_indptr[1:] = torch.cumsum(batch.lens)

    def plan_draft(self, batch):
        fill_lengths(self.draft_lengths, batch.lens)

    def plan_verify(self, batch):
        fill_lengths(self.verify_lengths, batch.lens)

    def forward(self, q):
        run_kernel[(1,)](q, self.cuda_graph_kv_indices)


def run_kernel(q_ptr, kv_indices_ptr):
    tl.load(kv_indices_ptr)


def fill_lengths(draft_lengths, lens):
    draft_lengths[1:] = torch.cumsum(lens)


class KvIndices:
    def fits(self, size):
        return size < self.room
""",
    MODEL: """
class ModelRunner:
    def forward(self):
        pass
""",
}
Called = tuple[str, str, str, Sequence[tuple[str, str, int]]]  # phase, file, function, callers with lines


def ran(*called: Called) -> str:
    """The fact of a run that went through all lines of these functions."""
    functions: list[tuple[str, str]] = []

    def number(file: str, name: str) -> int:
        if (file, name) not in functions:
            functions.append((file, name))
        return functions.index((file, name))

    phases: dict[str, list[object]] = {}
    for last, (phase, file, name, callers) in enumerate(called):
        calls = [[number(of, caller), line] for of, caller, line in callers]
        phases.setdefault(phase, []).append([number(file, name), last, list(lines_of(file, name)), calls])
    return json.dumps({"functions": functions, "phases": phases})


def lines_of(file: str, name: str) -> range:
    nodes: list[ast.AST] = [ast.parse(SOURCES[file])]
    for part in name.split("."):
        nodes = [node for node in ast.iter_child_nodes(nodes[0]) if getattr(node, "name", "") == part]
    (node,) = nodes
    assert isinstance(node, ast.FunctionDef)
    return range(node.lineno, (node.end_lineno or 0) + 1)


def line(file: str, text: str) -> int:
    """The first line with this text."""
    return next(n for n, each in enumerate(SOURCES[file].splitlines(), start=1) if text in each)


WAY = ran(
    ("-1 build", RUNNER, "build", ()),
    ("-1 build", BACKEND, "Backend.__init__", [(RUNNER, "Runner.__init__", line(RUNNER, "Backend()"))]),
    ("-1 build", RUNNER, "Runner.__init__", ()),
    ("-1 build", BACKEND, "Backend.init_cuda_graph_state", ()),
    ("-1 capture", BACKEND, "Backend.init_pages", ()),
    ("-1 capture", BACKEND, "Backend.forward", ()),
    ("-1 capture", BACKEND, "run_kernel", [(BACKEND, "Backend.forward", line(BACKEND, "run_kernel["))]),
    ("0 asked", RUNNER, "Runner.can_run_graph", ()),
    ("0 graph", RUNNER, "Runner.replay", ()),
    ("0 graph", RUNNER, "fill", [(RUNNER, "Runner.replay", line(RUNNER, "fill([self"))]),
    ("0 graph", RUNNER, "Runner.plan", [(RUNNER, "Runner.replay", line(RUNNER, "self.plan"))]),
    ("0 graph", BACKEND, "Backend.init_forward_metadata", [(RUNNER, "Runner.plan", line(RUNNER, "init_forward_meta"))]),
)  # fmt: skip
# Few runs go through these.
FURTHER = ran(
    ("-1 build", BACKEND, "Backend.__init__", [(RUNNER, "Runner.__init__", line(RUNNER, "Backend()"))]),
    ("-1 build", RUNNER, "Runner.__init__", ()),
    ("-1 capture", BACKEND, "Backend.init_cuda_graph_state", ()),
    ("0 graph", RUNNER, "Runner.plan", ()),
    ("0 graph", BACKEND, "Backend.init_forward_metadata", [(RUNNER, "Runner.plan", line(RUNNER, "init_forward_meta"))]),
    ("0 graph", BACKEND, "KvIndices.fits", ()),
    ("0 graph", BACKEND, "fill_lengths", [(BACKEND, "Backend.plan_draft", line(BACKEND, "fill_lengths(self.d"))]),
    ("0 eager", RUNNER, "Runner.draft", ()),
    ("0 eager", MODEL, "ModelRunner.forward", [(RUNNER, "Runner.draft", line(RUNNER, "model.forward"))]),
    ("0 graph", BACKEND, "Backend.forward", ()),
    ("0 graph", BACKEND, "run_kernel", [(BACKEND, "Backend.forward", line(BACKEND, "run_kernel["))]),
)  # fmt: skip
FILLED = f"{RUNNER}:{line(RUNNER, 'copy_')} in fill"


def verdict(oracle: str, where: str, buffer: str = "", got: str = "1") -> Verdict:
    cell = Cell(step=0, buffer=buffer, row=1, column=0, got=got, want="0") if buffer else None
    return Verdict(oracle=oracle, status=Status.FAIL, where=where, cell=cell)


def trace(writes: Mapping[str, str], detail: str = "", way: str = WAY) -> Trace:
    noted = json.dumps([[buffer, 0, 0, place] for buffer, place in writes.items()])
    ended = End(how=Termination.RAISED if detail else Termination.DONE, step=0, path="graph", detail=detail)
    return Trace(ended=ended, facts={PASSED: way, f"{FACT}0": noted})


def names(failure: Verdict, of: Trace, *others: Verdict) -> list[str]:
    each = suspects(CASE, of, [failure], [failure, *others], SOURCES.__getitem__)
    assert len(each) <= MOST and all(suspect.line and suspect.reason for suspect in each)
    assert not each or len(list(listed(each))) == len(each) + 1
    return [suspect.function[1] for suspect in each]


def test_a_buffer_with_stale_rows_leads_past_what_fills_any_buffer_to_its_caller() -> None:
    stale = verdict("slot0_padding", "padded rows of positions", "positions")
    assert names(stale, trace({"positions": FILLED, "slots": FILLED}))[0] == "Runner.replay"


def test_a_buffer_that_its_filler_knows_by_a_table_leads_to_the_table() -> None:
    stale = verdict("slot0_padding", "padded rows of widths", "widths")
    assert names(stale, trace({"widths": FILLED}))[0] == "build"


def test_a_buffer_that_nobody_wrote_leads_to_who_fills_the_others() -> None:
    absent = verdict("staged", "real rows of mrope_positions", "mrope_positions")
    assert names(absent, trace({"positions": FILLED, "slots": FILLED}))[:2] == ["fill", "Runner.replay"]


def test_what_a_change_has_or_removes_in_functions_that_ran_comes_first() -> None:
    stale, of = verdict("slot0_padding", "padded rows of positions", "positions"), trace({"positions": FILLED})

    def change(file: str, here: int, text: str, *, gone: bool = False) -> Line:
        return Line(file=file, number=here, text=text, gone=gone, here=here)

    changed = [
        change(RUNNER, line(RUNNER, "self.extra[:"), "positions of a function that did not run"),
        change(BACKEND, line(BACKEND, "self.width, "), "self.width, self.page_size = 16, 1"),
        change(BACKEND, line(BACKEND, "kv_indptr[1:]"), "kv_indptr[1:] = torch.cumsum(batch.lens)"),
        change(RUNNER, line(RUNNER, "self.plan(batch)") + 1, "    self.positions.zero_()", gone=True),
    ]
    usual = suspects(CASE, of, [stale], [stale], SOURCES.__getitem__)
    each = suspects(CASE, of, [stale], [stale], SOURCES.__getitem__, changed)
    first = ["Runner.replay", "Backend.init_forward_metadata", "Backend.__init__"]
    assert [suspect.function[1] for suspect in each[:3]] == first and len(each) <= MOST
    assert each[0].reason == "the change removes self.positions.zero_()"
    assert "Runner.write_extra" not in {suspect.function[1] for suspect in (*usual, *each)}


@pytest.mark.parametrize(
    ("failure", "first"),
    [
        (verdict("bucket", "a batch refused", "can_run"), "Runner.can_run_graph"),
        (verdict("planned", "planned with seq_lens_sum", "planned seq_lens_sum"), "Runner.replay"),
        (verdict("planned", "planned with positions", "planned nothing_known"), "Runner.plan"),
        (verdict("metadata_shape", "length of a real row", "kv_indptr"), "Backend.init_forward_metadata"),
        (verdict("kv_indices", "kv_indices row too narrow", "kv_indices"), "Backend.init_cuda_graph_state"),
        (verdict("row_width", "page table row too narrow", "page table 0"), "Backend.__init__"),
        (verdict("memory", "load outside kv_indices_ptr in run_kernel", "x"), "Backend.init_cuda_graph_state"),
        (verdict("memory", "store outside kv_indices_ptr in run_kernel", "x"), "Backend.forward"),
    ],
    ids=lambda value: value.where if isinstance(value, Verdict) else "",
)
def test_each_kind_of_failure_has_its_own_question(failure: Verdict, first: str) -> None:
    assert names(failure, trace({}))[0] == first


def test_what_comes_before_in_the_call_is_looked_at_before_its_consequences() -> None:
    plan = verdict("metadata_shape", "length of a real row", "kv_indptr")
    wrong = verdict("graph_equals_eager", "values of an output", "tokens")
    reasons = [
        suspects(CASE, trace({}), [wrong], [wrong, *others], SOURCES.__getitem__)[0].reason for others in ([plan], [])
    ]
    assert reasons == ["it writes the wrong values of attention's metadata", "it computes or plans attention"]


def test_a_run_that_raised_names_its_frames_and_what_has_no_room() -> None:
    frame = f'  File "/x/{BACKEND}", line {line(BACKEND, "run_kernel[")}, in forward\n'
    failure = verdict("ended", "raised RuntimeError in graph")
    assert names(failure, trace({}, frame + "RuntimeError: no answer"))[0] == "Backend.forward"
    of_size = names(failure, trace({}, frame + "RuntimeError: the size of tensor a must match"))
    assert of_size[:2] == ["Backend.forward", "Backend.init_cuda_graph_state"]


def test_a_backend_that_was_not_asked_for_leads_to_who_made_it() -> None:
    SOURCES[OTHER] = SOURCES[BACKEND]
    way = ran(("-1 build", OTHER, "Backend.__init__", [(RUNNER, "Runner.__init__", 10)]))
    frame = f'  File "/x/{OTHER}", line {line(OTHER, "run_kernel[")}, in forward\nRuntimeError: no kernel'
    assert names(verdict("ended", "raised RuntimeError in capture"), trace({}, frame, way))[0] == "Runner.__init__"


@pytest.mark.parametrize(
    ("failure", "first"),
    [
        (verdict("planned", "planned with eager's backend", "backend"), "Runner.__init__"),
        (verdict("memory", "load outside kv_indices_ptr in run_kernel", "x"), "KvIndices.fits"),
        (verdict("metadata_shape", "length of a real row", "draft_lengths"), "Backend.plan_draft"),
        (verdict("reference", "wrong values, window", "kv"), "Runner.draft"),
    ],
    ids=lambda value: value.where if isinstance(value, Verdict) else "",
)
def test_who_decides_comes_before_what_is_used_by_several(failure: Verdict, first: str) -> None:
    assert names(failure, trace({}, way=FURTHER))[0] == first


@pytest.mark.parametrize(("planned", "first"), [(2, "Runner.plan"), (4, "Backend.init_forward_metadata")])
def test_a_padded_batch_that_is_planned_with_slots_of_real_requests_alone(planned: int, first: str) -> None:
    sizes = {Recorded.INPUT: 2, Recorded.PLANNED: planned}
    seen = [RecordedArray(step=0, path=path, name="out_cache_loc", array=np.zeros(n)) for path, n in sizes.items()]
    failure = verdict("kv_indices", "segment of a padded row", "kv_indptr")
    assert names(failure, replace(trace({}), seen=tuple(seen)))[0] == first


@pytest.mark.parametrize(
    ("buffer", "token", "first"),
    [("draft_k0", 0, "Runner.draft_extend_for_prefill"), ("draft_k0", 1, "Runner.draft_extend"), ("target_k0", 1, "")],
)
def test_a_row_of_a_round_leads_to_who_prefills_or_keeps_it(buffer: str, token: int, first: str) -> None:
    way = ran(
        *((f"{n} round", RUNNER, f"Runner.draft_extend{name}", ()) for n, name in enumerate(("", "_for_prefill")))
    )
    seen = (RecordedArray(step=0, path=Recorded.ROUND_GRAPH, name="requests", array=np.zeros(1)),)
    cell = Cell(step=0, buffer=buffer, row=0, column=token, got="1", want="0")
    failure = replace(verdict("kv_rows", "rows of the draft"), cell=cell)
    named = names(failure, replace(trace({}, way=way), seen=seen))
    assert named[:1] == ([first] if first else [])


def test_a_race_leads_up_to_who_switches_streams() -> None:
    way = ran(
        ("0 round", RUNNER, "verify", ()),
        ("0 round", RUNNER, "Runner.planned", [(RUNNER, "verify", line(RUNNER, "    plan(batch)"))]),
        ("0 round", RUNNER, "fill", [(RUNNER, "Runner.planned", line(RUNNER, "fill([self.p], "))]),
    )
    name = f"written twice: {RUNNER.removeprefix('sglang/')} fill:{line(RUNNER, 'copy_')} and a replay of draft"
    assert names(verdict("order", "written twice", name), trace({}, way=way))[:2] == ["Runner.planned", "fill"]


@pytest.mark.parametrize(
    ("function", "text", "message", "first"),
    [
        ("check", "assert batch", "AssertionError: no width of pages (Backend.page_size)", "Backend.__init__"),
        ("plan", "init_forward_m", "AttributeError: 'Backend' object has no attribute 'rows'", "Backend"),
        ("fill", "copy_(", "RuntimeError: index 3 is out of bounds for dimension 1", "Runner.replay"),
    ],
)
def test_a_message_says_where_to_look(function: str, text: str, message: str, first: str) -> None:
    places = {"replay": line(RUNNER, "fill([self"), function: line(RUNNER, text)}
    frames = [f'  File "/x/{RUNNER}", line {number}, in {name}\n' for name, number in places.items()]
    failure = verdict("ended", "raised in graph")
    assert names(failure, trace({}, "".join([*frames, message])))[0] == first


def test_nobody_is_named_where_the_way_was_not_noted_or_no_source_is_there() -> None:
    failure = verdict("bucket", "a batch refused", "can_run")
    assert suspects(CASE, Trace(ended=End(how=Termination.DONE)), [failure], [failure], SOURCES.__getitem__) == ()

    def missing(file: str) -> str:
        raise FileNotFoundError(file)

    stale = verdict("slot0_padding", "padded rows of positions", "positions")
    assert [s.function[1] for s in suspects(CASE, trace({}), [stale], [stale], missing)] == ["Runner.plan"]


@pytest.mark.parametrize(
    ("text", "hands"),
    [("f(x=batch.x)", True), ("y = f(x=x[:2])", True), ("f(x=g(y))", False), ("x = f(x=x)", False), ("f(x)", False)],
)
def test_what_is_given_on_under_its_own_name_is_not_made_there(text: str, hands: bool) -> None:
    assert hands_on(statements(text)[1], {"x"}) is hands
