"""The order of streams on an engine that has only one: the accesses to a device's memory that an event, a wait or the
host puts behind earlier ones, by vector clocks. Those that nothing orders are a race on a GPU.

A device's memory is what kernels and replays were given, and what is computed from it. Memory of the host to which a
stream copies is read by the host, which must have waited for the copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
import torch.cpu
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from runners.engines.triton import interpreter
from runners.engines.triton.stored import stored
from runners.engines.without_device import followed

HOST = "the host"
EARLY, TWICE, LATE = "read before it is written", "written twice", "written before it is read"
_SGLANG, _HARNESS = "/sglang/", ("/runners/sessions/", "/runners/releases/")
# Stand-ins for kernels: the host waits for no value that one of them asks for in the kernel's place.
_STAND_INS = ("fa3_kernels", "flashinfer_kernels", "trtllm_kernels", "sampling", "tree", "verify")
_KERNELS = tuple(f"/standins/{name}.py" for name in _STAND_INS)
# These look at a tensor's form alone.
_FORM = ("empty", "zeros_like", "ones_like", "full_like", "new_", "rand")
_READ_BY_HOST = {
    torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.numpy, torch.Tensor.__bool__,
    torch.Tensor.__int__, torch.Tensor.__index__, torch.Tensor.__float__, torch.Tensor.__array__,
}  # fmt: skip
# The number of the last operation known to have ended, for each stream.
Clock = dict[str, int]


@dataclass(frozen=True, slots=True)
class Access:
    """An operation on memory: its stream, its number there, and the place in sglang that asked for it. callers: of a
    replay, the places in sglang that had it made, the innermost first."""

    stream: str
    number: int
    place: str
    callers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses that nothing orders, of which at least one writes. first came first in this engine's order. callers:
    the places in sglang that had the second one made, the innermost first."""

    kind: str
    first: Access
    second: Access
    callers: tuple[str, ...] = ()


@dataclass(slots=True)
class _Memory:
    """A storage, and who was there. Mutable. device: False for memory of the host into which a stream copies."""

    storage: StorageWeakRef
    device: bool
    written: Access | None = None
    read: dict[str, Access] = field(default_factory=dict)


@dataclass(slots=True)
class Order:
    """Mutable: clocks of streams and of the host, and what was accessed."""

    by_row: frozenset[int] = frozenset()  # storages of which streams write rows that others do not read
    accesses: int = 0
    races: dict[tuple[str, str, str], Race] = field(default_factory=dict)
    _clocks: dict[str, Clock] = field(default_factory=lambda: {HOST: {}})
    _names: dict[int, tuple[str, Any]] = field(default_factory=dict)
    _events: dict[int, tuple[Clock, Any]] = field(default_factory=dict)
    _memory: dict[int, _Memory] = field(default_factory=dict)
    _outputs: dict[int, tuple[int, _Memory]] = field(default_factory=dict)  # of replays, with their addresses
    _last: Access | None = None  # replay

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While entered, streams, events, calls and launches are followed."""
        runs = interpreter.receiver()

        def launch(kernel: interpreter.Launch) -> None:
            self._launched(kernel)
            runs(kernel)

        with ExitStack() as stack:
            for owner, name, function in self._replacements():
                stack.enter_context(_replaced(owner, name, function))
            stack.enter_context(followed(self))
            stack.enter_context(_Calls(self))
            stack.enter_context(_HostReads(self))
            stack.enter_context(interpreter.launches_go_to(launch))
            yield

    def _replacements(self) -> Iterator[tuple[type, str, Callable[..., Any]]]:
        stream, event = torch.cpu.Stream, torch.cpu.Event
        yield stream, "wait_stream", lambda this, before: self._wait(self._name(this), self._clock(self._name(before)))
        yield stream, "wait_event", lambda this, before: self._wait(self._name(this), self._recorded(before))
        yield stream, "synchronize", lambda this: self._wait(HOST, self._clock(self._name(this)))
        yield event, "record", lambda this, on=None: self._record(this, on)
        yield event, "wait", lambda this, on=None: self._wait(self._name(on), self._recorded(this))
        yield event, "synchronize", lambda this: self._wait(HOST, self._recorded(this))
        yield event, "query", lambda this: self._asked(this)

    def _asked(self, event: Any) -> bool:
        """Each event has happened when its query comes; the answer orders the host behind it, as a wait does."""
        self._wait(HOST, self._recorded(event))
        return True

    def _name(self, stream: Any = None) -> str:
        stream = torch.cpu.current_stream() if stream is None else stream
        if id(stream) not in self._names:  # which is kept, so that no other stream gets that identity
            self._names[id(stream)] = (f"stream {len(self._names)}", stream)
        return self._names[id(stream)][0]

    def _clock(self, name: str) -> Clock:
        return self._clocks.setdefault(name, {})

    def _wait(self, name: str, clock: Clock) -> None:
        waiting = self._clock(name)
        for each, number in clock.items():
            waiting[each] = max(waiting.get(each, 0), number)

    def _record(self, event: Any, stream: Any) -> None:
        name = self._name(stream)
        self._wait(name, self._clocks[HOST])
        self._events[id(event)] = (dict(self._clock(name)), event)

    def _recorded(self, event: Any) -> Clock:
        return self._events.get(id(event), ({}, None))[0]

    def _operation(self, place: str) -> Access:
        """The next one of the current stream, which begins when the host has come to it."""
        name = self._name()
        self._wait(name, self._clocks[HOST])
        clock = self._clock(name)
        clock[name] = clock.get(name, 0) + 1
        self.accesses += 1
        return Access(name, clock[name], place)

    def _behind(self, access: Access, before: Access | None) -> bool:
        return before is None or self._clocks[access.stream].get(before.stream, 0) >= before.number

    def _read(self, memory: _Memory, access: Access) -> None:
        if memory.written is not None and not self._behind(access, memory.written):
            self._tell(EARLY, memory.written, access)
        memory.read[access.stream] = access

    def _write(self, memory: _Memory, access: Access) -> None:
        by_row = memory.storage.cdata in self.by_row
        if memory.written is not None and not by_row and not self._behind(access, memory.written):
            self._tell(TWICE, memory.written, access)
        for each in memory.read.values() if not by_row else ():
            if not self._behind(access, each):
                self._tell(LATE, each, access)
        memory.written, memory.read = access, {}

    def _tell(self, kind: str, first: Access, second: Access) -> None:
        key = (kind, first.place, second.place)
        if key not in self.races:
            callers = second.callers or tuple(_places(sys._getframe(1)))[1:]
            self.races[key] = Race(kind, first, second, callers)

    def known(self, tensor: torch.Tensor) -> _Memory | None:
        storage = tensor.untyped_storage()._cdata
        memory = self._memory.get(storage)
        return memory if memory is not None and not memory.storage.expired() else None

    def device_holds(self, tensor: torch.Tensor) -> None:
        """This is a device's memory."""
        self._of_device(tensor)

    def _of_device(self, tensor: torch.Tensor) -> _Memory:
        return self.known(tensor) or self._new(tensor, device=True)

    def _new(self, tensor: torch.Tensor, *, device: bool) -> _Memory:
        storage = tensor.untyped_storage()
        memory = self._memory[storage._cdata] = _Memory(storage=StorageWeakRef(storage), device=device)
        return memory

    def called(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        """An ATen call outside of replays has run."""
        place = _place()
        if place is None:
            return
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        written = [each for each in _written(func, args, kwargs) if isinstance(each, torch.Tensor)]
        memories = [self.known(tensor) for tensor in tensors]
        if not any(memory is not None and memory.device for memory in memories):
            for memory in memories:
                if memory is not None:
                    self._host_reads(memory, place)
            return
        access = self._operation(place)
        if not func._schema.name.removeprefix("aten::").startswith(_FORM):
            for tensor, memory in zip(tensors, memories, strict=True):
                if memory is not None and not any(tensor is each for each in written):
                    self._read(memory, access)
        for tensor in written:
            self._write(self._of_device(tensor), access)
        storages = {tensor.untyped_storage()._cdata for tensor in tensors}
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in storages:
                self._write(self._of_device(leaf), access)

    def read_by_host(self, tensor: torch.Tensor) -> None:
        """The host asks for values: of a device's memory the current stream copies them, and the host waits for it."""
        memory, place = self.known(tensor), _place()
        if memory is None or place is None:
            return
        if not memory.device:
            self._host_reads(memory, place)
            return
        self._read(memory, self._operation(place))
        if not _for_kernel():
            self._wait(HOST, self._clock(self._name()))

    def _host_reads(self, memory: _Memory, place: str) -> None:
        access = Access(HOST, 0, place)
        if memory.written is not None and not self._behind(access, memory.written):
            self._tell(EARLY, memory.written, access)

    def pinned(self, tensor: torch.Tensor) -> None:
        """A stream may copy into this memory of the host."""
        self._new(tensor, device=False)

    def copied(self, source: torch.Tensor, result: torch.Tensor, *, waits: bool, to_host: bool) -> None:
        """To the host, where it comes from a device; what stays on a device is read and written there."""
        memory, place = self.known(source), _place()
        if memory is None or not memory.device:
            return
        if not to_host and place is not None:
            access = self._operation(place)
            self._read(memory, access)
            self._write(self._of_device(result), access)
            return
        if waits:
            self.read_by_host(source)
        copy = self._new(result, device=False)
        copy.written = None if waits else Access(self._name(), self._clock(self._name()).get(self._name(), 0), "a copy")

    def _launched(self, kernel: interpreter.Launch) -> None:
        place = _place()
        if place is None:
            return
        access = self._operation(place)
        into = stored(kernel.function)
        for name, value in kernel.arguments.items():
            if isinstance(value, torch.Tensor) and value.numel():
                memory = self._of_device(value)
                self._write(memory, access) if name in into else self._read(memory, access)

    def replayed(self, graph: Any, name: str) -> None:
        """A graph is about to be replayed."""
        callers = tuple(_places(sys._getframe(1)))
        access = self._last = replace(self._operation(f"a replay of {name}"), callers=callers)
        for reads, tensor in graph.outside():
            memory = self._of_device(tensor)
            self._read(memory, access) if reads else self._write(memory, access)
        stretches = graph.memory()
        for start, memory in self._outputs.values():
            if any(first <= start < first + size for first, size in stretches):
                self._write(memory, access)

    def handed(self, returned: Any) -> None:
        """The outputs of the last replay."""
        for tensor in tree_leaves(vars(returned) if hasattr(returned, "__dict__") else returned):
            if isinstance(tensor, torch.Tensor) and tensor.numel() and self._last is not None:
                memory = self._of_device(tensor)
                memory.written = self._last
                self._outputs[tensor.untyped_storage()._cdata] = (tensor.data_ptr(), memory)


class _Calls(TorchDispatchMode):
    """Sees every ATen call outside of replays."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self._order = order

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self._order.called(func, args, kwargs or {}, result)
        return result


class _HostReads(TorchFunctionMode):
    """Sees what the host asks tensors for."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self._order = order

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READ_BY_HOST:
            self._order.read_by_host(args[0])
        return func(*args, **(kwargs or {}))


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[place] if place < len(args) else kwargs.get(argument.name)


def _place() -> str | None:
    """The innermost place in sglang; None if the harness itself asks."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if _SGLANG in path:
            return _named(frame)
        if any(part in path for part in _HARNESS):
            return None
        frame = frame.f_back
    return None


def _places(frame: FrameType | None) -> Iterator[str]:
    """The places in sglang from a frame on, the innermost first."""
    while frame is not None:
        if _SGLANG in frame.f_code.co_filename:
            yield _named(frame)
        frame = frame.f_back


def _named(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename.rpartition(_SGLANG)[2]} {frame.f_code.co_name}:{frame.f_lineno}"


def _for_kernel() -> bool:
    """True if a stand-in for a kernel asks."""
    frame = sys._getframe(2)
    while frame is not None and _SGLANG not in frame.f_code.co_filename:
        if frame.f_code.co_filename.endswith(_KERNELS):
            return True
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return False


@contextmanager
def _replaced(owner: type, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """While entered, a class's method is this function."""
    kept = vars(owner).get(name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        if kept is None:
            delattr(owner, name)
        else:
            setattr(owner, name, kept)
