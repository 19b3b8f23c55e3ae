"""CUDA graphs emulated on CPU tensors: record ATen calls and Triton launches once, replay them over the same memory.

What a CUDA graph freezes is frozen here: addresses, shapes, Python scalars and the order of calls. What CUDA
refuses during capture is refused with the same kind of error. Capturing leaves memory as it was, and graphs of
one pool share the memory of their intermediates (arena.py). sglang's own code runs on top, unmodified.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from runners.engines import touched
from runners.engines.arena import Arena, merged, within
from runners.engines.cuda_to_cpu import replacements
from runners.engines.graph_inputs import Input, freed, note
from runners.engines.launch_memory import set_dumps as pad_into
from runners.engines.launch_memory import set_host as leave_on_host
from runners.engines.launch_memory import taken as memory_seen
from runners.engines.poison import UNINITIALISED
from runners.engines.refused import REFUSAL, CaptureRefused, HostGuard, mark_host, refuse
from runners.engines.standins import native_imports
from runners.engines.touched import Touched, noted, noted_at_once
from runners.engines.triton import interpreter
from runners.engines.triton.stored import stored
from runners.engines.without_device import hosted, remember_cores

__all__ = [
    "Graph",
    "Touched",
    "capturing",
    "device",
    "forget",
    "graph",
    "hosted",
    "importing",
    "install",
    "leave_on_host",
    "mark_host",
    "memory_reserved",
    "memory_seen",
    "noted",
    "noted_at_once",
    "pad_into",
    "recordings",
    "synchronize",
]

device = "cpu"


class Graph:
    """Stands in for torch.cuda.CUDAGraph. before_replay, if set, is called with the graph at each replay.
    Not of graphs that sglang captures while it serves, once runner_is_captured is set: those are no launches of the
    runner."""

    before_replay: Callable[[Graph], None] | None = None
    runner_is_captured = False
    is_of_serving = False
    poison = True

    def __init__(self, keep_graph: bool = False) -> None:
        self._calls: list[Callable[[], None]] | None = None
        self._blocks: list[tuple[int, int]] = []
        self._poisoned: list[tuple[int, int]] = []
        self._pool: Arena | None = None
        self._outside: list[tuple[int, int]] = []
        self._uses: list[tuple[bool, torch.Tensor]] | None = None
        self.inputs: dict[int, Input] = {}
        self._capture: AbstractContextManager[None] | None = None
        self._unused: list[tuple[int, int]] | None = None  # stretches of the pool when a segment began
        _graphs.add(self)

    def pool(self) -> Arena | None:
        """The handle of the memory pool, to be passed to the next capture."""
        return self._pool

    def replay(self) -> None:
        """Run the recorded calls. RuntimeError before a capture, or if a call's result changes its size."""
        if self._calls is None or self._pool is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if Graph.before_replay is not None and not self.is_of_serving:
            Graph.before_replay(self)
        if self.poison:
            for offset, size in self._poisoned:
                self._pool.poison(offset, size)
        with nullcontext() if self.is_of_serving else touched.replayed(), _disable_current_modes():
            for call in self._calls:
                call()

    def capture_begin(self, pool: Arena | None = None, capture_error_mode: str = "global") -> None:
        """Record what runs until capture_end(): a segment, which may read what others before it left in the pool."""
        pool = pool if isinstance(pool, Arena) else Arena()
        self._capture, self._unused = graph(self, pool), pool.unused()
        self._capture.__enter__()

    def capture_end(self) -> None:
        capture, self._capture = self._capture, None
        if capture is None:
            raise RuntimeError("Called CUDAGraph::capture_end without a preceding capture_begin.")
        capture.__exit__(None, None, None)

    def reset(self) -> None:
        self._calls = None
        self.inputs = {}

    def freed(self) -> list[Input]:
        """The inputs that nothing but recordings holds any more."""
        return freed(self.inputs.values(), [each.inputs for each in _graphs])

    def outside(self) -> list[tuple[bool, torch.Tensor]]:
        """Tensors outside of its pool, each storage once: True if a replay only reads it."""
        if self._uses is None:
            assert self._pool is not None
            used = [use for call in self._calls or () for use in _uses(call) if not self._pool.holds(use[1])]
            written = {tensor.untyped_storage()._cdata for reads, tensor in used if not reads}
            by_storage = {tensor.untyped_storage()._cdata: tensor for _, tensor in used}
            self._uses = [(storage not in written, tensor) for storage, tensor in by_storage.items()]
        return self._uses

    def memory(self) -> list[tuple[int, int]]:
        """The stretches that a replay may write, (address, bytes): in its pool and outside."""
        assert self._pool is not None
        return [*((self._pool.base + offset, size) for offset, size in self._blocks), *self._outside]

    @property
    def calls(self) -> int:
        """The number of recorded calls."""
        return len(self._calls or ())


@contextmanager
def graph(cuda_graph: Graph, pool: Arena | None = None, stream: object = None, **_: object) -> Iterator[None]:
    """Stands in for torch.cuda.graph: what runs inside is recorded into `cuda_graph`."""
    recorder = _Recorder(pool if pool is not None else Arena(), cuda_graph)
    cuda_graph.is_of_serving = Graph.runner_is_captured
    _open.append(recorder)
    try:
        with interpreter.launches_go_to(recorder.launch), recorder, HostGuard():
            yield
    finally:
        _open.pop()
        cuda_graph._outside = [(alias.data_ptr(), alias.numel()) for alias, _ in recorder._before.values()]
        recorder.restore()
    cuda_graph._calls, cuda_graph._blocks, cuda_graph._pool = recorder.calls, merged(recorder.blocks), recorder.arena
    cuda_graph._poisoned = (
        cuda_graph._blocks if cuda_graph._unused is None else within(recorder.blocks, cuda_graph._unused)
    )
    cuda_graph.inputs = {number: entry for number, entry in recorder.inputs.items() if entry.form}


# sglang's operators, by their names: Python, of which a GPU records the kernels alone.
_operators: dict[str, Callable[..., Any]] = {}
_open: list[_Recorder] = []
_graphs: WeakSet[Graph] = WeakSet()


def start_compilers(calls: object) -> None:
    """Nothing: what sglang compiles runs as it is."""


def recordings() -> list[Graph]:
    """All graphs that were captured and not dropped."""
    return [each for each in _graphs if each.calls]


def capturing() -> Graph | None:
    """The graph whose capture is under way."""
    return _open[-1].owner if _open else None


class _Recorder(TorchDispatchMode):
    """Sees every ATen call under it, executes it (shapes are needed) and notes how to run it again."""

    def __init__(self, arena: Arena, owner: Graph) -> None:
        super().__init__()
        self.arena = arena
        self.owner = owner
        self.calls: list[Callable[[], None]] = []
        self.blocks: list[tuple[int, int]] = []
        self.inputs: dict[int, Input] = {}
        self._own: set[int] = set()  # addresses of the blocks
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if python := _operators.get(func._schema.name):
            with self:
                return python(*args, **kwargs)
        refuse(func, args, kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        mutates = func._schema.is_mutable
        if mutates:
            self._remember(tensors)
        frozen = tree_map_only(torch.Tensor, self._freeze, (args, kwargs)) if tensors else (args, kwargs)
        result = func(*args, **kwargs)
        storages = {tensor.untyped_storage()._cdata for tensor in tensors}
        fresh = [
            (number, leaf)
            for number, leaf in enumerate(tree_leaves(result))
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in storages
        ]
        if not fresh:
            if mutates or func in _EFFECTS:
                self._record(_Again(func, frozen, ()), frozen)
            return result
        homes = {id(leaf): self._rehome(leaf) for _, leaf in fresh}
        targets = tuple((number, self._freeze(homes[id(leaf)])) for number, leaf in fresh)
        if func in UNINITIALISED:
            self.calls.append(partial(self._undefined, targets[0][1]))
        else:
            self._record(_Again(func, frozen, targets), frozen)
        return tree_map_only(torch.Tensor, lambda leaf: homes.get(id(leaf), leaf), result)

    def launch(self, kernel: interpreter.Launch) -> None:
        """Record a Triton launch. Any tensor it is given may be written."""
        # A launch is no ATen call, so this recorder is still listening: our own calls must not become the graph's.
        with _disable_current_modes():
            self._remember([leaf for leaf in tree_leaves(kernel.arguments) if isinstance(leaf, torch.Tensor)])
            frozen = tree_map_only(torch.Tensor, self._freeze, kernel.arguments)
            kernel.run()
        self._record(kernel.with_arguments(frozen).run, frozen)

    def _record(self, call: Callable[[], None], frozen: Any) -> None:
        self.calls.append(call)
        tensors = (leaf for leaf in tree_leaves(frozen) if isinstance(leaf, torch.Tensor))
        note(self.inputs, (tensor for tensor in tensors if not self.arena.holds(tensor)))

    def restore(self) -> None:
        """Undo what executing the calls did to memory that was there before: a capture runs nothing."""
        # The last remembered first: two storages may lie over the same memory.
        for alias, contents in reversed(self._before.values()):
            alias.copy_(contents)
        self._before.clear()

    def _remember(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._before and storage.nbytes() and storage.data_ptr() not in self._own:
                whole = torch.empty(0, dtype=torch.uint8).set_(storage)
                self._before[storage._cdata] = (whole, whole.clone())

    def _freeze(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.arena.alias(tensor) if self.arena.holds(tensor) else tensor.detach()

    def _rehome(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.numel():
            return tensor
        home, block = self.arena.allocate(tensor)
        self.blocks.append(block)
        self._own.add(home.data_ptr())
        home.copy_(tensor)
        return home

    def _undefined(self, target: torch.Tensor) -> None:
        if self.owner.poison:
            target.copy_(_poison(target.dtype))


class _Again:
    """One recorded call: run it and put its fresh results, by their number, where the capture put them."""

    __slots__ = ("arguments", "function", "targets")

    def __init__(
        self, function: Any, arguments: tuple[Any, Any], targets: tuple[tuple[int, torch.Tensor], ...]
    ) -> None:
        self.function, self.arguments, self.targets = function, arguments, targets

    def __call__(self) -> None:
        if touched.noting is not None:
            touched.noting.called(self.function, self.arguments)
        result = self.function(*self.arguments[0], **self.arguments[1])
        if not self.targets:
            return
        results = (result,) if isinstance(result, torch.Tensor) else tree_leaves(result)
        for number, target in self.targets:
            value = results[number]
            if target.shape != value.shape:
                raise RuntimeError(f"{self.function} gave {tuple(value.shape)}, captured {tuple(target.shape)}")
            target.copy_(value)


def _uses(call: Any) -> Iterator[tuple[bool, torch.Tensor]]:
    """The tensors of a recorded call, each with whether it is only read."""
    launch = getattr(call, "__self__", None)
    if isinstance(launch, interpreter.Launch):
        into = stored(launch.function)
        yield from ((n not in into, v) for n, v in launch.arguments.items() if isinstance(v, torch.Tensor))
    elif isinstance(call, _Again):
        arguments, named = call.arguments
        for place, argument in enumerate(call.function._schema.arguments):
            value = arguments[place] if place < len(arguments) else named.get(argument.name)
            writes = argument.alias_info is not None and argument.alias_info.is_write
            yield from ((not writes, leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _poison(dtype: torch.dtype) -> torch.Tensor:
    return torch.full((16,), 0xFF, dtype=torch.uint8).view(dtype)[0]


_aten = torch.ops.aten
# Those that give nothing and change nothing, and are called for what they do.
_EFFECTS = {_aten._assert_async.default, _aten._assert_async.msg}


def synchronize(_: object = None) -> None:
    """Nothing to wait for: every call has run when it returns. CaptureRefused during a capture, as by CUDA."""
    if capturing():
        raise CaptureRefused(f"{REFUSAL}: synchronize waits for the device")


def forget() -> None:
    """No runner is captured any more: the next graphs are those of another one, and the place of padding is unknown."""
    Graph.runner_is_captured, Graph.before_replay = False, None
    pad_into(())
    leave_on_host(())
    memory_seen()


def memory_reserved() -> int:
    """Nothing: tensors are the host's, and what holds them is seen without counting."""
    return 0


@contextmanager
def importing() -> Iterator[None]:
    """While entered, sglang is imported, in the process that sessions are forked from."""
    yield
    remember_cores()


@functools.cache
def accept_literal_cuda() -> None:
    """From here on, what code asks for on "cuda" by that name is made here, where the device has another name."""
    torch.cuda.Stream = torch.cpu.Stream
    for owner, name, function in list(replacements()):
        setattr(owner, name, function)


def _operators_for_cuda_run_here() -> None:
    """sglang registers its operators for CUDA alone: from here on for the CPU as well."""
    library: Any = torch.library.Library
    registers = library.impl

    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        registers(self, op_name, fn, dispatch_key, **options)
        if self.ns == "sglang" and dispatch_key == "CUDA":
            registers(self, op_name, fn, "CPU", **options)
            _operators[f"{self.ns}::{op_name}"] = fn

    library.impl = impl


@functools.cache
def install() -> None:
    """Put the emulation where sglang looks for CUDA graphs: torch.cuda and torch.cpu; once in a process. Needs
    TRITON_INTERPRET=1."""
    for module in (torch.cuda, torch.cpu):
        module.CUDAGraph = Graph
        module.graph = graph
        module.graph_pool_handle = Arena
        # Each its own: Dynamo has a table of these functions and wants them to differ.
        module.synchronize = lambda device=None: synchronize(device)
        module.empty_cache = lambda: None
        module.is_current_stream_capturing = lambda: capturing() is not None
    interpreter.install()
    _operators_for_cuda_run_here()
    native_imports.define_torchvision_schemas()
