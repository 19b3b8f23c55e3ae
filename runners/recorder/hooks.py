"""Wraps the methods of sglang that are recorded as their modules are imported, or at once where they are."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from . import ring
from .recorder import Recorder
from .rows import ASKED, HOOKS, SCHEDULER, SINCE, Hook, adapted, release

FOLDER, CALLS = "EAGLEEYE_RECORDER", "EAGLEEYE_RECORDER_CALLS"
ON_PATH = Path(__file__).parent / "on_path"


def called(recorder: Recorder, method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The method of a graph runner, recorded."""

    @functools.wraps(method)
    def recorded(self: Any, *arguments: Any, **named: Any) -> Any:
        number = recorder.enter(self, name, arguments[0] if arguments else named.get("forward_batch"), True)
        try:
            result = method(self, *arguments, **named)
        except BaseException as error:
            recorder.failed(number, error)
            raise
        recorder.leave(number)
        return result

    return recorded


def asked(recorder: Recorder, method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The method that says whether there is a graph for a batch."""

    @functools.wraps(method)
    def recorded(self: Any, forward_batch: Any, *arguments: Any, **named: Any) -> Any:
        answer = method(self, forward_batch, *arguments, **named)
        if not answer:
            recorder.refused(self, name, forward_batch)
        return answer

    return recorded


def scheduled(recorder: Recorder, method: Callable[..., Any], _: str) -> Callable[..., Any]:
    """run_batch of the scheduler, whose batch knows request slots."""

    @functools.wraps(method)
    def recorded(self: Any, batch: Any, *arguments: Any, **named: Any) -> Any:
        recorder.running(batch)
        try:
            return method(self, batch, *arguments, **named)
        finally:
            recorder.running(None)

    return recorded


def looping(recorder: Recorder, method: Callable[..., Any], _: str) -> Callable[..., Any]:
    """An event loop of the scheduler, out of which a device's error comes, wherever it arose."""

    @functools.wraps(method)
    def recorded(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return method(self, *arguments, **named)
        except Exception as error:
            recorder.failed(0, error)
            raise

    return recorded


def install(recorder: Recorder, module: ModuleType) -> None:
    """Wrap what a module of sglang has, once."""
    for hook in HOOKS:
        kind = vars(module).get(hook.kind) if hook.module == module.__name__ else None
        if kind is not None:
            _wrap(kind, [name for name in hook.methods if _takes_a_batch(vars(kind).get(name))], recorder, called, hook)
            _wrap(kind, [name for name in ASKED if name in vars(kind)], recorder, asked, hook)
    kind = vars(module).get(SCHEDULER.kind) if module.__name__ == SCHEDULER.module else None
    if kind is not None:
        _wrap(kind, SCHEDULER.methods, recorder, scheduled, SCHEDULER)
        for name in dir(kind):
            if name.startswith("event_loop_"):
                _wrap(kind, [name], recorder, looping, SCHEDULER)


def _takes_a_batch(method: Any) -> bool:
    return callable(method) and list(inspect.signature(method).parameters)[1:2] == ["forward_batch"]


def _wrap(kind: Any, names: Sequence[str], recorder: Recorder, wrapper: Callable[..., Any], hook: Hook) -> None:
    """Put a wrapper in the place of the first of these methods."""
    method = getattr(kind, names[0]) if names else None
    if method is not None and not hasattr(method, "__eagleeye__"):
        recorded = wrapper(recorder, method, hook.runner)
        recorded.__eagleeye__ = True
        setattr(kind, names[0], recorded)


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps the classes of a module once it was executed."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.names = {hook.module for hook in (*HOOKS, SCHEDULER)}

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self.names:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        if spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.recorder)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, recorder: Recorder) -> None:
        self.loader, self.recorder = loader, recorder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self.loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        install(self.recorder, module)

    def __getattr__(self, name: str) -> Any:  # get_source and its like, which tracebacks and compilers ask for
        return getattr(self.loader, name)


def start(folder: str, calls: int = 0) -> Recorder | None:
    """Record the calls of this process, and of those that it starts, in this folder. None, with a line on standard
    error, where the release has no adapter or the folder cannot be used. A process that records already goes on."""
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            return finder.recorder
    if release() and not adapted(release()):
        print(f"eagleeye: nothing is recorded of sglang {release()}: the first release is {SINCE}", file=sys.stderr)
        return None
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"eagleeye: nothing is recorded: {folder}: {error.strerror}", file=sys.stderr)
        return None
    folder = str(Path(folder).resolve())
    before = os.environ.get("PYTHONPATH", "")
    if str(ON_PATH) not in before.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ON_PATH), before)))
    os.environ[FOLDER] = folder
    recorder = Recorder(Path(folder), calls or int(os.environ.get(CALLS, ring.CALLS)))
    sys.meta_path.insert(0, _Finder(recorder))
    os.register_at_fork(after_in_child=recorder.forked)
    for name in {hook.module for hook in (*HOOKS, SCHEDULER)} & sys.modules.keys():
        install(recorder, sys.modules[name])
    return recorder
