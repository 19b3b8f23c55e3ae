"""Functions that sglang compiles where there is a GPU: traced once, whether guard bands are up or not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runners.engines import compiling
from runners.engines.guards import Guards, band_bytes

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
    """How often a function is traced that is called under guards, then without."""

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
    assert traced(compiling.without_guards(torch.compile)) == 1


def test_all_forms_of_compile_are_taken() -> None:
    options = {"backend": "eager", "dynamic": True}
    compile = compiling.without_guards(torch.compile)

    def increment(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    module = compile(torch.nn.Identity(), **options)
    assert isinstance(module, torch.nn.Module)
    for function in (compile(**options)(increment), compile(increment, **options)):
        assert function(torch.ones(2)).tolist() == [2, 2]


def test_guards_are_up_again_behind_a_compiled_function_and_behind_one_that_raises() -> None:
    def refusing(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    raising = compiling.without_guards(lambda model, **_: model)(refusing)
    with Guards(lambda: False):
        with pytest.raises(ValueError, match="no"):
            raising(torch.ones(1))
        assert band_bytes(torch.zeros(4).untyped_storage())


def test_compilers_are_started_without_a_device_and_leave_little_to_import() -> None:
    script = """
import sys, torch
from runners.engines import compiling
compiling.start([(lambda x, k: x.view(-1, k).sum(1), (torch.ones(6), 2))])
assert not torch.cuda.is_initialized()
before = set(sys.modules)
torch.compile(lambda x: x.view(-1, 3).sum(1), dynamic=True, backend="aot_eager")(torch.ones(6))
late = [name for name in set(sys.modules) - before if name.startswith(("torch._dynamo", "torch._functorch"))]
assert not late, late
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.filterwarnings("ignore:.torch.jit")  # of what PyTorch itself imports
def test_what_asks_for_a_device_is_not_started_ahead_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def asking(x: torch.Tensor) -> torch.Tensor:
        torch.cuda._lazy_init()
        return x

    compiling.start([(asking, (torch.ones(2),))])
    assert "Dynamo was not started ahead" in capsys.readouterr().out
    assert not torch.cuda.is_initialized()
