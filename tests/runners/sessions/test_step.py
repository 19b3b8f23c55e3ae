"""One step of a session, over a runner made of plain tensors: what it records, and how little it asks of the device."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from repro.cases.case import Request, Setup
from repro.cases.case import Step as Asked
from repro.cases.layout import pool_tokens, req_to_token
from repro.cases.payload import NOISE_SIZE, noise, window
from repro.traces.trace import Array
from runners.engines import active, staging
from runners.engines.guards import Guards
from runners.recording.observer import Watch
from runners.releases.adapters.draft.family import given
from runners.releases.live import Adapter, Family, Live, Outputs
from runners.sessions import memory, observe
from runners.sessions.capture import Capture
from runners.sessions.captured import Captured
from runners.sessions.extents import Extents
from runners.sessions.observe.catalogue import OBSERVERS
from runners.sessions.observe.observer import Call, Observer
from runners.sessions.step import Step as Run
from runners.sessions.third_opinion import ThirdOpinion

pytestmark = pytest.mark.emulated
SETUP = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2, 4), slots=6)
REQUESTS = (Request(slot=1, seq_len=9, data=1), Request(slot=2, seq_len=17, data=2), Request(slot=3, seq_len=5, data=3))
NAMES = ("seq_lens", "req_pool_indices", "out_cache_loc", "positions", "topk_p", "topk_index", "hidden_states")
# What the harness may ask of the device in a step, apart from sglang's own work: kernels and copies. It was 75.
LAUNCHES_MAX = 30


class Told(Watch):
    """A watch that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, str, str], Array] = {}
        self.places: list[tuple[int, str]] = []

    def at(self, step: int, path: str) -> None:
        self.places.append((step, path))

    def see(self, step: int, path: str, name: str, array: Array) -> None:
        self.seen[step, path, name] = np.array(array)

    def spent(self, stage: str, seconds: float) -> None:
        pass

    def fact(self, name: str, text: str) -> None:
        pass


Pass = Callable[["Runner", Mapping[str, torch.Tensor]], Outputs]


class Runner:
    """Input buffers and a KV cache. graph, eager: what the two paths do with a batch."""

    def __init__(self, graph: Pass, eager: Pass, layers: int = 1) -> None:
        self.graph, self.eager = graph, eager
        size = pool_tokens(SETUP) + SETUP.page_size
        with Guards(lambda: False) as self.guards:
            self.kv = [torch.zeros(size, 2, 16) for _ in range(2 * layers)]
            self.buffers = {name: torch.zeros(shape) for name, shape in self._shapes().items()}
        self.bs = self.raw_bs = 0
        self.launched: Callable[[], None] = lambda: None

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        made = given(SETUP, req_to_token(SETUP), REQUESTS)
        return {name: (SETUP.max_bs, *array.shape[1:]) for name, array in made.items()}


def attend(runner: Runner, batch: Mapping[str, torch.Tensor]) -> Outputs:
    """Writes each draft slot, and gives tokens that depend on it."""
    slots = batch["out_cache_loc"]
    for number, tensor in enumerate(runner.kv):
        tensor[slots] = slots[:, None, None].float() + number
    return {"tokens": batch["seq_lens"] * 2}


def captured(runner: Runner) -> Captured:
    """A session around it, as Captured makes one around sglang."""

    @contextlib.contextmanager
    def launching(replaying: Any, launched: Callable[[], None]) -> Iterator[None]:
        runner.launched = launched
        yield

    def graph(replaying: Any, batch: Any) -> Outputs:
        runner.bs, runner.raw_bs = 4, len(batch.tensors["seq_lens"])
        runner.launched()
        return runner.graph(runner, batch.tensors)

    family = Family(
        given=given,
        flat=frozenset({"out_cache_loc", "positions"}),
        noisy=("hidden_states",),
        buffers=NAMES,
        caller=lambda batch: {"batch_size": batch.count, **batch.tensors},
        model_runner=lambda live: live.target,
        kv=lambda target: runner.kv,
        others=lambda live: [],
        input_buffers=lambda replayed: SimpleNamespace(**replayed.buffers),
        configs=lambda setup: ({}, {}),
        static=lambda live, graph_runner: {},
        metadata=lambda live, graph_runner, bs, rows: {"kv_indptr": torch.arange(9)},
        prefix=lambda setup, request: request.seq_len,
        launching=launching,
    )
    adapter = Adapter(
        name="plain",
        family=family,
        # Nothing is built here, so that what a build gives need not be right.
        build=lambda setup, device, folders: None,  # type: ignore[arg-type,return-value]
        capture=lambda live: runner,
        batch=lambda live, rows: SimpleNamespace(count=rows.count, tensors=dict(rows.tensors)),
        graph=graph,
        eager=lambda live, batch: runner.eager(runner, batch.tensors),
        neutral=lambda live: {"seq_lens": 1},
    )
    pool = SimpleNamespace(req_to_token=torch.from_numpy(req_to_token(SETUP)))
    target = SimpleNamespace(dtype=torch.float32, req_to_token_pool=pool)
    live = Live(setup=SETUP, device="cpu", args=None, target=target, draft=None)
    plain = Capture(live=live, runner=runner, guards=runner.guards, extents=Extents())
    session = Captured(adapter, SETUP, plain)
    session.third_opinion = NoOpinion()
    return session


class NoOpinion(ThirdOpinion):
    """The opinion on a runner without a model: none."""

    def __init__(self) -> None: ...

    def on(self, *arguments: object) -> dict[str, Array]:
        return {}


def told_of(session: Captured, number: int = 0, *more: Observer) -> Told:
    record = Told()
    observers = [*(seeing(session) for seeing in OBSERVERS), *more]
    Run(session, observers, number, Asked(requests=REQUESTS), record).run()
    return record


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever engine this process has: here is nothing to wait for."""
    monkeypatch.setattr(active.engine, "synchronize", lambda: None)


@pytest.fixture(params=[False, True], ids=["at once", "together"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on a device are brought over together; here, on request, CPU tensors are."""
    monkeypatch.setattr(staging, "waits", lambda tensor: request.param)


def test_each_file_of_observe_has_an_observer_that_is_listed() -> None:
    files = {path.stem for path in Path(str(observe.__file__)).parent.glob("*.py")}
    listed = [seeing.__module__.rpartition(".")[2] for seeing in OBSERVERS]
    assert sorted(listed) == sorted(files - {"__init__", "catalogue", "observer"})


def test_hooks_are_called_in_the_order_of_a_step() -> None:
    calls: list[tuple[str, str]] = []

    class Noting(Observer):
        def before(self, call: Call) -> None:
            calls.append(("before", call.path))

        def launched(self, call: Call) -> None:
            calls.append((f"launched {call.launches}", call.path))

        def after(self, call: Call, outputs: Outputs) -> None:
            calls.append((f"after {', '.join(outputs)}", call.path))

    session = captured(Runner(attend, attend))
    told_of(session, 0, Noting(session))
    assert calls == [
        *(("before", "graph"), ("launched 1", "graph"), ("after tokens", "graph")),
        *(("before", "eager"), ("after tokens", "eager")),
    ]


def test_both_paths_are_recorded(way: None) -> None:
    record = told_of(captured(Runner(attend, attend)), number=1)
    batch = given(SETUP, req_to_token(SETUP), REQUESTS)
    for name in NAMES:
        assert record.seen[1, "input", name].tolist() == batch[name].squeeze().tolist(), name
        assert record.seen[1, "before", name].ravel().tolist() == batch[name].ravel().tolist(), name
        assert record.seen[1, "launch", name].shape[0] == SETUP.max_bs
    slots = np.unique(batch["out_cache_loc"])
    for path in ("graph", "eager"):
        assert record.seen[1, path, "tokens"].tolist() == [18, 34, 10]
        assert record.seen[1, path, "kv_slots"].tolist() == slots.tolist()
    assert record.seen[1, "eager", "kv_same"] == 1
    assert (1, "graph", "kv_rows") not in record.seen
    assert record.seen[1, "guard", "intact"] == sum(
        len(bands.read()) for bands in captured(Runner(attend, attend)).bands
    )
    assert record.places == [(1, "graph"), (1, "replay"), (1, "eager")]


def test_a_difference_is_recorded_with_its_rows_and_its_noise(way: None) -> None:
    def astray(runner: Runner, batch: Mapping[str, torch.Tensor]) -> Outputs:
        outputs = attend(runner, batch)
        runner.kv[1][7, 1, 3] = -0.0 if runner.kv[1][7, 1, 3] == 0 else 4.0
        return outputs

    record = told_of(captured(Runner(astray, attend)))
    slots = [record.seen[0, path, "kv_slots"].tolist() for path in ("graph", "eager")]
    assert sorted({*slots[0], *slots[1]} - ({*slots[0]} & {*slots[1]})) == [7]
    rows = record.seen[0, "graph", "kv_rows"]
    assert rows.shape == (len(slots[0]), 2 * 32)
    assert (0, "eager", "kv_same") not in record.seen
    for path in ("eager_again", "eager_nudged_up", "eager_nudged_down"):
        changed = record.seen[0, path, "kv_slots"].tolist()
        # A padded row's batch writes into slot 0.
        assert [slot for slot in changed if slot] == slots[1]


def test_what_padded_rows_write_into_slot_0_is_no_difference(way: None) -> None:
    def padding(runner: Runner, batch: Mapping[str, torch.Tensor]) -> Outputs:
        runner.kv[0][0] = 5.0
        return attend(runner, batch)

    record = told_of(captured(Runner(padding, attend)))
    assert record.seen[0, "eager", "kv_same"] == 1
    assert record.seen[0, "graph", "kv_slots"][0] == 0


def test_eager_starts_from_the_memory_that_graph_started_from(way: None) -> None:
    def counting(runner: Runner, batch: Mapping[str, torch.Tensor]) -> Outputs:
        runner.kv[0][5] += 1
        return {"tokens": runner.kv[0][5, 0, :1].repeat(len(batch["seq_lens"]))}

    record = told_of(captured(Runner(counting, counting)))
    assert record.seen[0, "graph", "tokens"].tolist() == record.seen[0, "eager", "tokens"].tolist()


def test_a_broken_band_is_recorded_as_it_was_after_the_graph(way: None) -> None:
    runner = Runner(attend, attend)
    session = captured(runner)

    def overrun(driven: Runner, batch: Mapping[str, torch.Tensor]) -> Outputs:
        session.bands[0].slices[3][0] = 1
        return attend(driven, batch)

    def mending(driven: Runner, batch: Mapping[str, torch.Tensor]) -> Outputs:
        session.bands[0].slices[3][0] = 0x5A
        return attend(driven, batch)

    runner.graph, runner.eager = overrun, mending
    record = told_of(session)
    name = session.bands[0].names[1]
    band, want = record.seen[0, "guard", name], record.seen[0, "guard", f"{name}.want"]
    assert np.flatnonzero(band != want).tolist() == [band.size // 2]


def test_a_caller_whose_tensors_are_changed_is_recorded_before_and_after(way: None) -> None:
    def careless(runner: Runner, batch: Mapping[str, torch.Tensor]) -> Outputs:
        outputs = attend(runner, batch)
        batch["positions"].add_(1)
        return outputs

    record = told_of(captured(Runner(careless, attend)))
    before, after, eager = (record.seen[0, path, "positions"] for path in ("before", "after_graph", "after_eager"))
    assert (after == before + 1).all()
    assert (eager == before).all()


def test_steps_fill_what_the_caller_says_and_no_two_alike() -> None:
    session = captured(Runner(attend, attend))
    table, slots = session.table, session.runner.kv[0]
    told_of(session, 0)
    first = slots[table[1, :9]].clone()
    stale = [session.snapshots.kept(0)[0][table[6, 5]].clone()]
    told_of(session, 1)
    assert torch.equal(slots[table[1, :9]], first), "prefixes come from the request's data alone"
    drafts = given(SETUP, table, REQUESTS)["out_cache_loc"][0, 0]
    before = session.snapshots.kept(0)[0][drafts].clone()
    told_of(session, 2)
    assert not torch.equal(session.snapshots.kept(0)[0][drafts], before)
    assert not torch.equal(session.snapshots.kept(0)[0][table[6, 5]], stale[0]), "slots of nobody's, too"


def test_what_a_cache_is_filled_with_is_a_window_of_noise_for_every_request_and_tensor() -> None:
    """Seeds mean these contents; tensors of other widths among them begin where their number says."""
    table = req_to_token(SETUP)
    kv = [torch.zeros(int(table.max()) + 1, *shape) for shape in ((2, 16), (3, 8), (2, 16))]
    want = [tensor.numpy().copy().reshape(len(tensor), -1) for tensor in kv]
    prefixes = [(request, table[request.slot, : request.seq_len]) for request in REQUESTS]
    drafts = table[6, 10:22]
    memory.Filling(kv, memory.filled_from(32, torch.device("cpu"), torch.float32)).fill(4, prefixes, drafts)
    values = noise()
    for number, rows in enumerate(want):
        width = rows.shape[1]
        begins = [(slots_of_request, window(request.data, f"prefix{number}")) for request, slots_of_request in prefixes]
        for slots, begin in [*begins, (drafts, window(4, f"stale{number}"))]:
            for place, slot in enumerate(slots):
                rows[slot] = values[(begin + place * width + np.arange(width)) % NOISE_SIZE]
        assert (kv[number].numpy().reshape(rows.shape) == rows).all()


@pytest.mark.parametrize("layers", [1, 3])
def test_a_cache_of_several_kinds_of_tensor_is_compared_alike(layers: int) -> None:
    kv = [torch.zeros(8, 2, 4), torch.zeros(8, 3, dtype=torch.float16), torch.zeros(8, 2, 4)] * layers
    snapshots = memory.Snapshots(kv)
    snapshots.take(snapshots.BEFORE)
    kv[0][3, 1, 1], kv[1][5, 0] = 1.0, float("nan")
    snapshots.take(snapshots.GRAPH)
    taken = snapshots.kept(snapshots.GRAPH)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(taken, kv, strict=True))
    snapshots.put_back(snapshots.BEFORE)
    assert not any(tensor.any() for tensor in kv)
    kv[-1][6, 0, 0], kv[1][5, 0] = -0.0, float("nan")
    snapshots.take(snapshots.EAGER)
    changed = [slots.nonzero().flatten().tolist() for slots in snapshots.compare()]
    assert changed == [[3, 5], [5, 6], [3, 6]]


# Those that only look at memory in another way.
VIEWS = (
    "view",
    "reshape",
    "slice",
    "select",
    "as_strided",
    "detach",
    "unsqueeze",
    "squeeze",
    "split",
    "unbind",
    "alias",
)


class Launches(TorchDispatchMode):  # type: ignore[misc]  # mypy does not read torch, so its classes are Any
    """Counts operations that a GPU would have to be given."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).split(".")[1]
        if not name.startswith(VIEWS) and not name.startswith(("empty", "new_empty", "lift_fresh")):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layers", [1, 4])
def test_a_step_launches_little_besides_the_work_itself(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated engine can count what a GPU would be given, and the count is the same on every machine."""
    session = captured(Runner(lambda *_: {}, lambda *_: {}, layers))
    told_of(session)
    # Here everything is on the CPU; on a GPU the batch is what the host has, and only the rest has to wait.
    on_host = {"input"}
    monkeypatch.setattr(staging, "waits", lambda tensor: not on_host)
    see = staging.StagingBuffer.see

    def seeing(self: staging.StagingBuffer, path: str, name: str, value: object, **ways: Any) -> None:
        on_host.add("x") if path == "input" else on_host.clear()
        see(self, path, name, value, **ways)

    monkeypatch.setattr(staging.StagingBuffer, "see", seeing)
    with Launches() as launches:
        told_of(session)
    # One write for each tensor of the cache; everything else is done for all together.
    assert launches.counts.pop("index_put_") == 2 * layers
    assert sum(launches.counts.values()) <= LAUNCHES_MAX - 2, launches.counts


def test_a_step_in_which_all_on_the_device_is_without_rows_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle batch: what has no bytes on the device is not copied there, whichever device that is, and is told."""
    monkeypatch.setattr(staging, "waits", lambda tensor: True)
    record = Told()
    buffer = staging.StagingBuffer(record, 3)
    buffer.see("given", "tokens", torch.empty(0, 4, dtype=torch.int64, device="meta"))
    came = buffer.flush()
    assert record.seen[3, "given", "tokens"].shape == (0, 4)
    assert came["given", "tokens"].dtype == np.int64
