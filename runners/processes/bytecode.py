"""Bytecode of the cache's releases and overlays, kept beside them: more than half of the time that a worker imports
sglang for is compilation, where Python may write no bytecode, as in many containers, or an overlay is new.

A file that overlays link is compiled once for all of them.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

FOLDER = "bytecode"


class _Kept(SourceFileLoader):
    """Loads sources below `root`, with their bytecode in `root / FOLDER`."""

    root = Path()

    def get_code(self, fullname: str) -> CodeType | None:
        forbidden, sys.dont_write_bytecode = sys.dont_write_bytecode, False
        try:
            return super().get_code(fullname)
        finally:
            sys.dont_write_bytecode = forbidden

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Tell states of a file apart by its inode, its device and the nanosecond of its last change."""
        stat = Path(path).stat()
        state = f"{stat.st_mtime_ns} {stat.st_ino} {stat.st_dev}"
        return {"mtime": zlib.crc32(state.encode()), "size": stat.st_size}

    def get_data(self, path: str) -> bytes:
        return super().get_data(self._place(path))

    def set_data(self, path: str, data: Any, **options: Any) -> None:
        super().set_data(self._place(path), data, **options)

    def _place(self, path: str) -> str:
        """The path; of bytecode, the place of that of the file that the source links to."""
        if not path.endswith(".pyc"):
            return path
        real = Path(os.path.realpath(self.path))
        below = real.relative_to(self.root).parent if real.is_relative_to(self.root) else real.parent.relative_to("/")
        return str(self.root / FOLDER / below / Path(path).name)


def keep(root: Path) -> None:
    """Keep the bytecode of modules that are imported from below this folder."""
    root = root.resolve()
    loader = type("Kept", (_Kept,), {"root": root})
    finder = FileFinder.path_hook((ExtensionFileLoader, EXTENSION_SUFFIXES), (loader, SOURCE_SUFFIXES))

    def hook(path: str) -> object:
        if not Path(path).absolute().is_relative_to(root):
            raise ImportError("another finder's", path=path)
        return finder(path)

    hooks: list[Callable[[str], Any]] = sys.path_hooks
    hooks.insert(0, hook)
    sys.path_importer_cache.clear()
