"""Triton's interpreter, made fast enough to live in: the same kernels and the same results with less overhead.

Triton patches its language module before each launch and undoes it after, copies every argument's storage, and
binds arguments anew. Here the language is patched once, CPU tensors are passed as they are, and what depends on
the kernel alone is kept. `launches_go_to` diverts launches to a recorder.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import islice
from types import CodeType
from typing import Any

import numpy as np
import triton.language as tl
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime import interpreter as triton_interpreter
from triton.runtime.errors import InterpreterError

from runners.engines import launch_memory
from runners.engines.triton import absent, batched, language, pointers, recorded, recording, reductions, tuned, values

_receiver: Callable[[Launch], None] | None = None
# Kernels whose programs cannot all be run at once, as was seen.
_one_by_one: set[Callable[..., None]] = set()


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: everything but what its memory will hold. memory: what its arguments stand for, if that is not
    seen from them; described: what recordings of it are kept by, if that is known already."""

    function: Callable[..., None]
    arguments: dict[str, Any]
    constexprs: frozenset[str]
    grid: tuple[int, int, int]
    memory: tuple[launch_memory.Span, ...] | None = None
    described: recorded.Described | None = None

    def with_arguments(self, arguments: dict[str, Any]) -> Launch:
        """The same memory under other tensors."""
        return replace(
            self,
            arguments=arguments,
            memory=self.memory or launch_memory.spans(self.arguments),
            described=recorded.described(self.function, arguments, self.constexprs, values.ADDRESSES),
        )

    @property
    def programs(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    def run(self) -> None:
        """Run every program instance. InterpreterError carries whatever the kernel raised."""
        function = self.function
        memory = self.memory or launch_memory.spans(self.arguments)
        launch_memory.begin(function.__name__, memory, self.arguments)
        launch_memory.check(function.__name__, self.arguments, self.grid[0])
        try:
            with np.errstate(all="ignore"):
                if function in _one_by_one or not self._run_recorded(memory):
                    self._run_as_written()
        except Exception as error:
            raise InterpreterError(f"{function.__name__}: {error!r}") from error
        finally:
            launch_memory.end()

    def _run_recorded(self, memory: tuple[launch_memory.Span, ...]) -> bool:
        described = self.described or recorded.described(self.function, self.arguments, self.constexprs, values.NUMBERS)
        return recorded.run(described, self.function, self.arguments, self.constexprs, self.grid, memory)

    def _run_as_written(self) -> None:
        """Run by Triton's language: all programs at once if possible, else one after the other."""
        builder, function = triton_interpreter.interpreter_builder, self.function
        arguments = {
            name: value if name in self.constexprs else pointers.converted(name, value)
            for name, value in self.arguments.items()
        }
        builder.set_grid_dim(*self.grid)
        if function not in _one_by_one and self.programs > 1:
            if batched.run(function, arguments, self.grid):
                return
            _one_by_one.add(function)
        for x in range(self.grid[0]):
            for y in range(self.grid[1]):
                for z in range(self.grid[2]):
                    builder.grid_idx = (x, y, z)
                    function(**arguments)


def one_by_one() -> frozenset[str]:
    """The kernels, by name, that turned out to need one program after the other."""
    return frozenset(function.__name__ for function in _one_by_one)


@contextmanager
def launches_go_to(receiver: Callable[[Launch], None]) -> Iterator[None]:
    """Hand every launch to `receiver` instead of running it."""
    global _receiver
    before, _receiver = _receiver, receiver
    try:
        yield
    finally:
        _receiver = before


def receiver() -> Callable[[Launch], None]:
    """Whoever launches are handed to, or what runs them."""
    return _receiver or Launch.run


# What a launch may say besides a kernel's own arguments: to the compiler for NVIDIA's GPUs, and to the launcher.
_OPTIONS = {option.name for option in fields(CUDAOptions)} | {"grid", "warmup", "stream"}
_signatures: dict[Any, tuple[inspect.Signature, frozenset[str]]] = {}


def _bound(function: Any, constexprs: list[str], args: tuple, kwargs: dict) -> tuple[dict[str, Any], frozenset[str]]:
    known = _signatures.get(function)
    if known is None:
        known = _signatures[function] = (inspect.signature(function), frozenset(constexprs))
    signature, constant = known
    parameters = signature.parameters
    for name in kwargs.keys() - parameters.keys() - _OPTIONS:
        raise KeyError(f"Keyword argument {name} was specified but unrecognised")  # as Triton for NVIDIA says
    arguments = dict(zip(parameters, args, strict=False))
    plain = len(args) <= len(parameters) and arguments.keys().isdisjoint(kwargs)
    for name, parameter in islice(parameters.items(), len(args), None):
        arguments[name] = value = kwargs.get(name, parameter.default)
        plain = plain and value is not inspect.Parameter.empty
    if not plain:
        # Which is an error, in the words that Python has for it.
        signature.bind(*args, **{name: value for name, value in kwargs.items() if name in parameters})
    return arguments, constant


def _call(executor: Any, *args: Any, **kwargs: Any) -> None:
    function = executor.fn
    _patch_language(function)
    arguments, constexprs = _bound(function, executor.constexprs, args, kwargs)
    absent.refuse(function, arguments, constexprs)
    grid = executor.grid(arguments) if callable(executor.grid) else executor.grid
    x, y, z = (*grid, 1, 1)[:3]
    launch = Launch(function, arguments, constexprs, (int(x), int(y), int(z)))
    if _receiver is None:
        launch.run()
    else:
        _receiver(launch)


_patched: set[int] = set()
_original_patch = triton_interpreter._patch_lang


class _Kept:
    """The scope of a patch that is never undone: in this process every kernel is interpreted."""

    @staticmethod
    def restore() -> None:
        return


_constexprs: dict[Any, list[str]] = {}
_executor_init = triton_interpreter.GridExecutor.__init__


def _init(executor: Any, fn: Any, arg_names: Any, grid: Any, pre_run_hooks: Any = ()) -> None:
    """Triton's own, but for constants among arguments, which are worked out once for each kernel."""
    constexprs = _constexprs.get(fn)
    if constexprs is None:
        _executor_init(executor, fn, arg_names, grid, pre_run_hooks)
        _constexprs[fn] = executor.constexprs
        return
    executor.fn, executor.arg_names, executor.grid, executor.pre_run_hooks = fn, arg_names, grid, pre_run_hooks
    executor.constexprs = constexprs


def _patch_language(function: Any) -> type[_Kept]:
    key = id(function.__globals__)
    if key not in _patched:
        _original_patch(function)
        if not _patched:
            language.shorten_operators()
        _patch_aliases(function.__globals__)
        _patched.add(key)
    return _Kept


def _patch_aliases(scope: dict[str, Any]) -> None:
    """Have functions of the language that a kernel's module has under names of its own (`exp = tl.exp`) looked up at
    the call: patched is what is in the language alone."""
    for name, value in list(scope.items()):
        if (
            callable(value) and tl.core.is_builtin(value) and hasattr(tl, str(value.__name__))
        ):  # or a thing with any name
            scope[name] = _by_name(value.__name__)


def _by_name(name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: getattr(tl, name)(*args, **kwargs)


_source_lines = inspect.getsourcelines
_lines: dict[tuple[str, CodeType], tuple[list[str], int]] = {}


def _lines_of(thing: Any) -> tuple[list[str], int]:
    """inspect's own. Each function's are looked for once: several ask for those of a kernel, and each would go over its
    tokens."""
    if not inspect.isfunction(thing) or hasattr(thing, "__wrapped__"):
        return _source_lines(thing)
    key = (thing.__code__.co_filename, thing.__code__)
    if key not in _lines:
        _lines[key] = _source_lines(thing)
    lines, first = _lines[key]
    return [*lines], first


class _Loops(triton_interpreter.ASTTransformer):
    """Lets a kernel's loops ask for agreed_range; else as Triton's interpreter rewrites kernels."""

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Name) and node.iter.func.id == "range":
            node.iter.func.id = "agreed_range"
        return node


def install() -> None:
    """Replace Triton's launcher in this process."""
    language.install()
    pointers.install()
    reductions.install()
    launch_memory.install()
    tuned.install()
    lines: Callable[..., Any] = _lines_of
    inspect.getsourcelines = lines
    triton_interpreter.FunctionRewriter.ast_transformer = _Loops()
    triton_interpreter.agreed_range = recording.agreed_range
    triton_interpreter.GridExecutor.__init__ = _init
    triton_interpreter.GridExecutor.__call__ = _call
    triton_interpreter._patch_lang = _patch_language
    triton_interpreter.interpreter_builder.options = triton_interpreter.InterpreterOptions(sanitize_overflow=False)
