"""Inputs of emulated graphs that sglang lets go of before a replay: planted, named, and judged."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest
import torch

from oracles import liveness
from oracles.catalogue import judge_all
from repro.cases.case import Target
from repro.traces.finding import Status
from repro.traces.trace import End, RecordedArray, Termination, Trace
from repro.upstream.edits import Edit
from runners.engines import cuda, emulated
from runners.engines.arena import Arena
from runners.engines.guards import Guards
from runners.processes.pool import Pool
from runners.sessions import holders
from runners.sessions.holders import ways
from runners.sessions.liveness import Liveness
from tests.builders.cached import change
from tests.builders.caches import RELEASE
from tests.builders.capturing import captured
from tests.builders.cases import FULL, PADDED, PAIR, case_of, setup_of
from tests.builders.only_verdict import only

pytestmark = pytest.mark.emulated

CASE = case_of(setup_of("draft"), FULL)
RUNNER = "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py"
RESET = "buffers.seq_lens.fill_(self.seq_len_fill_value)"


@dataclass
class Runner:
    """Holds the inputs of its graph as a runner of sglang's does."""

    ids: torch.Tensor = field(default_factory=lambda: torch.ones(4))
    by_size: dict[int, SimpleNamespace] = field(default_factory=dict)
    forward_metadata: object = None

    def __post_init__(self) -> None:
        self.by_size[2] = self.forward_metadata = SimpleNamespace(rows=torch.arange(6).view(2, 3))


Runner.__module__ = "sglang.srt.planted"


@dataclass
class Session:
    """A runner, its graph, and what the harness knows of both right after capture, which it holds itself."""

    runner: Runner
    graph: emulated.Graph
    liveness: Liveness
    moment: list[torch.Tensor]

    def gone(self) -> dict[str, str]:
        return dict(self.liveness.gone(self.graph))


@pytest.fixture
def session() -> Session:
    runner = Runner()
    ids, rows = runner.ids, runner.by_size[2].rows
    graph, _ = captured(lambda: [ids * 2 + rows[:, :2].flatten()])
    return Session(runner, graph, Liveness({"runner": runner}, [graph]), [ids, rows])


def test_what_a_runner_holds_is_alive(session: Session) -> None:
    assert len(session.graph.inputs) == 2
    session.graph.replay()
    assert session.gone() == {}


def test_what_is_filled_in_place_or_bound_to_the_same_memory_is_alive(session: Session) -> None:
    session.runner.ids.copy_(torch.zeros(4))
    session.runner.ids = session.runner.ids.view(2, 2)
    session.runner.by_size[2] = SimpleNamespace(rows=session.runner.by_size[2].rows[:1])
    assert session.gone() == {}


def test_a_buffer_that_is_bound_anew_is_named_though_the_harness_holds_it(session: Session) -> None:
    session.runner.ids = torch.ones(4)
    words = "bound anew: float32[4], captured at the harness"
    assert session.gone() == {"runner.ids": words}
    session.runner.ids = session.moment[0]
    assert session.gone() == {}


def test_metadata_that_is_built_anew_is_named(session: Session) -> None:
    session.runner.forward_metadata = session.runner.by_size[2] = SimpleNamespace(rows=torch.zeros(2, 3))
    assert [*session.gone()] == ["runner.by_size[2].rows"]
    session.runner.by_size.clear()
    session.runner.forward_metadata = None
    assert session.gone()["runner.by_size[2].rows"].startswith("let go of: int64[2, 2]")


def test_metadata_of_the_last_call_may_be_replaced(session: Session) -> None:
    session.runner.forward_metadata = SimpleNamespace(rows=torch.zeros(2, 3))
    assert session.gone() == {}


def test_another_holder_will_do(session: Session) -> None:
    session.runner.by_size[4] = session.runner.by_size.pop(2)
    session.runner.forward_metadata = None
    assert session.gone() == {}


def test_a_pool_of_a_module_is_a_holder_but_for_what_an_owner_held(monkeypatch: pytest.MonkeyPatch) -> None:
    pooled, owned = torch.ones(2), torch.ones(3)
    module = SimpleNamespace(pool={"pooled": pooled, "owned": owned})
    monkeypatch.setitem(sys.modules, "sglang.planted", module)
    runner = Runner(ids=owned)
    graph, _ = captured(lambda: [pooled + 1, owned + 1])
    session = Session(runner, graph, Liveness({"runner": runner}, [graph]), [])
    assert session.gone() == {}
    runner.ids = torch.ones(3)
    assert [*session.gone()] == ["runner.ids"]
    del module.pool["pooled"]
    assert [*session.gone()] == ["sglang.planted[pool][pooled]", "runner.ids"]


def test_an_input_by_the_last_call_alone_goes_with_it(session: Session) -> None:
    del session.runner.by_size[2]
    session = replace(session, liveness=Liveness({"runner": session.runner}, [session.graph]))
    assert session.gone() == {}
    session.runner.forward_metadata = None
    assert [*session.gone()] == ["runner.forward_metadata.rows"]


def local() -> tuple[emulated.Graph, torch.Tensor]:
    """A graph that reads what its capture's function made."""
    scale = torch.full((3,), 2.0)
    return captured(lambda: [scale * 2])[0], scale


def test_a_local_of_the_capture_is_freed_with_its_last_reference() -> None:
    graph, scale = local()
    assert graph.freed() == []
    del scale
    assert [entry.form for entry in graph.freed()] == ["float32[3]"]
    alone = Liveness({}, [graph])
    assert dict(alone.gone(graph)) == {"float32[3]": "freed: float32[3], captured at the harness"}


def test_the_line_that_made_it_is_named_where_guards_see_it() -> None:
    with Guards(emulated.capturing) as guards:
        graph = local()[0]
    guards.bands({})  # it holds what it guarded until then
    [(_, words)] = Liveness({}, [graph]).gone(graph)
    assert words == "freed: float32[3], captured at the harness, made at the harness"


def test_recordings_hold_nothing_for_each_other() -> None:
    """Two graphs of one input; then one that is dropped, whose references go with it."""
    scale = torch.ones(3)
    graphs = [captured(partial(lambda scale: [scale + 1, scale[:1] * 2], scale))[0] for _ in range(3)]
    del scale, graphs[0]
    assert [len(graph.freed()) for graph in graphs] == [1, 1]
    graphs[0].reset()
    assert graphs[0].inputs == {}


def test_views_that_no_call_keeps_are_not_counted() -> None:
    """A capture freezes the arguments of each call, also of those that it does not record."""
    buffer = torch.ones(3, 3)
    graph, _ = captured(lambda: [buffer[1][:2] + 1])
    assert len(graph.inputs) == 1
    assert graph.freed() == []


def test_a_tensor_without_elements_is_no_input() -> None:
    empty, kept = torch.ones(3, 2)[:, :0], torch.ones(3, 1)
    graph, _ = captured(partial(lambda empty: [torch.cat((empty, kept), dim=1)], empty))
    del empty
    assert [entry.form for entry in graph.inputs.values()] == ["float32[3, 1]"]
    assert graph.freed() == []


def test_memory_of_the_pool_is_no_input() -> None:
    pool, kept = Arena(), torch.ones(3)
    first, [result] = captured(lambda: [kept + 1], pool)
    second, _ = captured(partial(lambda result: [result * 2], result), pool)
    del result
    assert second.inputs == {}
    assert first.freed() == second.freed() == []


def test_a_way_goes_by_items_attributes_and_slots() -> None:
    tensor = torch.ones(2)
    way = holders.Way((("[", "runner"), (".", "ids")))
    entries = [SimpleNamespace(x={"k": (tensor,)})]
    roots = {"runner": Runner(ids=tensor), "list": entries}
    storages = {holders.storage_of(tensor)}
    assert ways(roots, storages, last_call=False) == {holders.storage_of(tensor): way}
    del roots["runner"]
    [other] = ways(roots, storages, last_call=False).values()
    assert str(other) == "list[0].x[k][0]"
    assert other.end(roots) is tensor
    entries.clear()
    assert other.end(roots) is None
    assert ways(roots, storages, last_call=False) == {}


class Lazy(dict[str, torch.Tensor]):
    """Makes values when it is asked for its items, as mappings of Transformers import their models."""

    def items(self) -> NoReturn:
        raise AssertionError("a search is no reason to make them")


def test_a_search_makes_nothing() -> None:
    tensor = torch.ones(2)
    roots = {"lazy": Lazy(made=tensor)}
    [way] = ways(roots, {holders.storage_of(tensor)}, last_call=False).values()
    assert str(way) == "lazy[made]"


def seen(**words: str) -> Trace:
    arrays = {"inputs": np.asarray(7)} | {name: np.frombuffer(text.encode(), np.uint8) for name, text in words.items()}
    record = tuple(RecordedArray(step=0, path="liveness", name=n, array=array) for n, array in arrays.items())
    return Trace(ended=End(how=Termination.DONE), seen=record)


@pytest.mark.parametrize(
    ("name", "words", "where"),
    [
        ("runner.by_size[4].rows", "bound anew: int32[4], captured at a.py f:1", "input captured in a.py f"),
        ("int32[4]", "freed: int32[4], captured at a.py f:1, made at b.py g:22", "input made in b.py g"),
    ],
)
def test_the_oracle_names_the_function(name: str, words: str, where: str) -> None:
    assert only(liveness.judge, CASE, seen()).status is Status.PASS
    verdict = only(liveness.judge, CASE, seen(**{name: words}))
    assert (verdict.status, verdict.where) == (Status.FAIL, where)
    assert name in verdict.detail and "captured at a.py f:1" in verdict.detail
    assert only(liveness.judge, CASE, Trace(ended=End(how=Termination.DONE))).status is Status.UNKNOWN


@pytest.mark.emulated(RELEASE)
def test_a_runner_that_resets_by_another_tensor_is_found_and_one_that_fills_is_not() -> None:
    case = case_of(setup_of("draft"), FULL, PADDED, PAIR)
    anew = Edit(
        file=RUNNER,
        function="EAGLEDraftCudaGraphRunner.execute",
        old=RESET,
        new="buffers.seq_lens = torch.full_like(buffers.seq_lens, self.seq_len_fill_value)",
    )
    with Pool(Target(RELEASE, "emulated"), timeout_s=120, session="tests.builders.cached_session") as pool:
        [passed] = [v for v in judge_all(case, pool.run(case)) if v.oracle == "liveness"]
        assert passed.status is Status.PASS
        pool.change(change([anew]))
        [failed] = [v for v in judge_all(case, pool.run(case)) if v.oracle == "liveness"]
        assert failed.status is Status.FAIL
        assert failed.where == "input made in srt/speculative/eagle_draft_cuda_graph_runner.py __init__"
        assert "runner.buffers.seq_lens, which is bound anew" in failed.detail


@pytest.mark.parametrize(("variable", "looks"), [("", False), ("1", True)])
def test_pytorch_looks_on_a_gpu_where_it_is_asked_to(
    variable: str, looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without a GPU shows the argument alone, by the name that this PyTorch has."""
    parent, begun = cuda.Graph.__base__, []
    parameters = inspect.signature(parent.capture_begin).parameters

    def begin(self: object, pool: object = None, check_input_liveness: bool = False) -> None:
        begun.append(check_input_liveness)

    assert inspect.signature(begin).parameters.keys() - parameters.keys() == set()
    monkeypatch.setattr(parent, "capture_begin", begin)
    monkeypatch.setenv("EAGLEEYE_LIVENESS", variable)
    object.__new__(cuda.Graph).capture_begin(pool=None)
    assert begun == [looks]


def test_a_pytorch_that_cannot_look_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.Graph.__base__, "capture_begin", lambda self, pool=None: None)
    monkeypatch.setenv("EAGLEEYE_LIVENESS", "1")
    with pytest.raises(RuntimeError, match=r"PyTorch 2\.13 or newer"):
        object.__new__(cuda.Graph).capture_begin()


def test_no_way_leads_through_the_runner_of_another_graph() -> None:
    shared = torch.zeros(2)
    others = SimpleNamespace(buffer=shared)
    roots = {"runner": SimpleNamespace(worker=SimpleNamespace(verifies=others))}
    number = holders.storage_of(shared)
    assert str(ways(roots, {number}, last_call=False)[number]) == "runner.worker.verifies.buffer"
    assert ways(roots, {number}, last_call=False, past=[others]) == {}
