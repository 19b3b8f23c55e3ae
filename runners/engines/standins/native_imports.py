"""Import-time stand-ins for native modules that cannot load without a GPU.

They only satisfy imports: calling one raises. Reference implementations are registered where a path needs them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

# Native code that is imported where a GPU captures, and never called over Triton.
FLASH_MLA = ("sgl_kernel.flash_mla", "flash_mla", "flash_mla.flash_mla_interface")
# The same of a GPU host that has a bundle's packages alone. 0.5.20 and 0.5.21 import them with DeepSeek's models.
NOT_BUNDLED = (*FLASH_MLA, "sgl_kernel.flashmla_ops", "deep_gemm")


def _refusing(module: str, name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{module}.{name} is native GPU code and has no stand-in")

    return refuse


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if fullname in self.names else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []

        def attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return _refusing(spec.name, name)

        vars(module)["__getattr__"] = attribute
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def stand_in(*names: str) -> None:
    """Let these modules be imported. Only exactly these: a guarded import of any other part still fails over."""
    sys.meta_path.insert(0, _Finder(names))


def hide(*packages: str) -> None:
    """Let these packages be as absent as on a machine without a GPU: their native parts cannot load where no device is
    visible, and what is driven there must not depend on what is installed. What is stood in for can be imported."""

    class PathsWithout(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(
            cls, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
        ) -> importlib.machinery.ModuleSpec | None:
            return None if fullname.partition(".")[0] in packages else super().find_spec(fullname, path, target)

    sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = PathsWithout


def stand_in_if_absent(*names: str) -> None:
    """The same, but only where nothing else provides them."""
    sys.meta_path.append(_Finder(names))


def stands_in(name: str) -> bool:
    """True if this module, whose package can be imported, is such a stand-in."""
    spec = importlib.util.find_spec(name)
    return spec is not None and isinstance(spec.loader, _Finder)


_torchvision: list[torch.library.Library] = []


def define_torchvision_schemas() -> None:
    """Declare the two operators whose absence keeps a torchvision without its binary from importing."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # "operator torchvision::nms does not exist"
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _torchvision.append(library)
