"""Functions that sglang compiles where there is a GPU: traced once, whether guard bands are up or not, and ahead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from runners.engines.compiling import Compiling
from runners.engines.guards import Guards, band_bytes
from runners.engines.unbacked import unbacked

pytestmark = pytest.mark.emulated


class Counting:
    """A backend for torch.compile: how many graphs it was given."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.graphs += 1
        forward: Callable[..., Any] = graph.forward
        return forward


def traced(compile: Callable[..., Any]) -> int:
    """The number of traces of a function that is called under guards, then without."""

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    torch.compiler.reset()
    backend = Counting()
    compiled = compile(dynamic=True, backend=backend)(doubled)
    ones = torch.ones(3)
    with Guards(lambda: False):
        assert compiled(ones).tolist() == [2, 2, 2]
    assert compiled(ones).tolist() == [2, 2, 2]
    return backend.graphs


def test_a_compiled_function_is_traced_once_with_and_without_guards() -> None:
    assert traced(torch.compile) == 2, "else nothing needs to be done"
    assert traced(Compiling(torch.compile)) == 1


def test_all_forms_of_compile_are_taken() -> None:
    options = {"backend": "eager", "dynamic": True}
    compile = Compiling(torch.compile)

    def increment(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    module = compile(torch.nn.Identity(), **options)
    assert isinstance(module, torch.nn.Module)
    for function in (compile(**options)(increment), compile(increment, **options)):
        assert function(torch.ones(2)).tolist() == [2, 2]


def test_guards_are_up_again_behind_a_compiled_function_and_behind_one_that_raises() -> None:
    def refusing(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    raising = Compiling(lambda model, **_: model)(refusing)
    with Guards(lambda: False):
        with pytest.raises(ValueError, match="no"):
            raising(torch.ones(1))
        assert band_bytes(torch.zeros(4).untyped_storage())


def summed(rows: torch.Tensor, wide: torch.Tensor, count: int) -> torch.Tensor:
    return rows.view(-1, count).sum(1) + wide.sum()


def ahead(compile: Compiling) -> Callable[..., Any]:
    """The function above, compiled by this, of which one call was traced ahead."""
    function: Callable[..., Any] = compile(dynamic=True, disable=False)(summed)
    compile.start(lambda: [(function, (torch.ones(6), torch.ones(5, 7), 2))], lambda: True)
    return function


def test_what_was_traced_ahead_is_compiled_once_it_is_called_and_not_traced_again() -> None:
    torch.compiler.reset()
    compiled: list[object] = []

    def by(graph: Any, inputs: object) -> Callable[..., Any]:
        compiled.append(graph)
        forward: Callable[..., Any] = graph.forward
        return forward

    function = ahead(Compiling(torch.compile, by))
    frames = dict(counters["frames"])
    assert not compiled
    for arguments in ((torch.ones(6), torch.ones(5, 7), 2), (torch.ones(12), torch.ones(2, 3), 4)):
        assert torch.equal(function(*arguments), summed(*arguments))
    assert len(compiled) == 1 and counters["frames"] == frames
    first = torch.ones(1), torch.ones(5, 7), 1  # of another kind: it is traced as it comes
    assert torch.equal(function(*first), summed(*first))
    assert len(compiled) == 2 and counters["frames"] != frames


def test_what_the_compiler_took_for_granted_is_asked_for() -> None:
    torch.compiler.reset()
    ran: list[bool] = []

    def by(graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        sizes = [value for value in inputs if isinstance(value, torch.SymInt)]
        rows, columns = (size for size in sizes if size.node.hint in (5, 7))
        flat = bool(rows < columns)  # which nothing of what was traced depends on

        def forward(*arguments: Any) -> Any:
            ran.append(flat)
            return graph.forward(*arguments)

        return forward

    function = ahead(Compiling(torch.compile, by))
    for shape in ((5, 7), (7, 5), (2, 9)):
        arguments = torch.ones(6), torch.ones(shape), 2
        assert torch.equal(function(*arguments), summed(*arguments))
    assert ran == [True, False, True]


def test_what_cannot_be_compiled_behind_a_fork_is_traced_as_it_comes() -> None:
    torch.compiler.reset()
    tried: list[object] = []

    def by(graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        tried.append(graph)
        if len(tried) == 1:
            raise RuntimeError("not of this")
        forward: Callable[..., Any] = graph.forward
        return forward

    function, arguments = ahead(Compiling(torch.compile, by)), (torch.ones(6), torch.ones(5, 7), 2)
    for _ in range(2):
        assert torch.equal(function(*arguments), summed(*arguments))
    assert len(tried) == 2, "once behind the fork, and once as it comes"


@pytest.mark.exhaustive
def test_compilers_are_started_without_a_device_and_leave_little_to_import() -> None:
    script = """
import sys, torch
from runners.engines.compiling import Compiling
compile = Compiling(torch.compile)
function = compile(lambda x, k: x.view(-1, k).sum(1), dynamic=True)
compile.start(lambda: [(function, (torch.ones(6), 2))], lambda: True)
assert not torch.cuda.is_initialized()
before = set(sys.modules)
torch.compile(lambda x: x.view(-1, 3).sum(1), dynamic=True, backend="aot_eager")(torch.ones(6))
late = [name for name in set(sys.modules) - before if name.startswith(("torch._dynamo", "torch._functorch"))]
assert not late, late
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.filterwarnings("ignore:.torch.jit")  # of what PyTorch itself imports
def test_what_asks_for_a_device_is_not_traced_ahead_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def asking(x: torch.Tensor) -> torch.Tensor:
        torch.cuda._lazy_init()
        return x

    Compiling(torch.compile).start(lambda: [(asking, (torch.ones(2),))], lambda: True)
    assert "nothing was traced ahead" in capsys.readouterr().out
    assert not torch.cuda.is_initialized()


def test_where_tracing_starts_the_device_only_a_child_traces(capsys: pytest.CaptureFixture[str]) -> None:
    called: list[int] = []
    Compiling(torch.compile).start(lambda: [(called.append, (1,))], lambda: False)
    assert not called and "nothing was traced ahead" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(3,), (4, 2), (2, 3, 5)])
def test_a_tensor_without_memory_is_of_plain_type(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor, plain = unbacked(shape, dtype), torch.ones(shape, dtype=dtype)
    assert type(tensor) is torch.Tensor and tensor.device == torch.device("cuda:0")
    assert (tensor.shape, tensor.stride(), tensor.dtype) == (plain.shape, plain.stride(), dtype)
    assert not torch.cuda.is_initialized()
