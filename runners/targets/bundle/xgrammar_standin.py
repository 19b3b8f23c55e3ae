"""A stand-in for xgrammar: it satisfies sglang's imports. Cases with a grammar bring a matcher of their own
(runners/releases/options/grammar.py).

It is copied into a bundle as the package xgrammar itself; on the emulated engine, stand_in() gives it that name.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel


def __getattr__(name: str) -> Any:
    """Any class or function that is asked for. sglang declares fields of its request models with the classes."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (BaseModel,), {}) if name[0].isupper() else _refuse


def _refuse(*_: object, **__: object) -> None:
    raise NotImplementedError("this host has a stand-in for xgrammar, which only satisfies imports")


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds xgrammar.anything, which has the same attributes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        covered = fullname.startswith("xgrammar.")
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if covered else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        vars(module)["__getattr__"] = __getattr__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to execute."""


def stand_in() -> None:
    """Be xgrammar in this process, unless it has one."""
    if "xgrammar" in sys.modules or importlib.util.find_spec("xgrammar") is not None:
        return
    module = types.ModuleType("xgrammar")
    module.__spec__ = importlib.machinery.ModuleSpec("xgrammar", None, is_package=True)
    module.__path__ = []
    vars(module)["__getattr__"] = __getattr__
    sys.modules["xgrammar"] = module
    sys.meta_path.append(_Submodules())


if __name__ == "xgrammar":
    sys.meta_path.append(_Submodules())
