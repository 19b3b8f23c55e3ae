"""Whose error it is that came out of sglang's code: by the innermost frame that is sglang's or the harness's."""

from __future__ import annotations

import contextlib
import importlib.util
import traceback
import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oracles.catalogue import judge_all
from repro.cases.case import Case, Request, Setup, Step, Target
from repro.cases.families import GLM
from repro.traces.finding import Status
from repro.traces.trace import Array, Termination
from runners.engines.active import engine
from runners.engines.staging import StagingBuffer
from runners.engines.standins import native_imports
from runners.processes.pool import Pool
from runners.recording.observer import HarnessError, Unsupported, Watch
from runners.releases import catalogue
from runners.releases.refusals import REFUSALS, Refusal, refused
from runners.releases.workers.posing import Posing
from runners.sessions import attribution
from runners.sessions.attribution import not_built, raise_harness_error
from runners.sessions.errors import Misshapen, SglangError, device_waited, sglang_errors, unreadable
from runners.sessions.writes import noted
from runners.targets.environments import sglang_path
from tests.builders.misbehaving import ILLEGAL

pytestmark = pytest.mark.emulated
RUNNERS = Path(attribution.__file__).resolve().parents[1]
SGLANG = "/cache/targets/0.5.13/sglang/srt/model_executor/model_runner.py"
ADAPTER = str(RUNNERS / "releases" / "adapters" / "draft" / "v0_5_13.py")
ENGINE = str(RUNNERS / "engines" / "emulated.py")
SETUP = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2), slots=3)


def code(path: str, text: str, **names: Any) -> Callable[[], Any]:
    """A function f of this text, in a file of this name."""
    space: dict[str, Any] = dict(names)
    exec(compile(text, path, "exec"), space)
    made: Callable[[], Any] = space["f"]
    return made


def raised(run: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:
        run()
    return caught.value


class Kept(Watch):
    """A watch that keeps where it was told to be."""

    def __init__(self) -> None:
        self.path = "build"

    def at(self, step: int, path: str) -> None:
        self.path = path

    def see(self, step: int, path: str, name: str, array: Array) -> None:
        raise AssertionError("nothing is recorded here")

    def spent(self, stage: str, seconds: float) -> None:
        raise AssertionError("nothing is timed here")

    def fact(self, name: str, text: str) -> None:
        raise AssertionError("nothing is noted here")


CALLS = "def f():\n    return inner()"
RAISES = "def f():\n    raise {}"


@pytest.mark.parametrize(
    ("files", "error", "ours"),
    [
        ((ADAPTER, SGLANG), "ValueError('x')", False),
        ((ADAPTER, SGLANG), "AttributeError('x')", False),
        ((ADAPTER, SGLANG, ADAPTER), "KeyError('x')", True),
        ((ADAPTER, SGLANG, "/lib/torch/functional.py"), "RuntimeError('shape is invalid')", False),
        ((ADAPTER, "/lib/torch/functional.py"), "RuntimeError('shape is invalid')", True),
        # What an engine raises, a device would; but for its mistakes.
        ((ADAPTER, SGLANG, ENGINE), "RuntimeError('CUDA error: operation not permitted')", False),
        ((ADAPTER, SGLANG, ENGINE), "AttributeError('no such operator')", True),
        ((ADAPTER, SGLANG, ENGINE), "NameError('x')", True),
        # A kernel that has failed comes out anywhere; memory that is used up does not.
        ((ADAPTER, SGLANG, ADAPTER), f"RuntimeError({ILLEGAL!r})", False),
        ((ADAPTER, "/lib/torch/functional.py"), f"RuntimeError({ILLEGAL!r})", False),
        ((ADAPTER, SGLANG, ADAPTER), "RuntimeError('CUDA out of memory')", True),
        ((ADAPTER, SGLANG, ADAPTER), "RuntimeError('CUDA error: invalid argument')", True),
    ],
)
def test_the_innermost_frame_tells(files: tuple[str, ...], error: str, ours: bool) -> None:
    run = code(files[-1], RAISES.format(error))
    for path in reversed(files[:-1]):
        run = code(path, CALLS, inner=run)
    raised_error = raised(run)
    if ours:
        place = rf"{type(raised_error).__name__}: .* \(runners/.*\.py:\d+\)"
        with pytest.raises(HarnessError, match=place):
            raise_harness_error(raised_error)
    else:
        raise_harness_error(raised_error)


def test_what_torch_raises_while_writes_are_noted_is_sglangs() -> None:
    """The one who notes stands between sglang and torch."""

    class Noting(Kept):
        def fact(self, name: str, text: str) -> None:
            self.path = text

    with noted({}, 0, Noting()):
        raised_error = raised(code(SGLANG, "def f():\n    torch.zeros(2).copy_(torch.zeros(3))", torch=torch))
    names = [frame.name for frame in traceback.extract_tb(raised_error.__traceback__)]
    assert "__torch_dispatch__" in names
    raise_harness_error(raised_error)


def test_what_a_kernel_does_with_an_absent_argument_is_sglangs_mistake() -> None:
    """On its way the error passes what wraps Triton's language, and AttributeErrors out of that are ours otherwise."""
    semantic = code("/lib/triton/language/semantic.py", "def f(x):\n    return x.type")
    for argument, ours in (None, False), (0, True):
        bound = code(
            f"{ENGINE.rpartition('/')[0]}/triton/language.py",
            "def f():\n    return inner(x)",
            inner=semantic,
            x=argument,
        )
        raised_error = raised(code(SGLANG, CALLS, inner=bound))
        with pytest.raises(HarnessError) if ours else contextlib.nullcontext():
            raise_harness_error(raised_error)


def test_a_constructor_that_takes_other_arguments_is_the_adapters_mistake() -> None:
    """No frame of sglang's is there yet: as TpModelWorker of 0.5.16 for the adapter of 0.5.15."""
    worker = code(
        SGLANG, "def f():\n    class TpModelWorker:\n        def __init__(self, ps): pass\n    return TpModelWorker"
    )()
    with pytest.raises(HarnessError, match="missing 1 required positional argument: 'ps'"):
        raise_harness_error(raised(code(ADAPTER, "def f():\n    worker()", worker=worker)))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f():\n    batch.sampling_info", {"batch": Posing()}),
        ("def f():\n    buffer.other", {"buffer": object.__new__(StagingBuffer)}),
        ("def f():\n    native_imports.stand_in(other=1)", {"native_imports": native_imports}),
        ("def f():\n    import torch\n    torch.cpu.get_device_properties()", {}),
        ("def f():\n    tree.no_such_function()", {"tree": types.ModuleType("sgl_kernel.tree")}),
    ],
)
def test_what_a_stand_in_lacks_is_the_harnesss(
    text: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution, "engine", types.SimpleNamespace(device="cpu"))
    with pytest.raises(HarnessError):
        raise_harness_error(raised(code(SGLANG, text, **names)))


def test_what_sglangs_own_objects_lack_is_sglangs() -> None:
    raise_harness_error(raised(code(SGLANG, "def f():\n    class Batch: pass\n    Batch().sampling_info")))
    view = {"view": types.SimpleNamespace()}
    raise_harness_error(raised(code(SGLANG, "def f():\n    view.bs", **view)))
    raise_harness_error(raised(code(SGLANG, "def f():\n    def plan(a): pass\n    plan()")))
    raise_harness_error(raised(code(SGLANG, "def f():\n    import torch\n    torch.no_such_operator(1)")))


def test_the_device_is_asked_before_another_error_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed() -> None:
        raise torch.AcceleratorError(ILLEGAL)

    def wait(error: Exception | None) -> None:
        with device_waited():
            if error:
                raise error

    monkeypatch.setattr(engine, "synchronize", failed)
    for error in (HarnessError("a mistake"), Unsupported("not here"), KeyError("slot"), None):
        raised_error = raised(partial(wait, error))
        assert isinstance(raised_error, torch.AcceleratorError) and raised_error.__cause__ is error
    device_error = SglangError(torch.AcceleratorError(ILLEGAL))
    assert raised(partial(wait, device_error)) is device_error, "it says so itself"

    def captures() -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr(engine, "synchronize", captures)
    error = KeyError("slot")
    assert raised(partial(wait, error)) is error


def test_sglangs_error_passes_whoever_else_waits_for_one() -> None:
    with pytest.raises(SglangError, match="3, got 2"), sglang_errors(wait=False), sglang_errors(wait=False):
        code(SGLANG, RAISES.format("ValueError('expected 3, got 2')"))()


def test_what_a_stand_in_declares_is_unsupported() -> None:
    native = code(ENGINE, RAISES.format("NotImplementedError('sgl_kernel.moe has no stand-in')"))
    with pytest.raises(Unsupported, match="has no stand-in"):
        raise_harness_error(raised(code(SGLANG, CALLS, inner=native)))


def test_what_sglang_raises_while_it_is_built_says_what_of_it() -> None:
    for name, stage in (
        ("init_attention_backend", "the attention backend"),
        ("init_memory_pool", "the pools"),
        ("load_model", "the model"),
        ("anything", "the workers"),
    ):
        text = f"def {name}():\n    raise ValueError('x')\nf = {name}"
        watch = Kept()
        not_built(raised(code(ADAPTER, CALLS, inner=code(SGLANG, text))), SETUP, watch)
        assert watch.path == f"building {stage}"
    capture = code(ADAPTER, "def capture():\n    inner()\nf = capture", inner=code(SGLANG, RAISES.format("OSError")))
    with pytest.raises(HarnessError):
        not_built(raised(capture), SETUP, Kept())


def test_a_package_that_is_not_there_is_the_environments() -> None:
    for module, ours in (("no_such_package", True), ("sglang.no_such_module", False)):
        error = raised(code(SGLANG, f"def f():\n    raise ModuleNotFoundError('x', name={module!r})"))
        if ours:
            with pytest.raises(HarnessError, match=r"imported at sglang/srt/model_executor/model_runner\.py:2"):
                not_built(error, SETUP, Kept())
            with pytest.raises(HarnessError):
                raise_harness_error(error)  # in a step
        else:
            not_built(error, SETUP, Kept())
            raise_harness_error(error)


def test_a_refusal_is_of_the_setup_that_it_is_about() -> None:
    words = "speculative_eagle_topk > 1 with page_size > 1 is only supported on these backends"
    paged = replace(SETUP, page_size=4, context_len=64)
    assert refused(paged, ValueError(words)) == words
    assert refused(paged, ValueError("another")) == ""
    assert refused(SETUP, ValueError(words)) == "", "of one token a page these words are a finding"
    with pytest.raises(Unsupported, match="speculative_eagle_topk"):
        not_built(ValueError(words), paged, Kept())


def test_a_size_that_a_kernel_refuses_is_no_finding() -> None:
    words = "fused_eh_norm: unsupported hidden_size=32 (must be in (256, 8192] and a multiple of 256)"
    drafts = replace(SETUP, algorithm="NEXTN", dtype="float16")
    assert refused(drafts, RuntimeError(words)) == words
    assert refused(replace(drafts, hidden_size=512), RuntimeError(words)) == "", "of a size that it takes: a finding"
    assert refused(SETUP, RuntimeError(words)) == "", "of another model: a finding"
    assert refused(drafts, RuntimeError("jit rmsnorm: unsupported hidden_size=32")) == "", (
        "of another kernel: a finding"
    )


@pytest.mark.parametrize(
    "refusal",
    [pytest.param(each, id=each.source, marks=pytest.mark.emulated(each.source.split()[0])) for each in REFUSALS],
)
def test_a_refusal_is_where_its_row_says(refusal: Refusal) -> None:
    release, place = refusal.source.split()
    file, line = place.split(":")
    source = (sglang_path(Target(release, "emulated")) / "sglang" / file).read_text().splitlines()
    # The call that an older distribution refuses, in its own words.
    beginnings = [words[:20].replace("\\", "") for words in refusal.words.pattern.split("|")]
    beginnings = ["_cached_module.plan("] if refusal.older else beginnings
    assert any(words in source[int(line) - 1] for words in beginnings), source[int(line) - 1]


def test_a_package_that_is_left_out_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "Cannot find model module. 'DeepseekV3ForCausalLMNextN' is not a registered model in the library"
    drafts = replace(SETUP, algorithm="NEXTN", dtype="float16")
    for spec, reason in ((None, f"cutlass is not installed: {words}"), (object(), "")):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, spec=spec: spec)
        assert refused(drafts, ValueError(words)) == reason
    assert refused(SETUP, ValueError(words)) == ""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    glm = words.replace("DeepseekV3", "Glm4Moe")
    assert refused(replace(SETUP, family=GLM), ValueError(glm)) == f"cutlass is not installed: {glm}"
    assert refused(SETUP, ValueError(glm)) == ""


def test_a_plan_that_an_older_flashinfer_does_not_take_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = "plan(0: DLTensor*, 17: int, 18: int) -> Array<int>"
    words = f"Mismatched number of arguments when calling: `{signature}`. Expected 19 but got 20 arguments"
    extends = replace(SETUP, backend="flashinfer")
    lack = "flashinfer-python 0.6.12 where flashinfer-python==0.7.2 is pinned"
    for older, text in ((lack, f"{lack}: {words}"), ("", "")):
        monkeypatch.setattr("runners.targets.pinned.older_here", lambda name, older=older: older)
        assert refused(extends, TypeError(words)) == text
    monkeypatch.setattr("runners.targets.pinned.older_here", lambda name: lack)
    assert refused(SETUP, TypeError(words)) == "", "over another backend: a finding"
    assert refused(extends, TypeError(words.replace("20", "18"))) == "", "another mistake in the call: a finding"


def test_what_is_left_in_another_shape_is_sglangs_where_shapes_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    short = RuntimeError("The expanded size of the tensor (3) must match the existing size (4)")
    for release, error, ours in (
        ("0.5.13", short, False),
        ("0.5.13", IndexError("4"), False),
        ("0.5.13", RuntimeError("planted"), True),
        ("0.5.13", AttributeError("shape"), True),
        ("99.0.0", short, True),
    ):
        monkeypatch.setattr(catalogue, "present_release", lambda release=release: release)
        raised = unreadable(error, "not read")
        assert isinstance(raised, HarnessError) is ours, (release, error)
        if not ours:
            assert isinstance(raised, SglangError) and isinstance(raised.error, Misshapen)
            assert str(raised) == f"not read: {type(error).__name__}: {error}"


def test_a_buffer_that_is_too_short_is_recorded_as_it_is() -> None:
    """Not thrown away because its shape is no multiple of what it was to be."""
    seen = {}

    class Watching(Kept):
        def see_all(self, step: int, what: Any, data: bytes) -> None:
            seen.update({name: array.shape for _, name, array in what.recorded(data)})

    buffer = StagingBuffer(Watching(), 0)
    for name, shape in {"whole": (8, 2), "flat": (16,), "short": (5, 2), "short_flat": (7,), "even": (4, 4)}.items():
        buffer.see("launch", name, torch.zeros(shape), rows=8)
    buffer.flush()
    assert seen == {"whole": (8, 2), "flat": (8, 2), "short": (5, 2), "short_flat": (7,), "even": (4, 4)}
    assert np.prod(seen["short"]) == 10


@pytest.mark.exhaustive
@pytest.mark.emulated("0.5.13")
def test_a_backend_that_cannot_be_made_is_a_failure() -> None:
    case = Case(setup=SETUP, steps=(Step(requests=(Request(slot=1, seq_len=5, data=1),)),))
    with Pool(Target("0.5.13", "emulated"), session="tests.builders.failing_backend") as pool:
        trace = pool.run(case)
    ended = trace.ended
    assert (ended.how, ended.step, ended.what, ended.path) == (
        Termination.RAISED,
        -1,
        "ValueError",
        "building the attention backend",
    )
    [verdict] = [judged for judged in judge_all(case, trace) if judged.status is Status.FAIL]
    assert (verdict.oracle, verdict.where) == ("ended", "raised ValueError in building the attention backend")
    assert verdict.detail.endswith("before the first step: ValueError: planted.")
