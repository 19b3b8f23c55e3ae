"""A changed sglang in a running process: functions, methods, properties and kernels run with the change, under
whatever decorators; on real sglang a dropped reset is found."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fuzz.mutation.directed import plan
from fuzz.mutation.scope import PREFIXES, lines_of
from fuzz.mutation.sites import mutants
from oracles.catalogue import judge_all
from repro.cases.case import Target
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from runners.recording.observer import Unsupported
from runners.sessions.mutation import swap
from runners.targets.environments import sglang_path

pytestmark = pytest.mark.emulated

SOURCE = """
import functools
import contextlib

def wrapping(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner

def plain(a, b):
    return a + b

@functools.lru_cache
def cached(a, b):
    return a + b

@wrapping
@wrapping
def wrapped(a, b):
    return a + b

class Box:
    content = 3

    @property
    def size(self):
        return self.content + 5

    @staticmethod
    def static(a, b):
        return a + b

    def closing(self, a, b):
        def inner():
            return a + b
        return inner()

class Child(Box):
    def closing(self, a, b):
        return super().closing(a, b) + b

keeping = plain
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "code.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("victim.code")
    for name in ("victim.code", "victim"):
        del sys.modules[name]


def change(function: str, new: str) -> dict[str, object]:
    every = mutants("victim/code.py", SOURCE)
    return next(mutant for mutant in every if (mutant.function, mutant.new) == (function, new)).change()


@pytest.mark.parametrize("name", ["plain", "cached", "wrapped"])
def test_a_function_is_changed_under_its_decorators(module: ModuleType, name: str) -> None:
    swap(change(name, "return a - b"))
    assert getattr(module, name)(5, 2) == 3
    assert module.keeping(5, 2) == (3 if name == "plain" else 7)


def test_methods_and_properties_are_changed_for_those_who_are_there(module: ModuleType) -> None:
    box, child = module.Box(), module.Child()
    swap(change("Box.size", "return self.content - 5"))
    swap(change("Box.static", "return a - b"))
    swap(change("Box.closing", "return a - b"))
    assert (box.size, box.static(5, 2), box.closing(5, 2)) == (-2, 3, 3)
    assert child.closing(5, 2) == 5
    swap(change("Child.closing", "return super().closing(a, b)"))
    assert child.closing(5, 2) == 3
    # Nothing is left in it that speaks of what is outside, and the code that it replaces did.
    swap(change("Child.closing", "return b"))
    assert child.closing(5, 2) == 2


def test_what_is_not_there_is_refused(module: ModuleType) -> None:
    with pytest.raises(Unsupported, match="no function plain begins in line 1 "):
        swap(change("plain", "return a - b") | {"first_line": 1})
    with pytest.raises(Unsupported, match="cannot be compiled"):
        swap(change("plain", "return a - b") | {"text": "(a +)"})


RELEASE = "0.5.13"
RUNNER = "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py"
KERNEL = "sglang/srt/layers/attention/triton_ops/decode_attention.py"


@pytest.mark.exhaustive
@pytest.mark.emulated(RELEASE)
def test_real_sglang_is_changed_in_one_session_and_whole_in_the_next() -> None:
    target = Target(RELEASE, "emulated")
    case = plan("draft", "triton")[0]

    def found(file: str, function: str, old: str, new: str) -> dict[str, object]:
        every = mutants(file, (sglang_path(target) / file).read_text())
        mutant = next(m for m in every if (m.function, m.old, m.new) == (function, old, new))
        return {"edit": mutant.change()}

    reset = found(RUNNER, "EAGLEDraftCudaGraphRunner.replay", "buffers.req_pool_indices.zero_()", "pass")
    start = "cur_batch_kv_start_idx = tl.load(kv_indptr + cur_batch)"
    kernel = found(KERNEL, "_fwd_kernel_stage1", start, "cur_batch_kv_start_idx = tl.load(kv_indptr)")

    with Pool(target, timeout_s=60) as pool:

        def failing() -> set[str]:
            trace = pool.run(case)
            assert trace.ended.how is Termination.DONE, trace.ended
            return {verdict.oracle for verdict in judge_all(case, trace) if verdict.status is Status.FAIL}

        pool.change({"trace": list(PREFIXES)})
        lines = lines_of([pool.run(case)])
        assert {RUNNER, KERNEL} <= set(lines)
        pool.change({"lines": list(PREFIXES)})
        alone = pool.run(case)
        assert lines_of([alone]) == lines and not alone.path(-1, "places")
        pool.change({"files": ["sglang"]})
        files = json.loads(pool.run(case).facts["files"])
        assert {RUNNER, KERNEL} <= set(files) and not [file for file in files if "multi_layer_eagle" in file]
        pool.change({})
        assert failing() == set()
        pool.change(reset)
        assert "slot0_padding" in failing()
        pool.change(kernel)
        changed = pool.run(case)
        pool.change({})
        assert failing() == set()
        # Graph and eager are wrong alike, but they are not what they were.
        whole = pool.run(case)
        tokens, usual = (trace.get(0, "eager", "tokens") for trace in (changed, whole))
        assert tokens is not None and usual is not None and (tokens != usual).any()
