"""Kernels that native code is compiled for when they are first asked for, some ten to forty seconds each: where nothing
was compiled yet, all that the first case needs is begun at once, side by side.

What builds a kernel holds a lock, so that others wait for it, and find it built.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

# The modules of a library's generator of sources, its name there, and what it is called with.
Build = tuple[str, str, tuple[Any, ...]]

# For how long a rehearsal may go on: what has no kernels yet may loop without end.
_REHEARSAL_S = 30.0
_SET_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def begin(builds: Sequence[Build]) -> None:
    """Begin to build these, each in a process that ends with this one."""
    for build in builds:
        _in_background(partial(_build, *build), ends_with_parent=True)


def _build(module: str, generator: str, arguments: tuple[Any, ...]) -> None:
    _locked(getattr(importlib.import_module(module), generator)(*arguments))


def _locked(spec: Any) -> None:
    """Build a kernel of flashinfer under its lock, which build takes by default up to 0.6 alone."""
    spec.build(False, need_lock=True)


def rehearse(run: Callable[[], None]) -> None:
    """Run this in a process of its own, in which kernels that are not built yet are begun and stood in for by what does
    nothing. Whatever comes of it there counts for nothing here; what it begins goes on."""
    child = os.fork()
    if not child:
        _quietly()
        with contextlib.suppress(BaseException), _beginning():
            run()
        os._exit(0)
    deadline = time.monotonic() + _REHEARSAL_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.05)


@contextlib.contextmanager
def _beginning() -> Iterator[None]:
    """While entered, asking flashinfer or TVM's FFI for a kernel begins to build it, and gives Nothing."""
    with contextlib.ExitStack() as patches:
        with contextlib.suppress(ImportError):
            cpp: Any = importlib.import_module("tvm_ffi.cpp")
            for load, build in (("load", cpp.build), ("load_inline", cpp.build_inline)):
                patches.enter_context(patch.object(cpp, load, _begun(build)))
        with contextlib.suppress(ImportError):
            core: Any = importlib.import_module("flashinfer.jit.core")
            patches.enter_context(patch.object(core.JitSpec, "build_and_load", _begun_unless_built))
        yield


def _begun(build: Callable[..., object]) -> Callable[..., Nothing]:
    def begin_to_build(*args: Any, **kwargs: Any) -> Nothing:
        _in_background(partial(build, *args, **kwargs))
        return Nothing()

    return begin_to_build


def _begun_unless_built(spec: Any) -> Any:
    """In the place of JitSpec.build_and_load."""
    if spec.is_aot:
        return spec.load(spec.aot_path)
    _in_background(partial(_locked, spec))
    return Nothing()


class Nothing:
    """A kernel's module whose functions do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def _in_background(work: Callable[[], object], *, ends_with_parent: bool = False) -> None:
    """In a process of its own, without waiting for it."""
    parent = os.getpid()
    if os.fork():
        return
    if ends_with_parent:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, lambda number, frame: os.killpg(0, signal.SIGKILL))
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
    try:
        work()
    except BaseException:  # the kernel's user will meet it, too
        traceback.print_exc()
    finally:
        os._exit(0)


def _quietly() -> None:
    """Print nothing any more: what is not meant must not be read out of a log."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(nothing, number)
