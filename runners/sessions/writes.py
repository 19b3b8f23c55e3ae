"""Who writes a runner's input buffers: for each call, which rows of which buffer were written before the graph is
launched, and by which line of sglang. Asked for by EAGLEEYE_WRITES, as it costs time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import interpreter as triton_interpreter

from runners.recording.observer import Watch

ASKED = os.environ.get("EAGLEEYE_WRITES", "0") not in ("", "0")
FACT = "writes of call "  # and its number: what a trace's facts call them
_PACKAGE = "/sglang/"
_UTILITIES = "utils"


class _Writes(TorchDispatchMode):
    """Sees every ATen call under it, and of Triton kernels that are interpreted the rows that they change; compiled
    ones are launched past it."""

    def __init__(self, buffers: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, int, str]] = []
        self.listening = True
        self._buffers: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for name, tensor in buffers.items():
            self._buffers.setdefault(tensor.untyped_storage()._cdata, []).append((name, tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.listening and func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for tensor in value if isinstance(value, list | tuple) else (value,):
                        self._note(tensor)
        return result

    def _note(self, written: object) -> None:
        if not isinstance(written, torch.Tensor) or not written.numel():
            return
        for name, buffer in self._buffers.get(written.untyped_storage()._cdata, ()):
            first, last = _rows(written, buffer)
            if last >= 0 and first < buffer.shape[0]:
                self.seen.append((name, max(first, 0), min(last, buffer.shape[0] - 1), _place()))

    def launched(self, launch: Callable[..., None], executor: Any, *args: Any, **kwargs: Any) -> None:
        """Launch an interpreted kernel, and note the rows of which it changed the contents."""
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        storages = {tensor.untyped_storage()._cdata for tensor in tensors} if self.listening else set()
        before = [(name, b, b.clone()) for storage in storages for name, b in self._buffers.get(storage, ())]
        launch(executor, *args, **kwargs)
        for name, buffer, old in before:
            changed = (buffer != old).flatten(1).any(1) if buffer.dim() > 1 else buffer != old
            if len(rows := changed.nonzero().flatten().tolist()):
                place = f"{_place()}, by the kernel {executor.fn.__name__}"
                self.seen.append((name, rows[0], rows[-1], place))


def _rows(written: torch.Tensor, buffer: torch.Tensor) -> tuple[int, int]:
    """The first and the last row of the buffer that the written view may touch."""
    start = written.storage_offset() - buffer.storage_offset()
    reach = sum((size - 1) * stride for size, stride in zip(written.shape, written.stride(), strict=True))
    row = max(buffer.stride(0), 1)
    return start // row, (start + reach) // row


def _place() -> str:
    """The innermost line of sglang that is being executed; empty if none is. Of one in a file of utilities, which many
    buffers are written by, also the line outside of such files that has asked for it."""
    inner = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if _PACKAGE in file:
            short = "sglang/" + file.rpartition(_PACKAGE)[2]
            place = f"{short}:{frame.f_lineno} in {frame.f_code.co_name}"
            if _UTILITIES not in short:
                return f"{place}, by {inner}" if inner else place
            inner = inner or place
        frame = frame.f_back
    return inner


@contextmanager
def _launches(writes: _Writes) -> Iterator[None]:
    """While entered, launches in Triton's interpreter are noted. Nothing where kernels are compiled."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    executor: Any = triton_interpreter.GridExecutor
    launch = executor.__call__
    executor.__call__ = lambda self, *args, **kwargs: writes.launched(launch, self, *args, **kwargs)
    try:
        yield
    finally:
        executor.__call__ = launch


@contextmanager
def noted(buffers: Mapping[str, torch.Tensor], number: int, watch: Watch) -> Iterator[Any]:
    """While entered, writes into these buffers are noted, until the yielded object is asked to stop listening.
    Recorded as a fact of this call: [buffer, first row, last row, line], in their order."""
    writes = _Writes(buffers)
    try:
        with writes, _launches(writes):
            yield writes
    finally:
        watch.fact(f"{FACT}{number}", json.dumps(writes.seen, separators=(",", ":")))
