"""Real CUDA graphs: torch.cuda.CUDAGraph with a hook at the moment of launch, nothing else changed."""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from repro.traces.trace import Array
from runners.engines import compiling, forked
from runners.engines.unbacked import Unbacked, unbacked

device = "cuda"
_compiling = compiling.Compiling(torch.compile)
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
# Since 2.13 PyTorch can refuse to replay a graph of which an input was freed. Its mode sees all calls of a capture, so
# that what sglang compiles is captured otherwise: only where EAGLEEYE_LIVENESS is 1.
_LOOKS = "check_input_liveness"


class Graph(torch.cuda.CUDAGraph):
    """before_replay, if set, is called at each replay, just before the graph is launched. Not of graphs that sglang
    captures while it serves, once runner_is_captured is set: those are no launches of the runner."""

    before_replay: Callable[[Graph], None] | None = None
    runner_is_captured = False
    is_of_serving = False
    begun: Graph | None = None

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        self.is_of_serving = Graph.runner_is_captured
        begin = super().capture_begin
        begin(*args, **(kwargs | _checks(begin)))
        Graph.begun = self

    def capture_end(self) -> None:
        Graph.begun = None
        super().capture_end()

    def replay(self) -> None:
        if Graph.before_replay is not None and not self.is_of_serving:
            Graph.before_replay(self)
        super().replay()


def _checks(begin: Callable[..., None]) -> dict[str, bool]:
    """The arguments of PyTorch's begin by which it looks at inputs. RuntimeError if it is asked to and cannot."""
    if os.environ.get("EAGLEEYE_LIVENESS") != "1":
        return {}
    if _LOOKS not in inspect.signature(begin).parameters:
        raise RuntimeError(f"EAGLEEYE_LIVENESS=1 wants PyTorch 2.13 or newer, and this is {torch.__version__}")
    return {_LOOKS: True}


def install() -> None:
    """Put the observed graph where sglang looks for CUDA graphs, and compiled functions out of the guards' reach.
    Touches no device."""
    torch.cuda.CUDAGraph = Graph
    torch.compile = _compiling


def start_compilers(calls: Callable[[Unbacked], Sequence[compiling.Call]]) -> None:
    """Start what compiled functions need, for all sessions that are forked later. calls: those that are traced ahead,
    with tensors of what it is given."""
    _compiling.start(partial(calls, unbacked), _driver_is_untouched)


def _driver_is_untouched() -> bool:
    """True if nothing in this process has started the CUDA driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # there is none
        return True
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == _NOT_INITIALIZED)


def recordings() -> list[Graph]:
    """None: a graph of the device's does not say what it uses."""
    return []


def capturing() -> Graph | None:
    return Graph.begun if torch.cuda.is_current_stream_capturing() else None


def mark_host(tensor: torch.Tensor) -> None:
    """Nothing to say: a host tensor is one on the CPU."""


def memory_seen() -> dict[str, Array]:
    """Nothing: kernels access memory directly."""
    return {}


def pad_into(rows: Iterable[torch.Tensor]) -> None:
    """Nothing: it is never asked."""


def leave_on_host(buffers: Iterable[torch.Tensor]) -> None:
    """Nothing: a kernel that is given one of them fails."""


def accept_literal_cuda() -> None:
    """Nothing to do: that is the device's name."""


def forget() -> None:
    """No runner is captured any more: the next graphs are those of another one."""
    Graph.runner_is_captured, Graph.before_replay = False, None


def memory_reserved() -> int:
    """Bytes of the device that this process keeps for tensors and graphs, once what is free was given back."""
    torch.cuda.synchronize()
    # One for each stream that a product was computed on, up to 32 MiB: each capture has a stream of its own.
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    reserved: int = torch.cuda.memory_reserved()
    return reserved


def synchronize() -> None:
    """Wait for the device, so that an asynchronous error surfaces here."""
    torch.cuda.synchronize()


def hosted() -> AbstractContextManager[None]:
    """Nothing to keep from the device: it is there."""
    return nullcontext()


@contextmanager
def importing() -> Iterator[None]:
    """Import under this what asks for the device or its properties, and the process stays one that can be forked.

    Such questions start the CUDA driver, which no fork survives; a short-lived child answers them instead.
    RuntimeError if something started it all the same.
    """
    properties = _properties_by_a_child()
    answers: list[tuple[Any, str, Any]] = [
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "get_device_properties", lambda device=None: properties),
        (torch._C, "_get_accelerator", lambda *_: torch.device("cuda")),
    ]
    originals = [(place, name, getattr(place, name)) for place, name, _ in answers]
    for place, name, answer in answers:
        setattr(place, name, answer)
    try:
        yield
    finally:
        for place, name, original in originals:
            setattr(place, name, original)
    _properties_by_a_child()


class _Properties(types.SimpleNamespace):
    """The properties that a child reported."""


def _properties_by_a_child() -> _Properties:
    """The first device's properties, as a forked child sees them. RuntimeError if it cannot use CUDA."""
    text = forked.answer(lambda: json.dumps(_plain(torch.cuda.get_device_properties(0))))
    if not text:
        raise RuntimeError("no CUDA device can be used after a fork: the log says why")
    return _Properties(**json.loads(text))


def _plain(properties: object) -> dict[str, Any]:
    values = {name: getattr(properties, name) for name in dir(properties) if not name.startswith("_")}
    return {name: value for name, value in values.items() if isinstance(value, str | int | float | bool)}
