"""Whose error an exception is that came out of sglang's code: sglang's, or the harness's, whose adapters and stand-ins
are in between. By where it was raised: the innermost frame that is either's. A kernel that has failed comes out at
whatever waits next, so that its place says nothing: it is sglang's."""

from __future__ import annotations

import re
import sys
import traceback
import types
from pathlib import Path

from triton.runtime.errors import InterpreterError

from repro.cases.case import Setup
from repro.traces.device_errors import fault_in
from runners.engines.active import engine
from runners.recording.observer import PASSING, HarnessError, Unsupported, Watch
from runners.releases.refusals import refused

_HARNESS = str(Path(__file__).resolve().parents[1])
_ENGINES = f"{_HARNESS}/engines/"
_SGLANG = "/sglang/"
# What a stand-in raises by a mistake of its own. What else it raises, the real thing would.
_MISTAKES = (AttributeError, TypeError, NameError, ImportError)
# Modules of others in which stand-ins lie, or that a release asks for something only a GPU's has.
_STOOD_IN = ("torch.cpu", "sgl_kernel", "sgl_kernel.")
# What others on the machine may have brought about, and no setup.
_SCARCE = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|EADDRINUSE|address already in use|Too many open files|No space left",
    re.IGNORECASE,
)
_CALLED = re.compile(r"([A-Za-z_][\w.<>]*)\(\) (?:missing|takes|got)")
_STAGES = {
    "the attention backend": re.compile(r"attn_backend|attention_backend|(Attn|Attention)\w*Backend\b"),
    "the pools": re.compile(r"memory_pool|Pool\b|Allocator\b|init_pools"),
    "the graph runner": re.compile(r"GraphRunner\b|Buffers?\b|create_buffers"),
    "the model": re.compile(r"load_model|ForCausalLM"),
}


def raise_harness_error(error: Exception) -> None:
    """Raise HarnessError or Unsupported where this is no error of sglang's."""
    cause = error.__cause__ if isinstance(error, InterpreterError) and error.__cause__ else error
    if fault_in(error) or _reads_an_absent_argument(cause):
        return
    innermost = next(filter(None, map(_whose, reversed(traceback.extract_tb(cause.__traceback__)))), "sglang")
    if innermost == "engines" and isinstance(cause, NotImplementedError):
        raise Unsupported(str(cause)) from error
    mistake = innermost == "harness" or (innermost == "engines" and isinstance(cause, _MISTAKES))
    if mistake or _names_a_stand_in(cause) or _lacks_a_package(cause):
        raise HarnessError(told(cause)) from error


def told(error: BaseException) -> str:
    """A mistake of the harness's in one line, with the innermost place in runners/ that it came through; of a package
    that is not there also the place that imports it."""
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if frame.filename.startswith(_HARNESS)]
    place = f" ({Path(frames[-1].filename).relative_to(Path(_HARNESS).parent)}:{frames[-1].lineno})" if frames else ""
    importer = ""
    if _lacks_a_package(error) and every:
        importer = f", imported at {'/'.join(Path(every[-1].filename).parts[-4:])}:{every[-1].lineno}"
    return f"{type(error).__name__}: {error}{importer}{place}"


def not_built(error: Exception, setup: Setup, watch: Watch) -> None:
    """Raise what an error is while workers, pools, backends and graphs are made; where it is sglang's, only say to
    `watch` what it came out of."""
    if words := refused(setup, error):
        raise Unsupported(words) from error
    raise_harness_error(error)
    scarce = engine.device == "cuda" and _SCARCE.search(str(error))
    if scarce or isinstance(error, OSError | MemoryError):
        raise HarnessError(told(error)) from error
    frames = traceback.extract_tb(error.__traceback__)
    if not any(frame.name == "capture" and _whose(frame) == "harness" for frame in frames):
        watch.at(-1, f"building {_stage(error)}")


def _whose(frame: traceback.FrameSummary) -> str:
    """Whose code a frame is: sglang's, the harness's, its engines'; empty for any other."""
    path = frame.filename
    if path.startswith(_HARNESS) and frame.name in PASSING:
        return ""
    if path.startswith(_ENGINES):
        return "engines"
    if path.startswith(_HARNESS):
        return "harness"
    return "sglang" if _SGLANG in path else ""


def _reads_an_absent_argument(error: BaseException) -> bool:
    """True if a kernel computes with an argument that its caller left out, which no compiler takes."""
    if not (isinstance(error, AttributeError) and error.obj is None):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return "/triton/language/" in frames[-1].filename and any(_SGLANG in frame.filename for frame in frames)


def _names_a_stand_in(error: BaseException) -> bool:
    """True if sglang asked a stand-in for what it does not have."""
    if isinstance(error, AttributeError):
        owner = error.obj
        if isinstance(owner, types.ModuleType):
            return engine.device == "cpu" and owner.__name__.startswith(_STOOD_IN)
        kind = owner if isinstance(owner, type) else type(owner)
        return kind.__module__.startswith("runners.")
    if isinstance(error, ImportError):
        return engine.device == "cpu" and (error.name or "").startswith(_STOOD_IN)
    called = _CALLED.match(str(error)) if isinstance(error, TypeError) else None
    return called is not None and _is_harness_code(called[1].partition(".")[0])


def _lacks_a_package(error: BaseException) -> bool:
    """True if a package of others is not there. sglang requires many that no runner is known to import; where it comes
    to that, the environment is incomplete, and not sglang wrong."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] != "sglang"


def _is_harness_code(name: str) -> bool:
    """True if a module of runners/ defines this function or class."""
    modules = [(path, vars(module)) for path, module in list(sys.modules.items()) if path.startswith("runners.")]
    return any(getattr(names.get(name), "__module__", "") == path for path, names in modules)


def _stage(error: BaseException) -> str:
    """The part that was being made, by the innermost function of sglang's that says so."""
    names = []
    at = error.__traceback__
    while at is not None:
        if _SGLANG in at.tb_frame.f_code.co_filename:
            names.append(at.tb_frame.f_code.co_qualname)
        at = at.tb_next
    for name in reversed(names):
        for stage, pattern in _STAGES.items():
            if pattern.search(name):
                return stage
    return "the workers"
