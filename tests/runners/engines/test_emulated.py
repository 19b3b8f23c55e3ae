"""The emulated engine: a replay gives what eager PyTorch gives, and what CUDA graphs freeze and refuse is frozen
and refused here."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runners.engines import emulated, launch_memory
from runners.engines.arena import Arena
from runners.engines.emulated import Graph, graph, mark_host
from runners.engines.refused import REFUSAL, CaptureRefused, is_host
from runners.engines.without_device import hosted
from tests.builders.capturing import address, captured
from tests.builders.tensor_programs import MAKES, WRITES, Call, Program, Tensors, bits, contents, programs, run

pytestmark = pytest.mark.emulated
many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """One thread, as in a worker: a sum comes out the same every time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def put(buffers: Tensors, seed: int) -> None:
    for buffer, content in zip(buffers, contents(seed), strict=True):
        buffer.copy_(content)


def told(tensors: Tensors) -> list[tuple[object, ...]]:
    return [(tensor.dtype, tensor.shape, tensor.stride(), bits(tensor)) for tensor in tensors]


def test_an_assertion_is_part_of_the_graph() -> None:
    """An assertion that sglang's probes record while a graph is captured watches every replay."""
    values = torch.ones(3)

    def program() -> Tensors:
        torch._assert_async((values > 0).all(), "not positive")
        return []

    made, _ = captured(program)
    made.replay()
    values[1] = -1
    with pytest.raises(RuntimeError, match="not positive"):
        made.replay()


def test_what_an_operator_of_sglang_calls_is_part_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Python code runs in a capture and never again: a replay has the scale of then."""
    scale = 2.0

    def scaled(values: torch.Tensor) -> torch.Tensor:
        return values * scale

    library = torch.library.Library("sglang", "FRAGMENT")
    library.define("scaled_for_a_test(Tensor values) -> Tensor")
    library.impl("scaled_for_a_test", scaled, "CPU")
    monkeypatch.setitem(emulated._operators, "sglang::scaled_for_a_test", scaled)
    values = torch.ones(3)
    made, results = captured(lambda: [torch.ops.sglang.scaled_for_a_test(values)])
    scale = 5.0
    values.fill_(3)
    made.replay()
    assert results[0].tolist() == [6.0, 6.0, 6.0]


@many
@given(programs(), st.lists(st.integers(1, 1000), min_size=1, max_size=3))
def test_a_replay_gives_what_eager_gives(program: Program, seeds: list[int]) -> None:
    buffers = contents(0)
    made, results = captured(lambda: run(program, buffers))
    assert told(buffers) == told(contents(0)), "a capture leaves memory as it was"
    for seed in seeds:
        put(buffers, seed)
        made.replay()
        assert told(results) == told(run(program, contents(seed)))


@many
@given(programs(8), programs(8), st.lists(st.booleans(), min_size=1, max_size=6))
def test_graphs_of_one_pool_are_each_right_after_their_replay(
    first: Program, second: Program, turns: list[bool]
) -> None:
    pool = Arena()
    programs = (first, second)
    buffers = (contents(0), contents(1))
    made = [captured(partial(run, programs[number], buffers[number]), pool) for number in (0, 1)]
    kept: list[tuple[object, ...]] = []
    for turn, number in enumerate(turns):
        put(buffers[number], turn + 2)
        made[number][0].replay()
        assert told(made[number][1]) == told(run(programs[number], contents(turn + 2)))
        # What the first graph keeps was in use when the second was captured, so it is nobody else's.
        if number == 0:
            kept = told(made[0][1])
        elif kept:
            assert told(made[0][1]) == kept


def test_the_programs_reach_every_operation() -> None:
    """Each operation alone, on every input, so that none of them is only ever skipped."""
    for name in (*MAKES, *WRITES):
        effects = 0
        for number in range(len(contents(0))):
            for n in (1, 4):
                program = [Call(name, number, number + 1, n)]
                buffers = contents(0)
                made, results = captured(partial(run, program, buffers))
                put(buffers, 2)
                made.replay()
                assert told(results) == told(run(program, contents(2)))
                effects += len(results) > len(buffers) or made.calls > 0
        assert effects >= 4, name


def test_scalars_and_shapes_are_frozen() -> None:
    x, count, factor = torch.ones(3), 2, 5.0
    made, [result] = captured(lambda: [x.repeat(count) * factor])
    count, factor = 7, -1.0
    made.replay()
    assert result.tolist() == [5.0] * 6
    x = torch.zeros(3)  # another tensor under the same name: the graph goes on with the address it knows
    made.replay()
    assert result.tolist() == [5.0] * 6


def test_a_branch_is_taken_once_and_for_all() -> None:
    flag, x = True, torch.arange(3.0)
    made, [result] = captured(lambda: [x + 1 if flag else x - 1])
    flag = False
    x.copy_(torch.tensor([10.0, 20.0, 30.0]))
    made.replay()
    assert result.tolist() == [11.0, 21.0, 31.0]


def test_an_operation_whose_result_changes_its_size_ends_the_replay() -> None:
    counts = torch.tensor([1, 2])
    made, _ = captured(lambda: [torch.repeat_interleave(counts, output_size=3)])
    counts.fill_(3)
    with pytest.raises(RuntimeError):
        made.replay()


def test_results_may_mix_views_of_inputs_with_new_tensors() -> None:
    x = torch.arange(6.0)

    def program() -> Tensors:
        low, high = x.view(2, 3).unbind(0)
        ordered, order = x.sort(descending=True)
        same = x.to(torch.float32)
        parts = torch._foreach_add([low, same], 1.0)
        return [low, high, ordered, order, same, *parts]

    made, [low, high, ordered, order, same, *parts] = captured(program)
    assert same is x
    x.copy_(torch.tensor([3.0, 1, 2, 9, 8, 7]))
    assert low.tolist() == [3, 1, 2], "a view of an input shows the input without a replay"
    made.replay()
    assert high.tolist() == [9, 8, 7]
    assert ordered.tolist() == [9, 8, 7, 3, 2, 1]
    assert order.tolist() == [3, 4, 5, 0, 2, 1]
    assert [part.tolist() for part in parts] == [[4, 2, 3], [4, 2, 3, 10, 9, 8]]


def test_a_capture_writes_to_no_memory_that_was_there() -> None:
    pool = Arena()
    outside = torch.zeros(8)
    shared = np.zeros(4, dtype=np.float32)
    tensor, other = torch.from_numpy(shared), torch.from_numpy(shared)  # two storages over the same memory
    first, [kept] = captured(lambda: [outside + 5], pool)
    first.replay()

    def program() -> Tensors:
        outside[2:4].fill_(9)
        tensor.add_(1)
        other.add_(1)
        kept.mul_(2)  # a live output of the pool's other graph
        return []

    second, _ = captured(program, pool)
    assert outside.tolist() == [0] * 8
    assert shared.tolist() == [0] * 4
    assert kept.tolist() == [5] * 8
    second.replay()
    assert outside.tolist() == [0, 0, 9, 9, 0, 0, 0, 0]
    assert shared.tolist() == [2] * 4
    assert kept.tolist() == [10] * 8


def test_a_capture_that_fails_leaves_memory_and_graph_as_they_were() -> None:
    x = torch.zeros(3)
    made, [result] = captured(lambda: [x + 1])
    with pytest.raises(ZeroDivisionError), graph(made):
        x.fill_(8)
        raise ZeroDivisionError
    assert x.tolist() == [0, 0, 0]
    assert not emulated.capturing()
    made.replay()
    assert result.tolist() == [1, 1, 1]


def test_what_a_capture_remembered_is_forgotten() -> None:
    x = torch.zeros(1 << 20)

    def alike() -> set[int]:
        gc.collect()
        tensors = [tensor for tensor in gc.get_objects() if type(tensor) is torch.Tensor]
        return {address(tensor) for tensor in tensors if tensor.nbytes == x.nbytes}

    before = alike()  # others may be held by what ran before in this process
    assert address(x) in before
    made, _ = captured(lambda: [x.zero_(), torch.empty(2)])
    assert made.calls == 2
    assert alike() == before


REFUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "int": lambda x: int(x[0]),
    "float": lambda x: float(x[0]),
    "index": lambda x: range(x.long()[0]),
    "bool": lambda x: bool(x.any()),
    "if": lambda x: 1 if x[0] > 2 else 2,
    "in": lambda x: 3.0 in x,
    "format": lambda x: f"{x.sum():.2f}",
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 1),
    "mask": lambda x: x[x > 1],
    "mask of bytes": lambda x: x[(x > 1).to(torch.uint8)],
    "put by mask": lambda x: x.__setitem__(x > 1, x[:1]),
    "masked_select": lambda x: x.masked_select(x > 1),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.long().bincount(),
    "equal": lambda x: torch.equal(x, x + 1),
    "allclose": lambda x: torch.allclose(x, x),
    "repeat_interleave": lambda x: x.repeat_interleave(torch.ones_like(x, dtype=torch.int64)),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
    "tensor of a list": lambda x: torch.tensor([1, 2]),
    "tensor of a tuple": lambda x: torch.tensor((1.0,)),
    "tensor by keyword": lambda x: torch.tensor(dtype=torch.int64, data=[1]),
    "as_tensor of an array": lambda x: torch.as_tensor(np.zeros(2)),
    "new_tensor": lambda x: x.new_tensor([1.0]),
    "index by a list": lambda x: x[[0, 2]],
    "put by a list": lambda x: x.__setitem__([0, 2], 1.0),
    "synchronize": lambda x: emulated.synchronize(),
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cuda_refuses_is_refused(name: str) -> None:
    x = torch.arange(6.0)
    REFUSED[name](x.clone())  # it is fine where nothing is captured
    with pytest.raises(CaptureRefused, match="operation not permitted when stream is capturing"):
        captured(lambda: [x.add_(1), REFUSED[name](x)])
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    assert issubclass(CaptureRefused, RuntimeError)
    assert REFUSAL.startswith("CUDA error: ")


def test_what_cuda_permits_is_permitted() -> None:
    x, rows = torch.arange(6.0), torch.tensor([1, 0])

    def program() -> Tensors:
        y = x.clone()
        y[y > 3] = 0.0  # one number for all: nobody counts them
        wide = torch.zeros(2, 3)
        wide[x[:2] > 0] = 7
        repeats = x.repeat_interleave(torch.ones_like(x, dtype=torch.int64), output_size=6)
        return [y, wide, repeats, x.view(2, 3)[rows], x.view(2, 3)[:, -1, None], torch.tensor(2.5) + x]

    made, results = captured(program)
    x.copy_(torch.tensor([9.0, 0, 1, 2, 3, 4]))
    made.replay()
    assert [result.tolist() for result in results] == [
        [0, 0, 1, 2, 3, 0],
        [[7, 7, 7], [0, 0, 0]],
        [9, 0, 1, 2, 3, 4],
        [[2, 3, 4], [9, 0, 1]],
        [[1], [4]],
        [11.5, 2.5, 3.5, 4.5, 5.5, 6.5],
    ]


def test_a_host_tensor_may_be_read() -> None:
    lengths, x = torch.tensor([2, 3]), torch.arange(4.0)
    mark_host(lengths)

    def program() -> Tensors:
        assert lengths.tolist() == lengths[:].cpu().tolist() == list(lengths.numpy()) == [2, 3]
        return [x[: lengths[0].item()] * int(lengths[1])]

    made, [result] = captured(program)
    made.replay()
    assert result.tolist() == [0, 3]
    with pytest.raises(CaptureRefused):
        captured(lambda: [x[: (lengths + x[0].long())[0].item()]])


def test_pinned_memory_is_the_hosts() -> None:
    with hosted():
        assert is_host(torch.ones(3, pin_memory=True)) and is_host(torch.ones(3).pin_memory())
        assert not is_host(torch.ones(3))


def test_a_launch_may_have_fewer_programs_than_its_buffer_has_segments() -> None:
    launch_memory.taken()
    for name in ("seg_indptr", "qo_indptr"):
        launch_memory.check("by_segment", {name: torch.zeros(5, dtype=torch.int32)}, 2)
    assert launch_memory.taken().keys() == {
        launch_memory.LAUNCHES,
        "another number of row starts than programs: qo_indptr in by_segment",
    }


def test_a_mark_dies_with_its_tensor() -> None:
    for _ in range(20):
        gone = torch.ones(3)
        mark_host(gone)
        del gone
        assert not is_host(torch.ones(3))


def test_memory_is_not_swapped_under_a_graph() -> None:
    x = torch.ones(3)
    with pytest.raises(NotImplementedError, match="cannot freeze"):
        captured(lambda: [copy.deepcopy(x)])


def test_replay_before_capture() -> None:
    made = Graph()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        made.replay()
    with pytest.raises(CaptureRefused), graph(made):
        torch.ones(1).item()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        made.replay()
    with graph(made):
        torch.ones(1)
    made.replay()
    made.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        made.replay()


def test_the_hook_sees_the_inputs_and_no_result_yet() -> None:
    x, seen = torch.zeros(2), []
    made, [result] = captured(lambda: [x + 1])

    def look(launched: Graph) -> None:
        seen.append((launched, x.tolist(), result.tolist()))

    x.fill_(4)
    Graph.before_replay = look
    try:
        made.replay()
    finally:
        Graph.before_replay = None
    made.replay()
    assert seen == [(made, [4, 4], [1, 1])]
    assert result.tolist() == [5, 5]


def test_a_graph_that_is_captured_while_serving_is_no_launch_of_the_runner() -> None:
    output, _ = captured(lambda: [torch.ones(1)])
    seen: list[Graph] = []
    Graph.runner_is_captured = True
    Graph.before_replay = seen.append
    try:
        other, _ = captured(lambda: [torch.zeros(1)])
        other.replay()
        output.replay()
    finally:
        Graph.before_replay, Graph.runner_is_captured = None, False
    assert seen == [output]
