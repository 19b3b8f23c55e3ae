"""A stand-in for CUTLASS's Python (nvidia-cutlass-dsl, 95 MB packed): it satisfies what sglang's modules name of it
while they are imported, on hosts that cannot have it. Compiling a kernel with it raises an error.

It is copied into a bundle as the package cutlass itself, beside releases that do not start without. flashinfer, which
has kernels of its own where there is no CUTLASS, finds nothing below it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any


class _Named(type):
    """Anything that modules name, decorate with, subclass or put into annotations and constants."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _named(name)

    def __call__(cls, *args: Any, **named: Any) -> Any:
        if cls.__name__ in ("compile", "from_dlpack"):
            raise NotImplementedError("this host has a stand-in for CUTLASS, which compiles no kernels")
        is_decorated = len(args) == 1 and not named and isinstance(args[0], types.FunctionType | type)
        return args[0] if is_decorated else cls

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __int__(cls) -> int:
        return 1

    __index__ = __int__

    def __or__(cls, _: Any) -> Any:
        return cls

    __ror__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __or__


def _named(name: str) -> Any:
    return _Named(name, (), {})


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _named(name)


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds cutlass.anything, which has the same attributes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        covered = fullname.startswith("cutlass.") and not _for_flashinfer()
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if covered else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        vars(module)["__getattr__"] = __getattr__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to execute."""


def _for_flashinfer(*, looking: bool = True) -> bool:
    """True if a module of flashinfer's imports this one, or looks whether there are submodules of it. looking: the
    answer for one that only looks, by importlib.util.find_spec("cutlass.cute"), which imports this package."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == "importlib.util" and not looking:
            return False
        if name.startswith("flashinfer."):
            return True
        frame = frame.f_back
    return False


if __name__ == "cutlass":
    if _for_flashinfer(looking=False):
        raise ImportError("this host has a stand-in for CUTLASS, which compiles no kernels")
    os.environ.setdefault("FLASHINFER_USE_CUDA_NORM", "1")
    sys.meta_path.append(_Submodules())
    # Before others import what is below this package, as flashinfer would find that, too.
    with contextlib.suppress(ImportError):
        importlib.import_module("flashinfer")
